#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""libshmbroker.so exports the functions of its C headers, all of them and nothing else (the tests of the functions
themselves link the static core, which has them whatever the library exports); no C++ runtime that a C program would
have to bring; no test seam. Usage: library_test.py LIBRARY SANITIZER HEADER..."""
import re
import subprocess
import sys


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main():
    library, sanitized, headers = sys.argv[1], sys.argv[2] != "none", sys.argv[3:]
    wrong = []
    declared = set()
    for header in headers:
        with open(header, encoding="utf-8") as text:
            declared |= set(re.findall(r"SHMB_API[^;(]*?\b(shmb_\w+)\(", text.read()))
    if len(declared) < 190:
        wrong.append(f"only {len(declared)} functions found in the headers: this test looks at nothing")
    exported = set()
    for line in output("nm", "-D", "--defined-only", library).splitlines():
        name = line.split()[-1].split("@")[0]
        if line.split()[-2] == "A":  # the version's own name
            continue
        exported.add(name)
    wrong += [f"declared and not exported: {name}" for name in sorted(declared - exported)]
    wrong += [f"exported and not declared: {name}" for name in sorted(exported - declared)]
    if not sanitized:
        for line in output("readelf", "-d", library).splitlines():
            if "NEEDED" in line and not re.search(r"\[(libc|ld-linux.*|libm|libgcc_s|linux-vdso)\.so", line):
                wrong.append(f"needs {line.split('[')[1].rstrip(']')}")
        for line in output("nm", "-D", "--undefined-only", library).splitlines():
            if line.split()[-1].startswith("_Z") and line.split()[0] == "U":  # weak ones are nobody's duty
                wrong.append(f"a C++ symbol is left to others: {line.split()[-1]}")
    seam = [line for line in output("nm", "-C", library).splitlines() if "shmb::fault::inject" in line]
    wrong += [f"the test seam is in the shipped library: {line}" for line in seam]
    for line in wrong:
        print(line)
    print(f"{len(exported)} functions exported, {len(declared)} declared")
    return 1 if wrong or len(declared) < 30 else 0


if __name__ == "__main__":
    sys.exit(main())
