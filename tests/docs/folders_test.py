#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/architecture.md lists the files of each folder that exist, and no others. Usage: folders_test.py ROOT"""
import re
import sys
from pathlib import Path

FOLDERS = ("base", "proto", "daemon", "client", "spawn", "cuda", "tools")
BENCHMARKS = "tools/benchmarks"


def main():
    root, problems = Path(sys.argv[1]), []
    text = (root / "docs/architecture.md").read_text()
    rooms = [f"{folder}/{room.name}" for folder in ("daemon", "client", "spawn")
             for room in sorted((root / folder).iterdir()) if room.is_dir()]
    rooms += ["tools/verbs", BENCHMARKS] + [f"{BENCHMARKS}/{room.name}" for room in sorted((root / BENCHMARKS).iterdir())
                             if room.is_dir() and room.name != "__pycache__"]
    for folder in (*FOLDERS, *rooms):
        section = re.search(rf"^###+ {folder}/:.*?(?=^##|\Z)", text, re.MULTILINE | re.DOTALL)
        if section is None:
            problems.append(f"docs/architecture.md has no section {folder}/")
            continue
        # Of a line "- `a`, `b.hpp`: what for" the names before the colon; `a` stands for a.hpp and a.cpp.
        heads = re.findall(r"^- (.*?):(?:\s|$)", section.group(), re.MULTILINE)
        named = {name for head in heads for name in re.findall(r"`([^`]+)`", head)}
        files = {path.name for path in (root / folder).iterdir() if path.is_file() and path.name != "meson.build"}
        pairs = {path.removesuffix(".hpp") for path in files if path.removesuffix(".hpp") + ".cpp" in files}
        expected = {name for name in files if Path(name).stem not in pairs or Path(name).suffix not in (".hpp", ".cpp")}
        expected |= {Path(name).stem for name in files if Path(name).stem in pairs}
        problems += [f"{folder}/{name} is not in docs/architecture.md" for name in sorted(expected - named)]
        problems += [f"docs/architecture.md names {folder}/{name}, which is not there" for name in sorted(named - expected)]
    if problems:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
