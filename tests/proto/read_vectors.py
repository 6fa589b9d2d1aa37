#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds both readers of the wire against the golden vectors and the frames that follow from them (variants.py).

    read_vectors.py DIR                   tests/proto/decoder.py reads each frame as what it means
    read_vectors.py DIR --agree PROGRAM   so does PROGRAM, the C++ codec, and both agree on mutated frames
"""
import json
import pathlib
import random
import struct
import subprocess
import sys

from decoder import verdict
from variants import Frame, frames, is_todays, vectors


def is_zero(value):
    return all(map(is_zero, value.values())) if isinstance(value, dict) else not value.strip("0") if isinstance(value, str) else value == 0


def means(said, meant):
    """A vector does not name the fields that its struct got later: they are zero."""
    if isinstance(said, dict) and isinstance(meant, dict):
        return meant.keys() <= said.keys() and all(means(v, meant[k]) if k in meant else is_zero(v) for k, v in said.items())
    if isinstance(said, list) and isinstance(meant, list):
        return len(said) == len(meant) and all(map(means, said, meant))
    return said == meant


def differs(frame, reader, said):
    if said == frame.decoded or frame.stored and means(said, frame.decoded):
        return 0
    print(f"{frame.name} {frame.data.hex()}:\n  meant  {json.dumps(frame.decoded)}\n  {reader} {json.dumps(said)}")
    return 1


def read(frame):
    return verdict(frame.data, frame.n_fds, frame.direction, frame.table or "uids")


def check(folder):
    golden, every = vectors(folder), frames(folder)
    bad = sum(differs(frame, "decoder", read(frame)) for frame in every)
    today = sum(map(is_todays, golden))
    print(f"{len(golden)} vectors, {today} of them with structs as long as today's, {len(every)} frames, {bad} read otherwise")
    return 1 if bad or today < 120 or len(every) < 1000 else 0


def mutate(data, dice):
    """One to three changes: most leave the frame whole, so that what lies behind it is reached."""
    data = bytearray(data)
    for _ in range(dice.randint(1, 3)):
        if not data:
            break
        at = dice.randrange(len(data))
        what = dice.randrange(4)
        if what == 0:
            data[at] = dice.choice((0, 1, 0x7f, 0x80, 0xff, dice.randrange(256)))
        elif what == 1:
            data[at] ^= 1 << dice.randrange(8)
        elif what == 2:
            del data[at:at + dice.randint(1, 8)]
        else:
            data[at:at] = bytes(dice.choice((0, 0, 255)) for _ in range(dice.randint(1, 8)))
    if dice.randrange(8) and len(data) >= 4:
        data[:4] = struct.pack("<I", len(data))
    return bytes(data)


def mutated(every, rounds=6, seed=20):
    dice = random.Random(seed)
    for frame in every:
        if len(frame.data) < 4000:
            for n in range(rounds):
                data = mutate(frame.data, dice)
                yield Frame(f"{frame.name}-mutated-{n}", data, frame.n_fds, frame.direction, frame.table, None)


def agree(folder, program):
    every = frames(folder)
    damaged = list(mutated(every))
    for frame in damaged:
        frame.decoded = read(frame)
    lines = "".join(f"{f.direction} {f.n_fds} {f.table or '-'} {f.data.hex() or '-'}\n" for f in every + damaged)
    answers = subprocess.run([program], input=lines, capture_output=True, text=True, check=True).stdout.splitlines()
    bad = sum(differs(frame, "C++   ", json.loads(answer)) for frame, answer in zip(every + damaged, answers, strict=True))
    kinds = {}
    for frame in damaged:
        kind = list(frame.decoded)[0]
        kinds[kind] = kinds.get(kind, 0) + 1
    print(f"{len(every)} frames and {len(damaged)} mutated ones, {kinds}, {bad} read otherwise")
    return 1 if bad or min(kinds.get(k, 0) for k in ("header", "refused", "malformed")) < 100 else 0


folder = pathlib.Path(sys.argv[1])
sys.exit(agree(folder, sys.argv[3]) if sys.argv[2:3] == ["--agree"] else check(folder))
