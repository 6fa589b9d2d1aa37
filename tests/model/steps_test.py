#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The models and the library name the same atomic steps. A step that is new in client/lane/steps.hpp must be modelled, and a
step that the library no longer takes must leave the models. Names that end in _half are kill points inside something
that is not atomic (a body half written, a loop half done): the models have every order of what is around them."""
import re
import subprocess
import sys

binary, header = sys.argv[1:]
text = open(header, encoding="utf-8").read()
match = re.search(r"#define SHMB_STEPS\(X\)((?:[^\n]*\\\n)*[^\n]*)", text)
assert match, f"no SHMB_STEPS in {header}"
code = {name for name in re.findall(r"X\((\w+)\)", match.group(1)) if not name.endswith("_half")}
printed = subprocess.run([binary, "--steps"], check=True, capture_output=True, text=True).stdout
model = {line.split()[1] for line in printed.splitlines() if line.startswith("client ")}
assert len(code) > 40 and len(model) > 40, (len(code), len(model))
for name in sorted(code - model):
    print(f"FAIL: {name} is a step of client/lane/steps.hpp and of no model")
for name in sorted(model - code):
    print(f"FAIL: {name} is a step of the models and not in client/lane/steps.hpp")
print(f"{len(code & model)} steps are named by both")
sys.exit(code != model)
