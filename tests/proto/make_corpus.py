#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make_corpus.py VECTORS OUT: the golden vectors as seeds of fuzz_decode (two steering bytes, then the packet)."""
import json
import pathlib
import sys
import tomllib

table = tomllib.loads((pathlib.Path(__file__).resolve().parents[2] / "proto/messages.toml").read_text())
TABLES = next(e["values"] for e in table["enum"] if e["name"] == "table")
out = pathlib.Path(sys.argv[2])
out.mkdir(parents=True, exist_ok=True)
for path in pathlib.Path(sys.argv[1]).glob("*.json"):
    vector = json.loads(path.read_text())
    data = bytes.fromhex(vector["hex"])
    if len(data) <= 2048:
        steer = 0x80 | (vector["direction"] != "request") | TABLES.index(vector.get("table", "uids")) << 1
        (out / path.stem).write_bytes(bytes([steer, len(vector["fds"])]) + data)
