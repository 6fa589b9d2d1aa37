#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make_corpus.py VECTORS OUT: the golden vectors and what follows from them as seeds of fuzz_decode.

A seed is two steering bytes, then the packet.
"""
import pathlib
import sys
import tomllib

from variants import frames

table = tomllib.loads((pathlib.Path(__file__).resolve().parents[2] / "proto/messages.toml").read_text())
TABLES = next(e["values"] for e in table["enum"] if e["name"] == "table")
out = pathlib.Path(sys.argv[2])
out.mkdir(parents=True, exist_ok=True)
for frame in frames(pathlib.Path(sys.argv[1])):
    if len(frame.data) <= 2048:
        steer = 0x80 | (frame.direction != "request") | TABLES.index(frame.table or "uids") << 1
        (out / frame.name).write_bytes(bytes([steer, frame.n_fds]) + frame.data)
