#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every function that a public C header declares can be linked from the shared library, and nothing else can. The tests
of the functions themselves link the static core, which has them all, whatever the shared library exports.
Usage: exports_test.py LIBRARY HEADER..."""
import re
import subprocess
import sys
from pathlib import Path

library, *headers = sys.argv[1:]
declared = {}
for header in headers:
    text = re.sub(r"/\*.*?\*/", "", Path(header).read_text(), flags=re.DOTALL)
    for name in re.findall(r"^SHMB_API\s[^;(]*?\b(shmb_\w+)\s*\(", text, re.MULTILINE):
        declared[name] = Path(header).name
table = subprocess.run(["nm", "--dynamic", "--defined-only", library], check=True, capture_output=True, text=True).stdout
exported = {line.split()[2].split("@")[0] for line in table.splitlines() if line.split()[1] != "A"}  # A: the version

if len(declared) < 190:
    sys.exit(f"only {len(declared)} functions found in the headers: this test looks at nothing")
wrong = [f"{name} of {header} is not exported" for name, header in declared.items() if name not in exported]
wrong += [f"{name} is exported and in no public header" for name in exported - set(declared)]
if wrong:
    sys.exit("\n".join(sorted(wrong)))
