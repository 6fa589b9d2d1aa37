#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Nothing that is shipped needs libcuda or the CUDA runtime to start: the driver is found at run time, or not at all.
The rule is first tried on a program that does need another library. And nothing that is shipped knows the variable by
which tests name another driver. Usage: needs_test.py FILE_OF_TESTS FILE..."""
import re
import subprocess
import sys

VARIABLE = b"SHMB_LIBCUDA"
CUDA = re.compile(r"lib(cuda|cudart|nvidia)\b")


def needed(path):
    out = subprocess.run(["readelf", "-d", path], check=True, capture_output=True, text=True).stdout
    return re.findall(r"\(NEEDED\).*\[(.*?)\]", out)


def main():
    for sample in ("libcuda.so.1", "libcudart.so.13", "libcuda.so"):
        if not CUDA.search(sample):
            sys.exit(f"the rule itself is wrong: it passes {sample}")
    if len(sys.argv) < 4:
        sys.exit("too few files to look at")
    wrong, seen = [], 0
    with open(sys.argv[1], "rb") as file:
        if VARIABLE not in file.read():
            sys.exit(f"{sys.argv[1]} does not know {VARIABLE.decode()}: the look for it elsewhere proves nothing")
    for path in sys.argv[2:]:
        names = needed(path)
        with open(path, "rb") as file:
            if VARIABLE in file.read():
                wrong.append(f"{path} knows {VARIABLE.decode()}")
        seen += len(names)
        wrong += [f"{path} needs {name}" for name in names if CUDA.search(name)]
    print("\n".join(wrong))
    print(f"{len(sys.argv) - 2} files, {seen} needed libraries")
    return 1 if wrong or seen == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
