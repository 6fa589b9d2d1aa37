#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The C ABI is that of the record, and tools/abi sees changes that would break a program. abi_test.py ROOT LIBRARY"""
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT, LIBRARY = Path(sys.argv[1]), Path(sys.argv[2])
RECORD = ROOT / "packaging/abi/libshmbroker.so.0.abi"


def compare(record):
    done = subprocess.run([ROOT / "tools/abi", "--record", record, LIBRARY], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout


def main():
    code, said = compare(RECORD)
    if code == 77:
        print(said)
        return 77
    assert code == 0, said
    text = RECORD.read_text()
    with tempfile.TemporaryDirectory() as name:
        other = Path(name) / "other.abi"

        # A function of the last release that is gone; under a name of its own, so that nothing else changes.
        other.write_text(text.replace("'shmb_release'", "'shmb_release_of_then'"))
        code, said = compare(other)
        assert code == 1 and "shmb_release_of_then" in said and "NEWS.md" in said, f"{code} {said}"

        # A field that was somewhere else.
        moved = re.sub(r"(<class-decl name='shmb_region_stat'.*?layout-offset-in-bits=')64'", r"\g<1>96'", text, count=1,
                       flags=re.S)
        assert moved != text, "the record has no struct shmb_region_stat with a second field"
        other.write_text(moved)
        code, said = compare(other)
        assert code == 1 and "shmb_region_stat" in said, f"{code} {said}"

        # A function that the last release did not have.
        fewer = "".join(line for line in text.splitlines(True) if "<elf-symbol name='shmb_release'" not in line)
        fewer = re.sub(r"\s*<function-decl name='shmb_release' .*?</function-decl>", "", fewer, count=1, flags=re.S)
        other.write_text(fewer)
        code, said = compare(other)
        assert code == 0 and "shmb_release" in said, f"{code} {said}"
    return 0


if __name__ == "__main__":
    sys.exit(main())
