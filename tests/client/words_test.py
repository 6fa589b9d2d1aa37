#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sentences are written in the words of C, and client/session/words.cpp has those of the other faces. So every C name in a
sentence is in that table, each name of the table is declared in a C header, and no sentence names C++ things.
Usage: words_test.py ROOT"""
import re
import sys
from pathlib import Path

LITERAL = re.compile(r'"(?:[^"\\\n]|\\.)*"')
NAME = re.compile(r"(?<!\w)(?:shmb|SHMB)_\w+(?:\.\w+)?")
CXX = re.compile(r"\b(?:shmbroker|Session|Region|Pool|Queue|Message|Slot|Timeout|Remote|QueueKind|\w+Options)::\w+")
# Strings that no caller reads as a sentence: variables of the environment.
NO_SENTENCE = {"SHMB_LIBCUDA"}


def literals(path):
    text = re.sub(r"^\s*#.*$", "", path.read_text(), flags=re.MULTILINE)
    text = re.sub(r"(?<!:)//.*$", "", text, flags=re.MULTILINE)
    return LITERAL.findall(text)


def main():
    root, wrong, seen = Path(sys.argv[1]), [], 0
    table = dict(re.findall(r'\{"((?:shmb|SHMB)_[\w.]+)", "([^"]*)"', (root / "client/session/words.cpp").read_text()))
    headers = "".join(path.read_text() for folder in ("client", "spawn", "cuda") for path in (root / folder).rglob("shmbroker*.h"))
    for name, said in table.items():
        struct, _, field = name.partition(".")
        if not re.search(rf"\b{struct}\b", headers) or (field and not re.search(rf"\b{field}\b", headers)):
            wrong.append(f"client/session/words.cpp: {name} is in no C header")
        if NAME.search(said) and said != name:
            wrong.append(f"client/session/words.cpp: {name} becomes another C name: {said}")
    for folder in ("base", "proto", "client", "spawn", "cuda", "daemon"):
        for path in sorted((root / folder).rglob("*.cpp")) + sorted((root / folder).rglob("*.hpp")):
            if path.name in ("words.cpp", "version.hpp") or path.name.startswith("shmbroker"):
                continue
            for literal in literals(path):
                where = f"{path.relative_to(root)}: {literal}"
                for name in NAME.findall(literal):
                    seen += 1
                    # A sentence may end behind a name.
                    if name not in table and name.partition(".")[0] not in table and name not in NO_SENTENCE:
                        wrong.append(f"{where}: {name} has no other words in client/session/words.cpp")
                if path.suffix == ".cpp" and CXX.search(literal):
                    wrong.append(f"{where}: a caller in C reads a C++ name")
    print("\n".join(wrong))
    if seen < 20:
        sys.exit(f"only {seen} names found: this test looks at nothing")
    return 1 if wrong else 0


sys.exit(main())
