#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The picture of the house in docs/architecture.md is what the includes say. Usage: house_test.py ROOT [--write]

Each line of the picture is a room, higher rooms first, with the rooms that it includes. A room that is also reached
through another one of them is left out, so the arrows are few. --write puts the picture of today into the page.
"""
import ast
import re
import sys
from pathlib import Path

CODE = {".cpp", ".hpp", ".h", ".c"}
FOLDERS = ("base", "proto", "daemon", "client", "spawn", "cuda", "tools")
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
PICTURE = re.compile(r"(?<=<!-- house: tests/docs/house_test.py --write -->\n\n)(?: {4}.*\n)+")


def room_of(path):
    return "/".join(path.parts[:-1][:2]) if path.parts[0] in ("daemon", "client", "spawn") else path.parts[0]


def arrows(root):
    """Which rooms each room includes."""
    files = [path.relative_to(root) for folder in FOLDERS for path in (root / folder).rglob("*") if path.suffix in CODE]
    public = {path.name: path for path in files if path.parts[1] == "face" or path.parts[0] in ("cuda", "proto")}
    found = {room_of(path): set() for path in files}
    for path in files:
        for name in INCLUDE.findall((root / path).read_text()):
            included = Path(name) if "/" in name else public[name]
            if room_of(included) != room_of(path):
                found[room_of(path)].add(room_of(included))
    return found


def allowed(root):
    """The order of rooms that tests/layers_test.py keeps: (height of the folder, height of the room)."""
    text = (root / "tests/layers_test.py").read_text()
    rooms = ast.literal_eval(re.search(r"^ROOMS = (\{.*?^\})", text, re.MULTILINE | re.DOTALL)[1])

    def height(room):
        folder, _, inner = room.partition("/")
        return FOLDERS.index(folder), rooms[folder].index(inner) if inner else len(rooms.get(folder, ()))
    return height


def picture(root):
    found, height = arrows(root), allowed(root)
    below = {}
    for room in sorted(found, key=height):
        lower = {other for other in found[room] if height(other) < height(room)}
        below[room] = lower.union(*(below[other] for other in lower))
    width = max(map(len, found))
    lines = []
    for room in sorted(found, key=height, reverse=True):
        lower = {other for other in found[room] if height(other) < height(room)}
        direct = [other for other in lower if not any(other in below[third] for third in lower)]
        direct.sort(key=height, reverse=True)
        lines.append(f"    {room:<{width}}  ->  {', '.join(direct)}\n" if direct else f"    {room}\n")
    return "".join(lines)


def main():
    root = Path(sys.argv[1])
    page = root / "docs/architecture.md"
    text, drawn = page.read_text(), picture(root)
    there = PICTURE.search(text)
    if there is None:
        sys.exit("docs/architecture.md has no picture of the house")
    if sys.argv[2:] == ["--write"]:
        page.write_text(text.replace(there[0], drawn))
    elif there[0] != drawn:
        sys.exit(f"docs/architecture.md shows another house than the includes (house_test.py ROOT --write):\n{drawn}")


if __name__ == "__main__":
    main()
