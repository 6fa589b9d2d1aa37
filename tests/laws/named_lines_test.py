#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each law's file opens with the line of code that carries the law, to be broken to see the test fail. A line that has
moved on without its law is a promise nobody can check: file and expression must still be there."""
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])
wrong = []
laws = sorted((root / "tests/laws").glob("law_*.cpp"))
for law in laws:
    head = law.read_text().split("#include")[0]
    told = head.partition("To see it fail:")[2]
    files = re.findall(r"\b((?:base|proto|daemon|client)/[\w/]+\.cpp)", told)
    lines = [line.lstrip("/ ").strip() for line in told.splitlines() if line.startswith("//   ")]
    if not files or not lines:
        wrong.append(f"{law.name}: names no file and line to break")
    text = " ".join("".join((root / file).read_text() for file in files if (root / file).is_file()).split())
    wrong += [f"{law.name}: {file} is not there" for file in files if not (root / file).is_file()]
    for line in lines:
        for part in filter(None, (part.strip(" ;)") for part in line.split("..."))):
            if " ".join(part.split()) not in text:
                wrong.append(f"{law.name}: `{part}` is not in {', '.join(files)}")
table = (root / "docs/laws.md").read_text()
wrong += [f"docs/laws.md does not name {law.name}" for law in laws if law.name not in table]
print("\n".join(wrong) or f"{len(laws)} laws name the lines that carry them")
sys.exit(bool(wrong))
