#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make_corpus.py VECTORS OUT: the golden vectors, what follows from them, and names as seeds of fuzz_decode.

A seed is two steering bytes, then the packet or the text.
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

TOKEN = "00112233445566778899aabbccddeeff"
TEXTS = ("kv-0.A_b", "1000:train/kv", "1000:train", f"train:{TOKEN}", "shmb:1a.2b.3.3e8:train/kv", TOKEN, "@17/kv",
         "#17", "shmb:1a.2b.3.3e8:#11/")
for number, text in enumerate(TEXTS):
    for reader in range(6):
        (out / f"text-{number}-{reader}").write_bytes(bytes([0x40, reader]) + text.encode())
