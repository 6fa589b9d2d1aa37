#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shipped programs have no kill point: no hook and no call of one, neither in the library nor in the core that the tools
are linked from. The test build has them, or this test would look at nothing."""
import subprocess
import sys


def hooks(path):
    names = subprocess.run(["nm", "--demangle", path], check=True, capture_output=True, text=True).stdout
    found = [line for line in names.splitlines() if "step_hook" in line or "at_step" in line]
    with open(path, "rb") as file:
        return found + (["the bytes 'step_hook'"] if b"step_hook" in file.read() else [])


*shipped, seam = sys.argv[1:]
for path in shipped:
    if found := hooks(path):
        sys.exit(f"{path} contains a kill point: {found[0]}")
if not hooks(seam):
    sys.exit(f"{seam} does not contain the kill points")
print(f"no kill point in {len(shipped)} files")
