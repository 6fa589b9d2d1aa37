#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""No object that is shipped needs libcuda or the CUDA runtime to start. Usage: needed_test.py FAKE FILE...

FAKE is the fake driver: its own name proves that this test can see one.
"""
import re
import subprocess
import sys


def dynamic(path):
    return subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True).stdout


fake, *files = sys.argv[1:]
if "libcuda.so.1" not in dynamic(fake):
    sys.exit("readelf does not show the name of the fake driver: this test sees nothing")
problems = []
for path in files:
    needed = re.findall(r"\(NEEDED\).*\[(.*?)\]", dynamic(path))
    problems += [f"{path} needs {name}" for name in needed if re.match(r"lib(cuda|cudart|nv)", name)]
print(f"{len(files)} objects looked at")
sys.exit("\n".join(problems) if problems else 0)
