#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the golden vectors of proto/vectors: the bytes of every message and variant, with what they mean.

    make_vectors.py           write the vectors that do not exist yet, leave the others alone
    make_vectors.py --check   exit 1 when one is missing or differs from what this script would write
    make_vectors.py --force   write all anew: only before a release, for a vector that was never right

A released vector is never changed: that every later reader still reads it is the promise of the protocol.
Packing follows messages.toml; the two readers that must agree (the C++ codec and tests/proto/decoder.py) do not
use this script.
"""
import json
import pathlib
import struct
import sys

from generate import load_table

HERE = pathlib.Path(__file__).resolve().parent
TABLE = load_table()
CODES = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q", "i32": "i", "i64": "q"}
TOP = {"u16": 0xfffe, "u32": 0xfffffffe, "u64": 0xfffffffffffffffe, "i32": 0x7fffffff, "i64": 0x7fffffffffffffff}
REPLY, EVENT = 0x8000, 0x4000
STRUCTS = {s["name"]: s["fields"] for s in TABLE["struct"]}
for m in TABLE["message"]:
    STRUCTS[m["name"]] = m["fields"]
    if "reply" in m:
        STRUCTS[m["name"] + "_reply"] = m["reply"]
STRUCTS |= {r["name"]: r["fields"] for r in TABLE["record"]}
STRUCTS |= {e["name"] + "_event": e["fields"] for e in TABLE["event"]}
VECTORS = {}


def pack(name, values):
    """values by field; what is absent is zero. Returns the bytes and the decoded form with every field."""
    data, decoded, rest = b"", {}, dict(values)
    for kind, field, _ in STRUCTS[name]:
        value = rest.pop(field, None)
        if kind.startswith("u8["):
            value = value or bytes(int(kind[3:-1]))
            data, decoded[field] = data + value, value.hex()
        elif kind in CODES:
            value = value or 0
            data, decoded[field] = data + struct.pack("<" + CODES[kind], value), value
        else:
            inner, decoded[field] = pack(kind, value or {})
            data += inner
    assert not rest, (name, rest)
    return data, decoded


def largest(name):
    """Every field at the edge of its range (not the lengths, not what must be zero)."""
    values = {}
    for kind, field, _ in STRUCTS[name]:
        if field.startswith("reserved") or field.endswith("_len") or field in ("count", "element_size", "outcome"):
            continue
        if kind.startswith("u8["):
            values[field] = b"\xff" * int(kind[3:-1])
        elif kind in CODES:
            values[field] = TOP[kind]
        else:
            values[field] = largest(kind)
    return values


def part(name, values, texts, size):
    """One struct and its texts. `size` cuts (an older sender) or extends with zeros (a newer one)."""
    texts = {t: texts.get(t, "") for t in text_names(name)}
    data, decoded = pack(name, values | {t + "_len": len(v.encode()) for t, v in texts.items()})
    if size is not None and size < len(data):
        assert not any(data[size:]), (name, size)
    data = data[:size] if size is not None else data
    return data.ljust(size or 0, b"\0"), decoded, texts


def text_names(name):
    for m in TABLE["message"]:
        if name == m["name"]:
            return m.get("texts", [])
        if name == m["name"] + "_reply":
            return m.get("reply_texts", [])
    for r in TABLE["record"]:
        if name == r["name"]:
            return r.get("texts", [])
    return next((e.get("texts", []) for e in TABLE["event"] if name == e["name"] + "_event"), [])


def packet(op, body, fixed, fds=0, tag=7, status=0, flags=0):
    head = {"size": 24 + len(body), "op": op, "flags": flags, "tag": tag, "status": status, "n_fds": fds, "fixed": fixed}
    return pack("header", head)[0] + body, head


def save(name, data, decoded, request, fds=(), table=None):
    assert name not in VECTORS, name
    vector = {"name": name, "since": 1, "direction": "request" if request else "from_broker"}
    vector |= {"table": table} if table else {}
    VECTORS[name] = vector | {"fds": list(fds), "hex": data.hex(), "decoded": decoded}


def shorter(data):
    """The same packet without its last byte, with a size that says so."""
    return struct.pack("<I", len(data) - 1) + data[4:-1]


# ---- plain messages ----

def plain(name, op, kind, shape, values, texts, fds=(), size=None, **header):
    data, decoded, texts = part(shape, values, texts, size)
    rest = "".join(texts.values()).encode()
    raw, head = packet(op, data + rest, len(data), len(fds), **header)
    out = {"header": head, "message": name, "kind": kind, "fixed": decoded}
    return raw, out | ({"texts": texts} if text_names(shape) else {}), len(data)


def plain_family(name, op, kind, shape, values, texts, cut, fds=(), **header):
    request = kind == "request"
    prefix = f"{name}-{kind}"
    raw, out, size = plain(name, op, kind, shape, values, texts, fds, **header)
    save(f"{prefix}-valid", raw, out, request, fds)
    save(f"{prefix}-short", shorter(raw), {"malformed": "fixed"} if len(raw) == 24 + size else {"refused": "invalid"}, request, fds)
    few = dict(list(values.items())[:cut[1]])
    save(f"{prefix}-minimal", *plain(name, op, kind, shape, few, {}, fds, size=cut[0], **header)[:2], request, fds)
    long = {t: (t[0] * 96) for t in texts}
    save(f"{prefix}-maximal", *plain(name, op, kind, shape, largest(shape), long, fds, **header)[:2], request, fds)
    save(f"{prefix}-future", *plain(name, op, kind, shape, values, texts, fds, size=size + 16, **header)[:2], request, fds)
    raw = bytearray(plain(name, op, kind, shape, values, texts, fds, size=size + 16, **header)[0])
    raw[24 + size + 11] = 1
    save(f"{prefix}-tail", bytes(raw), {"refused": "too_new"}, request, fds)


# ---- batches ----

def batch(name, op, kind, shape, items, fds=(), size=None, count=None, element_size=None, **header):
    """items: (values, texts, detail); detail is (refusal, sentence) or None."""
    elements, rest, out = b"", b"", []
    for values, texts, detail in items:
        tail = b""
        if detail:
            blob, refusal = pack("refusal", detail[0])
            tail = blob + detail[1].encode()
            values = values | {"outcome": values["outcome"] | {"detail_len": len(tail)}}
        data, decoded, texts = part(shape, values, texts, size)
        row = {"fields": decoded} | ({"texts": texts} if text_names(shape) else {})
        row |= {"detail": {"refusal": refusal, "sentence": detail[1]}} if detail else {}
        elements, rest = elements + data, rest + tail + "".join(texts.values()).encode()
        out.append(row)
    width = len(elements) // len(items)
    fixed, decoded = pack("batch", {"count": len(items) if count is None else count,
                                    "element_size": width if element_size is None else element_size})
    raw, head = packet(op, fixed + elements + rest, 8, len(fds), **header)
    return raw, {"header": head, "message": name, "kind": kind, "fixed": decoded, "elements": out}, width


def batch_family(name, op, kind, shape, items, cut, fds=(), most=3, **header):
    request = kind == "request"
    prefix = f"{name}-{kind}"
    raw, out, width = batch(name, op, kind, shape, items, fds, **header)
    save(f"{prefix}-valid", raw, out, request, fds)
    save(f"{prefix}-short", shorter(raw), {"refused": "invalid"}, request, fds)
    first = dict(list(items[0][0].items())[:cut[1]])
    save(f"{prefix}-minimal", *batch(name, op, kind, shape, [(first, {}, None)], fds, size=cut[0], **header)[:2], request, fds)
    values = largest(shape)
    if kind == "reply":
        values["outcome"] = {"status": 0, "fd_index": 0xffff}
    long = {t: t[0] * 96 for t in text_names(shape)}
    save(f"{prefix}-maximal", *batch(name, op, kind, shape, [(values, long, None)] * most, **header)[:2], request)
    save(f"{prefix}-future", *batch(name, op, kind, shape, items, fds, size=width + 8, **header)[:2], request, fds)
    raw = bytearray(batch(name, op, kind, shape, items, fds, size=width + 8, **header)[0])
    raw[24 + 8 + width + 8 - 1] = 0x80
    save(f"{prefix}-tail", bytes(raw), {"refused": "too_new"}, request, fds)


def fine(fd_index=0xffff):
    return {"status": 0, "fd_index": fd_index}


KV = {"id": 3, "generation": 1}
REFERENCE = {"counter": 17, "creator": 1}
FORK = {"counter": 18, "creator": 1}
WEIGHTS = {"id": 0x1d2, "generation": 4}
TOKEN = bytes(range(0x10, 0x20))
SECRET = bytes(range(0xa0, 0xb0))
EPOCH = 0x5eed0123456789ab
GIB = 1 << 30
LIMIT = ({"slot": 1, "scope": 3, "scope_id": 2, "limit": 54 * GIB, "used": 52 * GIB, "asked": 8 * GIB},
         "limit: bytes of group 'train' (uid 1000): asked 8.0 GiB, used 52.0 of 54.0 GiB; "
         "raise limits.group.train.bytes or release regions")
MISSING = ({}, "no region 'kv' in group 'train', or not for this caller")


def requests():
    plain_family("hello", 1, "request", "hello",
                 {"version_min": 1, "version_max": 1, "pid": 4242, "features": 0x3f, "start_time": 987654321,
                  "fork_session": 5, "fork_secret": SECRET, "group_token": TOKEN},
                 {"library": "shmbroker 0.1.0", "group": "train"}, cut=(4, 2))
    batch_family("create", 2, "request", "create",
                 [({"group": 0, "length": 64 << 20, "keep": 3600 * 10**9, "flags": 0x10, "rights": 0xf}, {"name": "weights"}, None),
                  ({"group": 2, "length": 1, "keep": -1, "flags": 0x13}, {"name": "kv.cache-0_a"}, None),
                  ({"length": (1 << 47) - 1}, {}, None)], cut=(16, 2))
    batch_family("attach", 3, "request", "attach",
                 [({"by": 1, "rights": 1, "region": KV}, {}, None),
                  ({"by": 2, "rights": 3, "flags": 2, "owner_uid": 1000}, {"group": "train", "name": "kv"}, None),
                  ({"by": 2, "rights": 1, "flags": 1}, {"group": "#17", "name": "weights"}, None),
                  ({"by": 3, "rights": 1, "ticket": TOKEN}, {}, None)], cut=(32, 5))
    batch_family("release", 4, "request", "release",
                 [({"region": KV, "count": 1, "flags": 1}, {}, None), ({"region": WEIGHTS, "flags": 2}, {}, None)],
                 cut=(12, 1), most=253, flags=2)
    batch_family("ready", 5, "request", "ready", [({"region": KV, "populated": 64 << 20, "page_kind": 2}, {}, None)],
                 cut=(12, 1), flags=2)
    plain_family("publish", 6, "request", "publish", {"region": KV}, {}, cut=(12, 1))
    plain_family("ticket_create", 7, "request", "ticket_create",
                 {"region": KV, "rights": 1, "uses": 3, "lifetime": 60 * 10**9, "flags": 1, "session": 9}, {}, cut=(20, 2))
    batch_family("inherit", 8, "request", "inherit", [({"region": KV, "rights": 3, "count": 2}, {}, None), ({"region": WEIGHTS}, {}, None)],
                 cut=(12, 1))
    plain_family("group_create", 9, "request", "group_create",
                 {"flags": 3, "limit_regions": 100, "keep": 600 * 10**9, "limit_bytes": 8 * GIB}, {"name": "train"}, cut=(4, 1))
    plain_family("group_join", 10, "request", "group_join", {"token": TOKEN, "owner_uid": 1000, "flags": 3}, {"name": "train"}, cut=(16, 1))
    plain_family("group_leave", 11, "request", "group_leave", {"group": 2}, {}, cut=(8, 1))
    plain_family("group_end", 12, "request", "group_end", {"group": 0, "flags": 3}, {"name": "train"}, cut=(12, 2))
    plain_family("watch", 13, "request", "watch",
                 {"kind": 2, "events": 0x3f, "owner_uid": 1000, "flags": 1, "region": KV, "group": 2, "watch": 9},
                 {"group": "train", "name": "kv"}, cut=(8, 2))
    plain_family("list", 14, "request", "list",
                 {"table": 1, "flags": 3, "cursor": 12, "group": 2, "region": KV, "owner_uid": 1000},
                 {"group": "train", "name": "kv"}, cut=(4, 1))
    plain_family("status", 15, "request", "status", {}, {}, cut=(0, 0))
    plain_family("pool_create", 16, "request", "pool_create",
                 {"group": 2, "keep": 60 * 10**9, "flags": 1, "slots": 64, "lanes": 8, "queues": 4, "segments": 2, "lane_bytes": 1 << 20},
                 {"name": "frames"}, cut=(20, 3))
    plain_family("pool_join", 17, "request", "pool_join", {"pool": 0, "flags": 6, "owner_uid": 1000},
                 {"group": "train", "name": "frames"}, cut=(8, 1))
    plain_family("pool_leave", 18, "request", "pool_leave", {"pool": 21}, {}, cut=(8, 1))
    plain_family("pool_segment", 19, "request", "pool_segment", {"pool": 21, "region": KV, "slot_size": 4096, "slots": 64, "slots_limit": 256}, {}, cut=(24, 2))
    plain_family("queue_open", 20, "request", "queue_open",
                 {"pool": 21, "kind": 2, "flags": 0x12, "cells": 256, "cell_size": 64}, {"name": "jobs"}, cut=(8, 1))
    plain_family("queue_close", 21, "request", "queue_close", {"pool": 21, "queue": 3, "serial": 7, "flags": 5}, {}, cut=(16, 3))
    batch_family("lane_through", 22, "request", "lane_through",
                 [({"pool": 21, "lane": 5, "serial": 9, "end": 2}, {}, None), ({"pool": 21, "lane": 6, "serial": 10, "end": 1}, {}, None)],
                 cut=(16, 3), most=253, flags=2)
    batch_family("queue_hold", 23, "request", "queue_hold",
                 [({"pool": 21, "lane": 5, "serial": 9, "region": KV}, {}, None),
                  ({"pool": 21, "lane": 5, "serial": 9, "region": WEIGHTS, "flags": 1}, {}, None)], cut=(28, 4))
    plain_family("pool_doorbell", 24, "request", "pool_doorbell", {"pool": 21, "flags": 2, "participant": 3, "life": 4}, {}, cut=(16, 3))
    plain_family("ticket_revoke", 60, "request", "ticket_revoke", {"ticket": TOKEN}, {}, cut=(0, 0))
    plain_family("tickets_release", 61, "request", "tickets_release",
                 {"region": KV, "group": 2, "cursor": 13, "owner_uid": 1000, "flags": 3}, {}, cut=(16, 1))
    plain_family("shelf_empty", 64, "request", "shelf_empty", {"bytes": 40 << 20}, {}, cut=(0, 0))
    plain_family("world_join", 25, "request", "world_join", {"port": 29500, "rank": 1, "world_size": 4},
                 {"address": "localhost:29500", "name": "worker1"}, cut=(8, 2))
    plain_family("world_leave", 26, "request", "world_leave", {"world": 31}, {}, cut=(8, 1))
    plain_family("world_pool", 27, "request", "world_pool", {"world": 31, "pool": 21}, {}, cut=(8, 1))
    batch_family("ref_create", 28, "request", "ref_create",
                 [({"world": 31, "owner": 2, "user": 0xffffffff, "state": 1}, {}, None),
                  ({"world": 31, "counter": 7, "owner": 1, "user": 3, "state": 3, "flags": 1, "owner_life": 2, "user_life": 5}, {}, None)], cut=(20, 2))
    batch_family("ref_fork", 29, "request", "ref_fork",
                 [({"world": 31, "reference": REFERENCE, "user": 3}, {}, None), ({"world": 31, "reference": REFERENCE, "user": 2, "user_life": 5}, {}, None)],
                 cut=(20, 2))
    batch_family("ref_take", 30, "request", "ref_take", [({"world": 31, "fork": FORK, "flags": 2}, {}, None)], cut=(20, 2))
    batch_family("ref_release", 31, "request", "ref_release",
                 [({"world": 31, "fork": FORK}, {}, None), ({"world": 31, "fork": REFERENCE}, {}, None)], cut=(20, 2), most=253, flags=2)
    batch_family("ref_settle", 32, "request", "ref_settle",
                 [({"world": 31, "reference": REFERENCE, "state": 3}, {}, None),
                  ({"world": 31, "reference": FORK, "state": 4}, {"error": "ValueError: expected error"}, None)], cut=(20, 2))
    plain_family("ref_ask", 33, "request", "ref_ask", {"world": 31, "reference": REFERENCE, "flags": 2}, {}, cut=(20, 2))


def replies():
    plain_family("hello", REPLY | 1, "reply", "hello_reply",
                 {"version": 1, "mode": 2, "broker_uid": 1000, "uid": 1000, "max_message": 65536, "features": 0x3f,
                  "epoch": EPOCH, "session": 5, "group": 2, "fork_secret": SECRET, "max_batch": 253},
                 {"broker": "shmbrokerd 0.1.0"}, cut=(24, 6))
    batch_family("create", REPLY | 2, "reply", "create_reply",
                 [({"outcome": fine(0), "region": KV, "bytes": 64 << 20, "group": 2, "flags": 1, "rights": 0xf}, {}, None),
                  ({"outcome": {"status": 8, "fd_index": 0xffff}}, {}, LIMIT),
                  ({"outcome": fine(1), "region": WEIGHTS, "bytes": 4096, "group": 2, "rights": 0xf}, {}, None)],
                 cut=(24, 2), fds=("memfd O_RDWR", "memfd O_RDWR"))
    batch_family("attach", REPLY | 3, "reply", "attach_reply",
                 [({"outcome": fine(0), "region": KV, "length": 5000, "bytes": 8192, "group": 2, "rights": 1, "state": 4,
                    "page_kind": 2, "flags": 7}, {}, None), ({"outcome": {"status": 6, "fd_index": 0xffff}}, {}, MISSING)],
                 cut=(24, 2), fds=("memfd O_RDONLY",))
    batch_family("release", REPLY | 4, "reply", "release_reply",
                 [({"outcome": fine()}, {}, None), ({"outcome": {"status": 13, "fd_index": 0xffff}}, {}, ({}, "region 1d2: generation 4 is gone"))],
                 cut=(6, 1), most=253)
    plain_family("publish", REPLY | 6, "reply", "publish_reply", {"region": KV, "rights": 1}, {}, cut=(20, 2), fds=("memfd O_RDONLY",))
    plain_family("ticket_create", REPLY | 7, "reply", "ticket_create_reply", {"ticket": TOKEN, "expires": 123456789012345}, {}, cut=(16, 1))
    batch_family("inherit", REPLY | 8, "reply", "inherit_reply",
                 [({"outcome": fine(), "rights": 3}, {}, None), ({"outcome": {"status": 9, "fd_index": 0xffff}}, {}, ({}, "the lease has no right map_write"))],
                 cut=(6, 1))
    plain_family("group_create", REPLY | 9, "reply", "group_create_reply", {"group": 2, "token": TOKEN}, {}, cut=(8, 1))
    plain_family("group_join", REPLY | 10, "reply", "group_join_reply", {"group": 2}, {}, cut=(8, 1))
    plain_family("group_leave", REPLY | 11, "reply", "group_leave_reply", {"group": 0}, {}, cut=(0, 0))
    plain_family("group_end", REPLY | 12, "reply", "group_end_reply", {"members": 3, "regions": 2, "bytes_freed": 10 * GIB}, {}, cut=(8, 2))
    plain_family("watch", REPLY | 13, "reply", "watch_reply", {"watch": 9, "state": 5}, {}, cut=(12, 2))
    plain_family("status", REPLY | 15, "reply", "status_reply",
                 {"mode": 2, "engine": 2, "epoch": EPOCH, "features": 0x3f, "uptime": 11520 * 10**9, "bytes": 10 * GIB,
                  "bytes_limit": 54 * GIB, "bytes_cached": GIB, "requests": 1234567, "refusals": 12, "reclaims": 3,
                  "bytes_reclaimed": 2 * GIB, "pid": 4000, "broker_uid": 1000, "regions": 7, "sessions": 5, "groups": 2,
                  "leases": 11, "tickets": 1, "watches": 2, "descriptors": 40, "descriptors_limit": 20000,
                  "descriptors_reserved": 64, "in_flight": 1},
                 {"version": "0.1.0", "kernel": "6.18.1", "engine": "io_uring: all opcodes found", "losses": ""}, cut=(24, 4))

    areas = ("memfd O_RDONLY", "memfd O_RDWR")
    joined = {"pool": 21, "group": 2, "directory_bytes": 12288, "control_bytes": 1 << 20, "participant": 3, "life": 4}
    plain_family("pool_create", REPLY | 16, "reply", "pool_create_reply", joined, {}, cut=(32, 4), fds=areas)
    plain_family("pool_join", REPLY | 17, "reply", "pool_join_reply", joined, {}, cut=(32, 4), fds=areas)
    plain_family("pool_leave", REPLY | 18, "reply", "pool_leave_reply", {"unread": 2}, {}, cut=(4, 1))
    plain_family("pool_segment", REPLY | 19, "reply", "pool_segment_reply", {"segment": 1, "first_slot": 64}, {}, cut=(4, 1))
    plain_family("queue_open", REPLY | 20, "reply", "queue_open_reply", {"queue": 3, "serial": 7, "lane": 5, "lane_serial": 9}, {}, cut=(8, 2))
    plain_family("queue_close", REPLY | 21, "reply", "queue_close_reply", {"readers": 1, "writers": 2}, {}, cut=(4, 1))
    batch_family("queue_hold", REPLY | 23, "reply", "queue_hold_reply",
                 [({"outcome": fine()}, {}, None), ({"outcome": {"status": 6, "fd_index": 0xffff}}, {}, MISSING)], cut=(6, 1), most=253)
    plain_family("pool_doorbell", REPLY | 24, "reply", "pool_doorbell_reply", {"participant": 3, "life": 4}, {}, cut=(4, 1), fds=("socket",))
    plain_family("ticket_revoke", REPLY | 60, "reply", "ticket_revoke_reply", {"uses_left": 2}, {}, cut=(4, 1))
    plain_family("tickets_release", REPLY | 61, "reply", "tickets_release_reply",
                 {"next": 13, "bytes_freed": 10 * GIB, "tickets": 64, "regions": 3, "held": 2}, {}, cut=(8, 1))
    plain_family("shelf_empty", REPLY | 64, "reply", "shelf_empty_reply", {"bytes": 40 << 20, "pending": 64 << 20}, {}, cut=(8, 1))
    plain_family("world_join", REPLY | 25, "reply", "world_join_reply",
                 {"world": 31, "group": 2, "pool": 21, "present": 4, "flags": 1, "life": 5}, {}, cut=(16, 2))
    plain_family("world_leave", REPLY | 26, "reply", "world_leave_reply", {"present": 3, "forks": 2}, {}, cut=(4, 1))
    plain_family("world_pool", REPLY | 27, "reply", "world_pool_reply", {"pool": 21}, {}, cut=(8, 1))
    gone = ({"outcome": {"status": 6, "fd_index": 0xffff}}, {}, ({}, "no such fork of this worker"))
    batch_family("ref_create", REPLY | 28, "reply", "ref_create_reply",
                 [({"outcome": fine(), "reference": REFERENCE, "fork": FORK}, {}, None), gone], cut=(20, 2))
    batch_family("ref_fork", REPLY | 29, "reply", "ref_fork_reply", [({"outcome": fine(), "fork": FORK}, {}, None), gone], cut=(20, 2))
    batch_family("ref_take", REPLY | 30, "reply", "ref_take_reply",
                 [({"outcome": fine(), "reference": REFERENCE, "owner": 2, "state": 3, "owner_life": 5}, {}, None), gone], cut=(20, 2))
    batch_family("ref_release", REPLY | 31, "reply", "ref_release_reply", [({"outcome": fine()}, {}, None), gone], cut=(6, 1), most=253)
    batch_family("ref_settle", REPLY | 32, "reply", "ref_settle_reply",
                 [({"outcome": fine(), "state": 4, "users": 2}, {}, None), gone], cut=(12, 2))
    plain_family("ref_ask", REPLY | 33, "reply", "ref_ask_reply",
                 {"state": 4, "owner": 2, "users": 3, "in_flight": 1, "created": 10**12}, {"error": "ValueError: expected error"}, cut=(8, 2))


RECORDS = {
    "regions": ("region_record",
                {"region": KV, "length": 5000, "bytes": 8192, "touched": 4096, "group": 2, "owner_uid": 1000, "state": 2, "page_kind": 1,
                 "flags": 0x13, "holders": 2, "writers": 1, "tickets": 1, "creator_pid": 4242, "created": 10**12, "keep": -1, "freed_at": 0,
                 "queues": 3, "pool": 21},
                {"group": "train", "name": "kv"}),
    "groups": ("group_record",
               {"group": 2, "bytes": 10 * GIB, "bytes_limit": 54 * GIB, "bytes_peak": 20 * GIB, "bytes_cached": GIB, "owner_uid": 1000,
                "flags": 3, "members": 4, "heirs": 1, "supervisors": 2, "regions": 7, "regions_limit": 100, "created": 10**12, "keep": 3600 * 10**9},
               {"name": "train"}),
    "sessions": ("session_record",
                 {"session": 5, "group": 2, "uid": 1000, "pid": 4242, "state": 1, "leases": 3, "watches": 2, "in_flight": 1,
                  "connected": 10**12, "death_by": 3}, {"library": "shmbroker 0.1.0"}),
    "leases": ("lease_record", {"region": KV, "session": 5, "uid": 1000, "pid": 4242, "rights": 0xf, "count": 2, "state": 1, "since": 10**12}, {}),
    "tickets": ("ticket_record", {"region": KV, "group": 2, "maker_uid": 1000, "rights": 1, "uses_left": 3, "maker_pid": 4242,
                                  "expires": 2 * 10**12, "maker": 5}, {}),
    "uids": ("uid_record", {"bytes": 10 * GIB, "bytes_limit": 54 * GIB, "uid": 1000, "sessions": 5, "groups": 2, "regions": 7, "leases": 11,
                            "tickets": 3, "watches": 2, "tickets_left": 1, "tickets_limit": 16384, "session_tickets": 4096}, {}),
    "pools": ("pool_record",
              {"pool": 21, "group": 2, "bytes": GIB, "control_bytes": 1 << 20, "owner_uid": 1000, "flags": 8, "slots": 64, "slots_limit": 128,
               "slots_used": 5, "slots_high": 9, "segments": 1, "participants": 3, "leaving": 1, "queues": 2, "lanes": 4, "deaths": 1,
               "created": 10**12, "keep": -1}, {"group": "train", "name": "frames"}),
    "queues": ("queue_record",
               {"pool": 21, "group": 2, "queue": 3, "serial": 7, "kind": 2, "flags": 0x10, "cells": 256, "cell_size": 64, "readers": 2,
                "writers": 1, "lanes": 1, "closed": 0, "depth": 12, "lag": 3, "lost": 1, "regions": 2, "owner_uid": 1000, "deaths": 1,
                "in_regions": 5},
               {"pool": "frames", "name": "jobs"}),
    "participants": ("participant_record",
                     {"pool": 21, "session": 5, "participant": 3, "life": 4, "state": 2, "pid": 4242, "uid": 1000, "slots_held": 2,
                      "reading": 1, "writing": 1, "unread": 7}, {}),
    "worlds": ("world_record",
               {"world": 31, "group": 2, "pool": 21, "owner_uid": 1000, "port": 29500, "world_size": 4, "present": 3, "died": 1, "flags": 1,
                "references": 12, "forks": 20, "created": 10**12, "replaced": 2}, {"address": "localhost:29500"}),
    "workers": ("worker_record",
                {"world": 31, "session": 5, "rank": 1, "state": 1, "pid": 4242, "uid": 1000, "owned": 12, "forks": 7, "life": 5,
                 "participant": 3, "participant_life": 4}, {"name": "worker1"}),
    "references": ("reference_record",
                   {"world": 31, "reference": REFERENCE, "owner": 2, "state": 4, "users": 3, "in_flight": 1, "user_ranks": 0xb,
                    "created": 10**12}, {"error": "ValueError: expected error"}),
}


def list_page(items, shape, size=None, head_size=None, count=None, element_size=None):
    rest, out, width = b"", [], len(pack(shape, {})[0]) if size is None else size
    for values, texts in items:
        data, decoded, texts = part(shape, values, texts, size)
        rest += data + "".join(texts.values()).encode()
        out.append({"fields": decoded} | ({"texts": texts} if text_names(shape) else {}))
    head = {"next": 13, "total_bytes": 10 * GIB, "total_count": 40, "count": len(items) if count is None else count,
            "element_size": width if element_size is None else element_size}
    fixed, decoded, _ = part("list_reply", head, {}, head_size)
    raw, header = packet(REPLY | 14, fixed + rest, len(fixed))
    return raw, {"header": header, "message": "list", "kind": "reply", "fixed": decoded, "records": out}, width, len(fixed)


def lists():
    for table, (shape, values, texts) in RECORDS.items():
        empty = dict(list(values.items())[:1])
        items = [(values, texts), (empty, {}), (values, texts)]
        raw, out, width, fixed = list_page(items, shape)
        save(f"list-{table}-valid", raw, out, False, table=table)
        save(f"list-{table}-short", shorter(raw), {"refused": "invalid"}, False, table=table)
        save(f"list-{table}-minimal", *list_page([(empty, {})], shape, size=16)[:2], False, table=table)
        most = [(largest(shape), {t: t[0] * 96 for t in texts})] * 4
        save(f"list-{table}-maximal", *list_page(most, shape)[:2], False, table=table)
        save(f"list-{table}-future", *list_page(items, shape, size=width + 8, head_size=fixed + 8)[:2], False, table=table)
        raw = bytearray(list_page(items, shape, size=width + 8)[0])
        raw[24 + fixed + width] = 1
        save(f"list-{table}-tail", bytes(raw), {"refused": "too_new"}, False, table=table)
    save("list-empty-page", *list_page([], "uid_record")[:2], False, table="uids")
    shape, values, texts = RECORDS["regions"]
    for name, numbers in {"count": {"count": 2}, "count-wraps": {"count": 0xffff, "element_size": 0xffff},
                          "zero-element": {"element_size": 0}}.items():
        save(f"list-hostile-{name}", list_page([(values, texts)], shape, **numbers)[0], {"refused": "invalid"}, False, table="regions")


def events():
    base = {"sequence": 41, "watch": 9}
    for op, name in ((1, "region_ready"), (2, "region_published"), (3, "region_gone")):
        plain_family(name, EVENT | op, "event", name + "_event", base | {"region": KV}, {}, cut=(16, 2), tag=0)
    plain_family("name_appeared", EVENT | 4, "event", "name_appeared_event", base | {"region": KV}, {"name": "kv"}, cut=(16, 2), tag=0)
    plain_family("group_ended", EVENT | 5, "event", "group_ended_event", base | {"group": 2, "bytes_freed": 10 * GIB}, {}, cut=(24, 3), tag=0)
    plain_family("reclaim", EVENT | 6, "event", "reclaim_event",
                 base | {"group": 2, "bytes": 10 * GIB, "uid": 1000, "pid": 4242, "regions": 7, "how": 2, "code": 9},
                 {"text": "pid 4242 (uid 1000) was killed by signal 9: 7 regions, 10.0 GiB freed"}, cut=(16, 2), tag=0)
    plain_family("pool_changed", EVENT | 8, "event", "pool_changed_event", {"sequence": 41, "watch": 0, "pool": 21}, {}, cut=(16, 2), tag=0)
    plain_family("give_up", EVENT | 9, "event", "give_up_event", {"sequence": 41, "watch": 0, "region": KV}, {}, cut=(28, 2), tag=0)
    of_world = {"sequence": 41, "watch": 0, "world": 31}
    plain_family("world_changed", EVENT | 16, "event", "world_changed_event", of_world | {"change": 2, "rank": 3, "present": 4, "life": 5}, {}, cut=(24, 3), tag=0)
    plain_family("ref_unused", EVENT | 17, "event", "ref_unused_event", of_world | {"reference": REFERENCE}, {}, cut=(24, 3), tag=0)
    plain_family("ref_changed", EVENT | 18, "event", "ref_changed_event", of_world | {"reference": REFERENCE, "state": 3, "owner": 2}, {}, cut=(24, 3), tag=0)
    plain_family("gap", EVENT | 7, "event", "gap_event", {"sequence": 41, "watch": 0, "lost": 3}, {}, cut=(24, 3), tag=0)


UUID = bytes(range(0xc0, 0xd0))
HANDLE = bytes(range(0x40, 0x80))


def gpu_requests():
    plain_family("gpu_device", 40, "request", "gpu_device", {"uuid": UUID, "flags": 1}, {"pci": "0000:65:00.0"}, cut=(16, 1), fds=("/dev/nvidia3",))
    exports = ("/dev/nvidiactl",) * 4 + ("memfd sealed",)
    batch_family("gpu_publish", 41, "request", "gpu_publish",
                 [({"group": 0, "bytes": 64 << 20, "chunk_bytes": 32 << 20, "granularity": 2 << 20, "keep": -1, "uuid": UUID,
                    "manifest_bytes": 5000, "kind": 1, "flags": 0xa1, "rights": 0xf, "chunks": 2, "driver": 13000}, {"name": "weights"}, None),
                  ({"bytes": 1000, "uuid": UUID, "kind": 2, "offset": 512, "allocation": 2 << 20, "handle": HANDLE}, {}, None)],
                 cut=(16, 2), fds=exports)
    plain_family("gpu_chunks", 42, "request", "gpu_chunks", {"region": WEIGHTS, "first": 126, "count": 2}, {}, cut=(16, 1),
                 fds=("/dev/nvidiactl",) * 4)
    batch_family("gpu_open", 43, "request", "gpu_open",
                 [({"by": 1, "rights": 1, "region": WEIGHTS}, {}, None),
                  ({"by": 2, "rights": 3, "flags": 5, "owner_uid": 1000}, {"group": "train", "name": "weights"}, None),
                  ({"by": 3, "rights": 1, "ticket": TOKEN}, {}, None)], cut=(32, 5))
    plain_family("gpu_more", 44, "request", "gpu_more", {"region": WEIGHTS, "first": 253, "count": 7}, {}, cut=(16, 1))
    batch_family("gpu_report", 45, "request", "gpu_report",
                 [({"region": WEIGHTS, "what": 1}, {}, None), ({"region": KV, "what": 2, "code": 304}, {}, None),
                  ({"what": 4, "code": 999, "uuid": UUID}, {}, None)], cut=(20, 2), most=253, flags=2)
    batch_family("gpu_retire", 46, "request", "gpu_retire", [({"region": KV}, {}, None), ({"region": WEIGHTS}, {}, None)], cut=(12, 1), most=253)
    plain_family("gpu_timeline", 47, "request", "gpu_timeline", {"group": 2, "keep": 60 * 10**9, "flags": 1, "words": 64}, {"name": "steps"}, cut=(8, 1))
    batch_family("gpu_pinned", 48, "request", "gpu_pinned", [({"region": KV}, {}, None), ({"region": WEIGHTS, "flags": 1}, {}, None)],
                 cut=(12, 1), most=253)


def gpu_replies():
    plain_family("gpu_device", REPLY | 40, "reply", "gpu_device_reply", {"watch": 12, "hold": 1, "minor": 3}, {}, cut=(8, 1))
    bad = ({"outcome": {"status": 48, "fd_index": 0xffff}}, {}, ({}, "chunk 0: keeper and share are one open file; export the memory twice"))
    batch_family("gpu_publish", REPLY | 41, "reply", "gpu_publish_reply",
                 [({"outcome": fine(), "region": WEIGHTS, "bytes": 64 << 20, "group": 2, "rights": 0xd, "state": 1, "chunks": 2}, {}, None), bad],
                 cut=(24, 2))
    plain_family("gpu_chunks", REPLY | 42, "reply", "gpu_chunks_reply", {"state": 1, "chunks": 128}, {}, cut=(4, 1))
    shares = ("/dev/nvidiactl", "/dev/nvidiactl", "memfd O_RDONLY")
    batch_family("gpu_open", REPLY | 43, "reply", "gpu_open_reply",
                 [({"outcome": fine(0), "region": WEIGHTS, "bytes": 64 << 20, "chunk_bytes": 32 << 20, "granularity": 2 << 20, "group": 2,
                    "manifest_bytes": 5000, "uuid": UUID, "kind": 1, "state": 1, "rights": 1, "flags": 0xa1, "chunks": 2, "sent": 2,
                    "driver": 13000, "exporter_pid": 4242, "manifest_fd": 2}, {}, None),
                  ({"outcome": fine(), "region": KV, "bytes": 1000, "offset": 512, "allocation": 2 << 20, "uuid": UUID, "kind": 2, "state": 1,
                    "rights": 1, "manifest_fd": 0xffff, "handle": HANDLE}, {}, None),
                  ({"outcome": {"status": 6, "fd_index": 0xffff}}, {}, MISSING)], cut=(24, 2), fds=shares)
    plain_family("gpu_more", REPLY | 44, "reply", "gpu_more_reply", {"first": 253, "count": 2}, {}, cut=(4, 1), fds=shares[:2])
    batch_family("gpu_report", REPLY | 45, "reply", "gpu_report_reply",
                 [({"outcome": fine(), "state": 6, "regions": 1}, {}, None), ({"outcome": {"status": 6, "fd_index": 0xffff}}, {}, MISSING)],
                 cut=(12, 2), most=253)
    batch_family("gpu_retire", REPLY | 46, "reply", "gpu_retire_reply",
                 [({"outcome": fine(), "users": 2}, {}, None), ({"outcome": {"status": 6, "fd_index": 0xffff}}, {}, MISSING)],
                 cut=(12, 2), most=253)
    plain_family("gpu_timeline", REPLY | 47, "reply", "gpu_timeline_reply", {"region": KV, "bytes": 4096, "group": 2}, {}, cut=(12, 1),
                 fds=("memfd O_RDWR",))
    batch_family("gpu_pinned", REPLY | 48, "reply", "gpu_pinned_reply",
                 [({"outcome": fine(), "pins": 1}, {}, None), ({"outcome": {"status": 6, "fd_index": 0xffff}}, {}, MISSING)],
                 cut=(12, 2), most=253)


GPU_RECORD = {"region": WEIGHTS, "bytes": 64 << 20, "chunk_bytes": 32 << 20, "group": 2, "uuid": UUID, "owner_uid": 1000, "kind": 1, "state": 3,
              "flags": 0x22, "chunks": 2, "hold": 2, "minor": 3, "driver": 13000, "exporter_pid": 4242, "exporter": 1, "importers": 2,
              "leaving": 1, "tickets": 1, "queues": 1, "code": -1, "publish_flags": 0x21, "created": 10**12, "keep": -1, "freed_at": 0}
RECORDS["gpu_regions"] = ("gpu_record", GPU_RECORD, {"group": "train", "name": "weights"})


def gpu_events():
    base = {"sequence": 41, "watch": 9, "region": WEIGHTS}
    plain_family("gpu_state", EVENT | 24, "event", "gpu_state_event", base | {"state": 3, "kind": 1, "code": 0, "pid": 4242}, {}, cut=(28, 2), tag=0)
    plain_family("gpu_drained", EVENT | 25, "event", "gpu_drained_event", base, {}, cut=(28, 2), tag=0)
    plain_family("gpu_device", EVENT | 26, "event", "gpu_device_event",
                 {"sequence": 41, "watch": 12, "uuid": UUID, "hold": 5, "minor": 3, "system_errno": 13},
                 {"text": "opening /dev/nvidia3: Permission denied (EACCES)"}, cut=(32, 3), tag=0)


def errors():
    def refusal(name, op, status, numbers, sentence, size=None):
        data, decoded, _ = part("refusal", numbers, {}, size)
        raw, head = packet(REPLY | op, data + sentence.encode(), len(data), status=status)
        message = next((m["name"] for m in TABLE["message"] if m["op"] == op), f"op {op}")
        save(f"error-{name}", raw, {"header": head, "message": message, "kind": "error", "fixed": decoded, "sentence": sentence}, False)
        return raw
    valid = refusal("limit", 2, 8, *LIMIT)
    refusal("not-found", 3, 6, *MISSING)
    refusal("system", 6, 19, {"system_errno": 28}, "memfd_create for region 'kv': No space left on device (ENOSPC)")
    refusal("unknown-op", 999, 3, {}, "this broker does not know request 999")
    refusal("version", 1, 16, {"limit": 1, "asked": 2}, "the client speaks protocol 2 to 3, this broker 1 to 1")
    refusal("utf8", 9, 1, {}, "Gruppe „train“: kein Platz übrig")
    refusal("maximal", 14, 26, largest("refusal"), "x" * 400)
    refusal("bare", 15, 5, {}, "", size=0)
    refusal("future", 2, 99, LIMIT[0], LIMIT[1], size=56)
    save("error-short", shorter(valid)[:20] + b"\0\0" + struct.pack("<H", 0xffff) + shorter(valid)[24:], {"malformed": "fixed"}, False)


def frames():
    status = packet(15, bytes(8), 8)[0]
    create = batch("create", 2, "request", "create", [({"length": 4096}, {"name": "kv"}, None)])[0]

    def patch(data, offset, code, value):
        blob = struct.pack("<" + code, value)
        return data[:offset] + blob + data[offset + len(blob):]
    bad = lambda name, data, why, request=True, fds=(): save(f"frame-{name}", data, {"malformed": why}, request, fds)
    bad("empty", b"", "empty")
    bad("one-byte", b"\x20", "short_header")
    bad("23-bytes", status[:23], "short_header")
    bad("size-over", patch(status, 0, "I", 33), "size")
    bad("size-under", patch(status, 0, "I", 31), "size")
    bad("size-huge", patch(status, 0, "I", 0xffffffff), "size")
    bad("fixed-over", patch(status, 22, "H", 9), "fixed")
    bad("fixed-huge", patch(status, 22, "H", 0xffff), "fixed")
    bad("fds-missing", patch(status, 20, "H", 1), "fd_count")
    bad("fds-unasked", status, "fd_count", fds=("memfd O_RDWR",))
    bad("op-reply-bit", patch(status, 4, "H", REPLY | 15), "op_bits")
    bad("op-event-bit", patch(status, 4, "H", EVENT | 7), "op_bits")
    bad("from-broker-no-bit", status, "op_bits", request=False)
    bad("from-broker-both-bits", patch(patch(status, 4, "H", REPLY | EVENT | 1), 8, "Q", 7), "op_bits", request=False)
    bad("event-with-tag", packet(EVENT | 7, bytes(24), 24, tag=7)[0], "op_bits", request=False)
    refused = lambda name, data, why: save(f"refused-{name}", data, {"refused": why}, True)
    refused("unknown-op", patch(status, 4, "H", 999), "unknown_op")
    refused("op-zero", patch(status, 4, "H", 0), "unknown_op")
    refused("unknown-flag", patch(status, 6, "H", 4), "unknown_flags")
    refused("status-set", patch(status, 16, "i", -1), "invalid")
    refused("reserved-set", status[:24] + b"\1" + status[25:], "too_new")
    refused("rest-unasked", packet(15, bytes(9), 8)[0], "invalid")
    refused("batch-count-0", patch(create, 24, "H", 0), "invalid")
    refused("batch-count-2", patch(create, 24, "H", 2), "invalid")
    refused("batch-count-254", packet(4, struct.pack("<HHI", 254, 24, 0) + bytes(254 * 24), 8)[0], "invalid")
    refused("batch-count-65535", patch(create, 24, "H", 0xffff), "invalid")
    refused("batch-wraps", patch(create, 24, "I", 0xffffffff), "invalid")
    refused("batch-product-wraps-16", packet(4, struct.pack("<HHI", 128, 512, 0) + bytes(24), 8)[0], "invalid")
    refused("batch-element-0", patch(create, 26, "H", 0), "invalid")
    refused("batch-reserved", patch(create, 28, "I", 1), "too_new")
    refused("batch-no-fixed", packet(4, b"", 0)[0], "invalid")
    refused("element-reserved", patch(create, 32 + 36, "I", 1), "too_new")
    refused("text-long", patch(create, 32 + 32, "H", 3), "invalid")
    refused("text-short", patch(create, 32 + 32, "H", 1), "invalid")
    hello = pack("hello", {"version_min": 1, "version_max": 1, "library_len": 0xffff, "group_len": 3})[0]
    refused("text-sum-wraps-16", packet(1, hello + b"ab", len(hello))[0], "invalid")
    items = [({"by": 2, "rights": 1, "region": {}, "group_len": 0xffff, "name_len": 0xffff}, {}, None)]
    data = b"".join(pack("attach", i[0])[0] for i in items) * 2
    refused("batch-text-sum-wraps-16", packet(3, struct.pack("<HHI", 2, len(data) // 2, 0) + data + b"abcd", 8)[0], "invalid")


def examples():
    """The worked dump of PROTOCOL.md."""
    hello = {"version_min": 1, "version_max": 1, "pid": 4242}
    save("example-1-hello", *plain("hello", 1, "request", "hello", hello, {"library": "example 1.0"}, tag=1)[:2], True)
    answer = {"version": 1, "mode": 2, "broker_uid": 1000, "uid": 1000, "max_message": 65536, "features": 0x3f, "epoch": EPOCH,
              "session": 5, "fork_secret": SECRET, "max_batch": 253}
    save("example-2-hello-reply", *plain("hello", REPLY | 1, "reply", "hello_reply", answer, {"broker": "0.1.0"}, tag=1)[:2], False)
    create = [({"length": 5000}, {"name": "kv"}, None)]
    save("example-3-create", *batch("create", 2, "request", "create", create, tag=2)[:2], True)
    made = [({"outcome": fine(0), "region": KV, "bytes": 8192, "group": 2, "rights": 0xf}, {}, None)]
    fds = ("memfd O_RDWR",)
    save("example-4-create-reply", *batch("create", REPLY | 2, "reply", "create_reply", made, fds, tag=2)[:2], False, fds)
    numbers = {"slot": 1, "scope": 2, "scope_id": 1000, "limit": 4 * GIB, "used": 3 * GIB, "asked": 2 * GIB}
    data, decoded, _ = part("refusal", numbers, {}, None)
    sentence = "limit: bytes of uid 1000: asked 2.0 GiB, used 3.0 of 4.0 GiB; raise limits.uid.1000.bytes or release regions"
    raw, head = packet(REPLY | 2, data + sentence.encode(), len(data), tag=3, status=8)
    save("example-5-refused", raw, {"header": head, "message": "create", "kind": "error", "fixed": decoded, "sentence": sentence}, False)


def main():
    for family in (requests, replies, lists, events, gpu_requests, gpu_replies, gpu_events, errors, frames, examples):
        family()
    folder, problems = HERE / "vectors", 0
    folder.mkdir(exist_ok=True)
    known = {p.stem for p in folder.glob("*.json")}
    for name, vector in VECTORS.items():
        path, text = folder / f"{name}.json", json.dumps(vector, ensure_ascii=False, separators=(",", ":")) + "\n"
        if "--check" in sys.argv:
            if not path.exists() or path.read_text() != text:
                print(f"{path.name}: {'differs from' if path.exists() else 'missing in'} proto/vectors")
                problems += 1
        elif not path.exists() or "--force" in sys.argv:
            path.write_text(text)
    print(f"{len(VECTORS)} vectors, {len(known)} were there")
    sys.exit(1 if problems else 0)


main()
