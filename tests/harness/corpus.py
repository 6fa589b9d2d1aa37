#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Corpora of libFuzzer targets as one text each, so that a folder of a thousand files is no part of the tree.

    corpus.py unpack TEXT FOLDER           an input of each line, as a file for libFuzzer
    corpus.py pack FOLDER TEXT [BYTES]     the reverse; the smallest inputs first, up to so many bytes (default 65536)

Before packing let libFuzzer leave out what reaches nothing new: TARGET -merge=1 FOLDER CORPUS...
"""
import hashlib
import sys
from pathlib import Path


def unpack(text, folder):
    folder.mkdir(parents=True, exist_ok=True)
    for line in text.read_text().split():
        data = bytes.fromhex(line)
        (folder / hashlib.sha1(data).hexdigest()).write_bytes(data)


def pack(folder, text, most):
    lines, size = [], 0
    for data in sorted((path.read_bytes() for path in folder.iterdir()), key=lambda one: (len(one), one)):
        size += 2 * len(data) + 1
        if data and size <= most:
            lines.append(data.hex() + "\n")
    text.write_text("".join(lines))
    print(f"{text}: {len(lines)} inputs")


def main():
    words = sys.argv[1:]
    if len(words) == 3 and words[0] == "unpack":
        unpack(Path(words[1]), Path(words[2]))
    elif len(words) in (3, 4) and words[0] == "pack":
        pack(Path(words[1]), Path(words[2]), int(words[3]) if len(words) == 4 else 65536)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
