#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the golden vectors of proto/vectors: the bytes of valid frames, with what they mean.

There is one file for each message. It has one frame a line: the request, the reply, the event; for LIST a page of
each table. error.jsonl has refusals, and example.jsonl the packets that PROTOCOL.md explains.

    make_vectors.py           append the vectors that are missing, change none
    make_vectors.py --check   exit 1 if a vector is missing or differs from what this script makes
    make_vectors.py --force   write all files again: only before a release, for a vector that was never right

A released vector is never changed or removed: every later reader must read it. If a struct has grown since, its frame
gets a new name (`line`), and the old line stays. Packing follows messages.toml. The two readers that must agree (the
C++ codec and tests/proto/decoder.py) do not use this script. The tests make shorter, longer, larger and damaged frames
from these (tests/proto/variants.py).
"""
import json
import pathlib
import struct
import sys

from generate import load_table

HERE = pathlib.Path(__file__).resolve().parent
TABLE = load_table()
CODES = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q", "i32": "i", "i64": "q"}
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


def part(name, values, texts):
    """One struct and its texts."""
    texts = {t: texts.get(t, "") for t in text_names(name)}
    data, decoded = pack(name, values | {t + "_len": len(v.encode()) for t, v in texts.items()})
    return data, decoded, texts


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


def save(file, name, data, decoded, fds=(), table=None):
    lines = VECTORS.setdefault(file, {})
    assert name not in lines, name
    vector = {"name": name, "direction": "request" if decoded["kind"] == "request" else "from_broker"}
    vector |= {"table": table} if table else {}
    lines[name] = vector | {"fds": list(fds), "hex": data.hex(), "decoded": decoded}


def plain(name, op, kind, shape, values, texts, fds, **header):
    data, decoded, texts = part(shape, values, texts)
    raw, head = packet(op, data + "".join(texts.values()).encode(), len(data), len(fds), **header)
    out = {"header": head, "message": name, "kind": kind, "fixed": decoded}
    return raw, out | ({"texts": texts} if text_names(shape) else {})


def batch(name, op, kind, shape, items, fds, **header):
    """items: (values, texts, detail); detail is (refusal, sentence) or None."""
    elements, rest, out = b"", b"", []
    for values, texts, detail in items:
        tail = b""
        if detail:
            blob, refusal = pack("refusal", detail[0])
            tail = blob + detail[1].encode()
            values = values | {"outcome": values["outcome"] | {"detail_len": len(tail)}}
        data, decoded, texts = part(shape, values, texts)
        row = {"fields": decoded} | ({"texts": texts} if text_names(shape) else {})
        row |= {"detail": {"refusal": refusal, "sentence": detail[1]}} if detail else {}
        elements, rest = elements + data, rest + tail + "".join(texts.values()).encode()
        out.append(row)
    fixed, decoded = pack("batch", {"count": len(items), "element_size": len(elements) // len(items)})
    raw, head = packet(op, fixed + elements + rest, 8, len(fds), **header)
    return raw, {"header": head, "message": name, "kind": kind, "fixed": decoded, "elements": out}


def frame(kind, name, content, texts=(), fds=(), file=None, line=None, **header):
    """content: the values of a plain message, whose texts follow, or the items of a batch."""
    op = next(m["op"] for m in TABLE["message"] if m["name"] == name) | (REPLY if kind == "reply" else 0)
    shape = f"{name}_reply" if kind == "reply" else name
    made = plain(name, op, kind, shape, content, dict(texts), fds, **header) if isinstance(content, dict) else \
        batch(name, op, kind, shape, content, fds, **header)
    save(file or name, line or f"{name}-{kind}", *made, fds)


def request(*what, **more):
    frame("request", *what, **more)


def reply(*what, **more):
    frame("reply", *what, **more)


def event(name, values, texts=()):
    op = EVENT | next(e["op"] for e in TABLE["event"] if e["name"] == name)
    save(name, f"{name}-event", *plain(name, op, "event", f"{name}_event", values, dict(texts), (), tag=0))


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
    request("hello",
            {"version_min": 1, "version_max": 1, "pid": 4242, "features": 0x3f, "start_time": 987654321,
             "fork_session": 5, "fork_secret": SECRET, "group_token": TOKEN},
            {"library": "shmbroker 0.1.0", "group": "train"})
    request("create",
            [({"group": 0, "length": 64 << 20, "keep": 3600 * 10**9, "flags": 0x10, "rights": 0xf}, {"name": "weights"}, None),
             ({"group": 2, "length": 1, "keep": -1, "flags": 0x13}, {"name": "kv.cache-0_a"}, None),
             ({"length": (1 << 47) - 1}, {}, None)])
    request("attach",
            [({"by": 1, "rights": 1, "region": KV}, {}, None),
             ({"by": 2, "rights": 3, "flags": 2, "owner_uid": 1000}, {"group": "train", "name": "kv"}, None),
             ({"by": 2, "rights": 1, "flags": 1}, {"group": "#17", "name": "weights"}, None),
             ({"by": 3, "rights": 1, "ticket": TOKEN}, {}, None)])
    request("release",
            [({"region": KV, "count": 1, "flags": 1}, {}, None), ({"region": WEIGHTS, "flags": 2}, {}, None)], flags=2)
    request("ready", [({"region": KV, "populated": 64 << 20, "page_kind": 2}, {}, None)], flags=2)
    request("publish", {"region": KV})
    request("ticket_create",
            {"region": KV, "rights": 1, "uses": 3, "lifetime": 60 * 10**9, "flags": 1, "session": 9})
    request("inherit", [({"region": KV, "rights": 3, "count": 2}, {}, None), ({"region": WEIGHTS}, {}, None)])
    request("group_create",
            {"flags": 3, "limit_regions": 100, "keep": 600 * 10**9, "limit_bytes": 8 * GIB}, {"name": "train"})
    request("group_join", {"token": TOKEN, "owner_uid": 1000, "flags": 3}, {"name": "train"})
    request("group_leave", {"group": 2})
    request("group_end", {"group": 0, "flags": 3}, {"name": "train"})
    request("group_limit", {"group": 0, "bytes": 4 * GIB}, {"name": "train"})
    request("watch",
            {"kind": 2, "events": 0x3f, "owner_uid": 1000, "flags": 1, "region": KV, "group": 2, "watch": 9, "ticket": TOKEN},
            {"group": "train", "name": "kv"}, line="watch-request-with-ticket")
    request("list",
            {"table": 1, "flags": 3, "cursor": 12, "group": 2, "region": KV, "owner_uid": 1000},
            {"group": "train", "name": "kv"})
    request("status", {})
    request("pool_create",
            {"group": 2, "keep": 60 * 10**9, "flags": 1, "slots": 64, "lanes": 8, "queues": 4, "segments": 2, "lane_bytes": 1 << 20},
            {"name": "frames"})
    request("pool_join", {"pool": 0, "flags": 6, "owner_uid": 1000},
            {"group": "train", "name": "frames"})
    request("pool_leave", {"pool": 21})
    request("pool_segment", {"pool": 21, "region": KV, "slot_size": 4096, "slots": 64, "slots_limit": 256})
    request("queue_open", {"pool": 21, "kind": 2, "flags": 0x12, "cells": 256, "cell_size": 64}, {"name": "jobs"})
    request("queue_close", {"pool": 21, "queue": 3, "serial": 7, "flags": 5})
    request("lane_finished",
            [({"pool": 21, "lane": 5, "serial": 9, "end": 2}, {}, None), ({"pool": 21, "lane": 6, "serial": 10, "end": 1}, {}, None)], flags=2)
    request("queue_hold",
            [({"pool": 21, "lane": 5, "serial": 9, "region": KV}, {}, None),
             ({"pool": 21, "lane": 5, "serial": 9, "region": WEIGHTS, "flags": 1}, {}, None)])
    request("pool_doorbell", {"pool": 21, "flags": 2, "participant": 3, "life": 4})
    request("ticket_revoke", {"ticket": TOKEN})
    request("tickets_release", {"region": KV, "group": 2, "cursor": 13, "owner_uid": 1000, "flags": 3})
    request("shelf_empty", {"bytes": 40 << 20})
    request("books", {})
    request("world_join", {"port": 29500, "rank": 1, "world_size": 4},
            {"address": "localhost:29500", "name": "worker1"})
    request("world_leave", {"world": 31})
    request("world_pool", {"world": 31, "pool": 21})
    request("ref_create",
            [({"world": 31, "owner": 2, "user": 0xffffffff, "state": 1}, {}, None),
             ({"world": 31, "counter": 7, "owner": 1, "user": 3, "state": 3, "flags": 1, "owner_life": 2, "user_life": 5}, {}, None)])
    request("ref_fork",
            [({"world": 31, "reference": REFERENCE, "user": 3}, {}, None), ({"world": 31, "reference": REFERENCE, "user": 2, "user_life": 5}, {}, None)])
    request("ref_take", [({"world": 31, "fork": FORK, "flags": 2}, {}, None)])
    request("ref_release",
            [({"world": 31, "fork": FORK}, {}, None), ({"world": 31, "fork": REFERENCE}, {}, None)], flags=2)
    request("ref_settle",
            [({"world": 31, "reference": REFERENCE, "state": 3}, {}, None),
             ({"world": 31, "reference": FORK, "state": 4}, {"error": "ValueError: expected error"}, None)])
    request("ref_ask", {"world": 31, "reference": REFERENCE, "flags": 2})


def replies():
    reply("hello",
          {"version": 1, "mode": 2, "broker_uid": 1000, "uid": 1000, "max_message": 65536, "features": 0x3f,
           "epoch": EPOCH, "session": 5, "group": 2, "fork_secret": SECRET, "max_batch": 253},
          {"broker": "shmbrokerd 0.1.0"})
    reply("create",
          [({"outcome": fine(0), "region": KV, "bytes": 64 << 20, "group": 2, "flags": 1, "rights": 0xf}, {}, None),
           ({"outcome": {"status": 8, "fd_index": 0xffff}}, {}, LIMIT),
           ({"outcome": fine(1), "region": WEIGHTS, "bytes": 4096, "group": 2, "rights": 0xf}, {}, None)], fds=("memfd O_RDWR", "memfd O_RDWR"))
    reply("attach",
          [({"outcome": fine(0), "region": KV, "length": 5000, "bytes": 8192, "group": 2, "rights": 1, "state": 4,
             "page_kind": 2, "flags": 7}, {}, None), ({"outcome": {"status": 6, "fd_index": 0xffff}}, {}, MISSING)], fds=("memfd O_RDONLY",))
    reply("release",
          [({"outcome": fine()}, {}, None), ({"outcome": {"status": 13, "fd_index": 0xffff}}, {}, ({}, "region 1d2: generation 4 is gone"))])
    reply("publish", {"region": KV, "rights": 1}, fds=("memfd O_RDONLY",))
    reply("ticket_create", {"ticket": TOKEN, "expires": 123456789012345})
    reply("inherit",
          [({"outcome": fine(), "rights": 3}, {}, None), ({"outcome": {"status": 9, "fd_index": 0xffff}}, {}, ({}, "the lease has no right map_write"))])
    reply("group_create", {"group": 2, "token": TOKEN})
    reply("group_join", {"group": 2})
    reply("group_leave", {"group": 0})
    reply("group_limit", {"group": 2, "bytes": 4 * GIB, "before": 2**64 - 1, "used": 10 * GIB})
    reply("group_end", {"members": 3, "regions": 2, "bytes_freed": 10 * GIB})
    reply("watch", {"watch": 9, "state": 5})
    reply("status",
          {"mode": 2, "engine": 2, "epoch": EPOCH, "features": 0x3f, "uptime": 11520 * 10**9, "bytes": 10 * GIB,
           "bytes_limit": 54 * GIB, "bytes_cached": GIB, "requests": 1234567, "refusals": 12, "reclaims": 3,
           "bytes_reclaimed": 2 * GIB, "pid": 4000, "broker_uid": 1000, "regions": 7, "sessions": 5, "groups": 2,
           "leases": 11, "tickets": 1, "watches": 2, "descriptors": 40, "descriptors_limit": 20000,
           "descriptors_reserved": 64, "in_flight": 1},
          {"version": "0.1.0", "kernel": "6.18.1", "engine": "io_uring: all opcodes found", "losses": ""})

    areas = ("memfd O_RDONLY", "memfd O_RDWR")
    joined = {"pool": 21, "group": 2, "directory_bytes": 12288, "control_bytes": 1 << 20, "participant": 3, "life": 4}
    reply("pool_create", joined, fds=areas)
    reply("pool_join", joined, fds=areas)
    reply("pool_leave", {"unread": 2})
    reply("pool_segment", {"segment": 1, "first_slot": 64})
    reply("queue_open", {"queue": 3, "serial": 7, "lane": 5, "lane_serial": 9})
    reply("queue_close", {"readers": 1, "writers": 2})
    reply("queue_hold",
          [({"outcome": fine()}, {}, None), ({"outcome": {"status": 6, "fd_index": 0xffff}}, {}, MISSING)])
    reply("pool_doorbell", {"participant": 3, "life": 4}, fds=("socket",))
    reply("ticket_revoke", {"uses_left": 2})
    reply("tickets_release", {"next": 13, "bytes_freed": 10 * GIB, "tickets": 64, "regions": 3, "held": 2})
    reply("shelf_empty", {"bytes": 40 << 20, "pending": 64 << 20})
    reply("books", {"bytes": 16384, "major": 1}, fds=("memfd O_RDONLY",))
    reply("world_join", {"world": 31, "group": 2, "pool": 21, "present": 4, "flags": 1, "life": 5})
    reply("world_leave", {"present": 3, "forks": 2})
    reply("world_pool", {"pool": 21})
    gone = ({"outcome": {"status": 6, "fd_index": 0xffff}}, {}, ({}, "no such fork of this worker"))
    reply("ref_create", [({"outcome": fine(), "reference": REFERENCE, "fork": FORK}, {}, None), gone])
    reply("ref_fork", [({"outcome": fine(), "fork": FORK}, {}, None), gone])
    reply("ref_take",
          [({"outcome": fine(), "reference": REFERENCE, "owner": 2, "state": 3, "owner_life": 5}, {}, None), gone])
    reply("ref_release", [({"outcome": fine()}, {}, None), gone])
    reply("ref_settle", [({"outcome": fine(), "state": 4, "users": 2}, {}, None), gone])
    reply("ref_ask",
          {"state": 4, "owner": 2, "users": 3, "in_flight": 1, "created": 10**12}, {"error": "ValueError: expected error"})


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
    "reports": ("report_record",
                {"report": 9, "session": 5, "group": 2, "bytes": 10 * GIB, "gpu_bytes": GIB, "when": 10**12, "uid": 1000, "pid": 4242,
                 "regions": 7, "leases": 11, "how": 2, "code": 9},
                {"group": "train", "library": "python3 (libshmbroker 0.1.0)", "ending": "killed by SIGKILL"}),
    "refusals": ("refusal_record", {"slot": 1, "scope": 3, "count": 12}, {}),
}


def list_page(name, table, items):
    shape, rest, out = RECORDS[table][0], b"", []
    for values, texts in items:
        data, decoded, texts = part(shape, values, texts)
        rest += data + "".join(texts.values()).encode()
        out.append({"fields": decoded} | ({"texts": texts} if text_names(shape) else {}))
    head = {"next": 13, "total_bytes": 10 * GIB, "total_count": 40, "count": len(items), "element_size": len(pack(shape, {})[0])}
    fixed, decoded, _ = part("list_reply", head, {})
    raw, header = packet(REPLY | 14, fixed + rest, len(fixed))
    save("list", name, raw, {"header": header, "message": "list", "kind": "reply", "fixed": decoded, "records": out}, table=table)


def lists():
    for table, (_, values, texts) in RECORDS.items():
        empty = dict(list(values.items())[:1])
        list_page(f"list-{table}", table, [(values, texts), (empty, {}), (values, texts)])
    list_page("list-empty-page", "uids", [])


def events():
    base = {"sequence": 41, "watch": 9}
    for name in ("region_ready", "region_published", "region_gone"):
        event(name, base | {"region": KV})
    event("name_appeared", base | {"region": KV}, {"name": "kv"})
    event("group_ended", base | {"group": 2, "bytes_freed": 10 * GIB})
    event("reclaim",
          base | {"group": 2, "bytes": 10 * GIB, "uid": 1000, "pid": 4242, "regions": 7, "how": 2, "code": 9},
          {"text": "pid 4242 (uid 1000) was killed by signal 9: 7 regions, 10.0 GiB freed"})
    event("pool_changed", {"sequence": 41, "watch": 0, "pool": 21})
    event("give_up", {"sequence": 41, "watch": 0, "region": KV})
    event("resume", {"sequence": 41, "watch": 0, "number": 7})
    of_world = {"sequence": 41, "watch": 0, "world": 31}
    event("world_changed", of_world | {"change": 2, "rank": 3, "present": 4, "life": 5})
    event("ref_unused", of_world | {"reference": REFERENCE})
    event("ref_changed", of_world | {"reference": REFERENCE, "state": 3, "owner": 2})
    event("gap", {"sequence": 41, "watch": 0, "lost": 3})


UUID = bytes(range(0xc0, 0xd0))
HANDLE = bytes(range(0x40, 0x80))


def gpu_requests():
    request("gpu_device", {"uuid": UUID, "flags": 1}, {"pci": "0000:65:00.0"}, fds=("/dev/nvidia3",))
    exports = ("/dev/nvidiactl",) * 4 + ("memfd sealed",)
    request("gpu_publish",
            [({"group": 0, "bytes": 64 << 20, "chunk_bytes": 32 << 20, "granularity": 2 << 20, "keep": -1, "uuid": UUID,
               "manifest_bytes": 5000, "kind": 1, "flags": 0xa1, "rights": 0xf, "chunks": 2, "driver": 13000}, {"name": "weights"}, None),
             ({"bytes": 1000, "uuid": UUID, "kind": 2, "offset": 512, "allocation": 2 << 20, "handle": HANDLE}, {}, None)], fds=exports)
    request("gpu_chunks", {"region": WEIGHTS, "first": 126, "count": 2}, fds=("/dev/nvidiactl",) * 4)
    request("gpu_open",
            [({"by": 1, "rights": 1, "region": WEIGHTS}, {}, None),
             ({"by": 2, "rights": 3, "flags": 5, "owner_uid": 1000}, {"group": "train", "name": "weights"}, None),
             ({"by": 3, "rights": 1, "ticket": TOKEN}, {}, None)])
    request("gpu_more", {"region": WEIGHTS, "first": 253, "count": 7})
    request("gpu_report",
            [({"region": WEIGHTS, "what": 1}, {}, None), ({"region": KV, "what": 2, "code": 304}, {}, None),
             ({"what": 4, "code": 999, "uuid": UUID}, {}, None)], flags=2)
    request("gpu_retire", [({"region": KV}, {}, None), ({"region": WEIGHTS}, {}, None)])
    request("gpu_timeline", {"group": 2, "keep": 60 * 10**9, "flags": 1, "words": 64}, {"name": "steps"})
    request("gpu_pinned", [({"region": KV}, {}, None), ({"region": WEIGHTS, "flags": 1}, {}, None)])


def gpu_replies():
    reply("gpu_device", {"watch": 12, "hold": 1, "minor": 3})
    bad = ({"outcome": {"status": 48, "fd_index": 0xffff}}, {}, ({}, "chunk 0: keeper and share are one open file; export the memory twice"))
    reply("gpu_publish",
          [({"outcome": fine(), "region": WEIGHTS, "bytes": 64 << 20, "group": 2, "rights": 0xd, "state": 1, "chunks": 2}, {}, None), bad])
    reply("gpu_chunks", {"state": 1, "chunks": 128})
    shares = ("/dev/nvidiactl", "/dev/nvidiactl", "memfd O_RDONLY")
    reply("gpu_open",
          [({"outcome": fine(0), "region": WEIGHTS, "bytes": 64 << 20, "chunk_bytes": 32 << 20, "granularity": 2 << 20, "group": 2,
             "manifest_bytes": 5000, "uuid": UUID, "kind": 1, "state": 1, "rights": 1, "flags": 0xa1, "chunks": 2, "sent": 2,
             "driver": 13000, "exporter_pid": 4242, "manifest_fd": 2}, {}, None),
           ({"outcome": fine(), "region": KV, "bytes": 1000, "offset": 512, "allocation": 2 << 20, "uuid": UUID, "kind": 2, "state": 1,
             "rights": 1, "manifest_fd": 0xffff, "handle": HANDLE}, {}, None),
           ({"outcome": {"status": 6, "fd_index": 0xffff}}, {}, MISSING)], fds=shares)
    reply("gpu_more", {"first": 253, "count": 2}, fds=shares[:2])
    reply("gpu_report",
          [({"outcome": fine(), "state": 6, "regions": 1}, {}, None), ({"outcome": {"status": 6, "fd_index": 0xffff}}, {}, MISSING)])
    reply("gpu_retire",
          [({"outcome": fine(), "users": 2}, {}, None), ({"outcome": {"status": 6, "fd_index": 0xffff}}, {}, MISSING)])
    reply("gpu_timeline", {"region": KV, "bytes": 4096, "group": 2}, fds=("memfd O_RDWR",))
    reply("gpu_pinned",
          [({"outcome": fine(), "pins": 1}, {}, None), ({"outcome": {"status": 6, "fd_index": 0xffff}}, {}, MISSING)])


GPU_RECORD = {"region": WEIGHTS, "bytes": 64 << 20, "chunk_bytes": 32 << 20, "group": 2, "uuid": UUID, "owner_uid": 1000, "kind": 1, "state": 3,
              "flags": 0x22, "chunks": 2, "hold": 2, "minor": 3, "driver": 13000, "exporter_pid": 4242, "exporter": 1, "importers": 2,
              "leaving": 1, "tickets": 1, "queues": 1, "code": -1, "publish_flags": 0x21, "created": 10**12, "keep": -1, "freed_at": 0}
RECORDS["gpu_regions"] = ("gpu_record", GPU_RECORD, {"group": "train", "name": "weights"})


def gpu_events():
    base = {"sequence": 41, "watch": 9, "region": WEIGHTS}
    event("gpu_state", base | {"state": 3, "kind": 1, "code": 0, "pid": 4242})
    event("gpu_drained", base)
    event("gpu_device",
          {"sequence": 41, "watch": 12, "uuid": UUID, "hold": 5, "minor": 3, "system_errno": 13},
          {"text": "opening /dev/nvidia3: Permission denied (EACCES)"})


def refusal(file, line, op, status, numbers, sentence, **header):
    data, decoded, _ = part("refusal", numbers, {})
    raw, head = packet(REPLY | op, data + sentence.encode(), len(data), status=status, **header)
    message = next((m["name"] for m in TABLE["message"] if m["op"] == op), f"op {op}")
    save(file, line, raw, {"header": head, "message": message, "kind": "error", "fixed": decoded, "sentence": sentence})


def errors():
    refusal("error", "error-limit", 2, 8, *LIMIT)
    refusal("error", "error-not-found", 3, 6, *MISSING)
    refusal("error", "error-system", 6, 19, {"system_errno": 28}, "memfd_create for region 'kv': No space left on device (ENOSPC)")
    refusal("error", "error-unknown-op", 999, 3, {}, "this broker does not know request 999")
    refusal("error", "error-version", 1, 16, {"limit": 1, "asked": 2}, "the client speaks protocol 2 to 3, this broker 1 to 1")
    refusal("error", "error-utf8", 9, 1, {}, "Gruppe „train“: kein Platz übrig")
    refusal("error", "error-unknown-status", 2, 99, *LIMIT)


def examples():
    """The worked dump of PROTOCOL.md."""
    request("hello", {"version_min": 1, "version_max": 1, "pid": 4242}, {"library": "example 1.0"},
            file="example", line="example-1-hello", tag=1)
    reply("hello", {"version": 1, "mode": 2, "broker_uid": 1000, "uid": 1000, "max_message": 65536, "features": 0x3f, "epoch": EPOCH,
                    "session": 5, "fork_secret": SECRET, "max_batch": 253}, {"broker": "0.1.0"},
          file="example", line="example-2-hello-reply", tag=1)
    request("create", [({"length": 5000}, {"name": "kv"}, None)], file="example", line="example-3-create", tag=2)
    reply("create", [({"outcome": fine(0), "region": KV, "bytes": 8192, "group": 2, "rights": 0xf}, {}, None)], fds=("memfd O_RDWR",),
          file="example", line="example-4-create-reply", tag=2)
    refusal("example", "example-5-refused", 2, 8, {"slot": 1, "scope": 2, "scope_id": 1000, "limit": 4 * GIB, "used": 3 * GIB, "asked": 2 * GIB},
            "limit: bytes of uid 1000: asked 2.0 GiB, used 3.0 of 4.0 GiB; raise limits.uid.1000.bytes or release regions", tag=3)


def main():
    for family in (requests, replies, lists, events, gpu_requests, gpu_replies, gpu_events, errors, examples):
        family()
    folder, problems = HERE / "vectors", 0
    folder.mkdir(exist_ok=True)
    for file, vectors in VECTORS.items():
        path = folder / f"{file}.jsonl"
        kept = path.read_text().splitlines() if path.exists() and "--force" not in sys.argv else []
        known = {json.loads(line)["name"]: line for line in kept}
        for name, vector in vectors.items():
            line = json.dumps(vector, ensure_ascii=False, separators=(",", ":"))
            if name not in known:
                kept.append(line)
            if "--check" in sys.argv and known.get(name) != line:
                print(f"{name}: {'differs from' if name in known else 'missing in'} {path.name}")
                problems += 1
        if "--check" not in sys.argv:
            path.write_text("".join(line + "\n" for line in kept))
    print(f"{sum(map(len, VECTORS.values()))} vectors in {len(VECTORS)} files")
    sys.exit(1 if problems else 0)


main()
