# SPDX-License-Identifier: Apache-2.0
"""Frames that follow from the golden vectors, each with what it must mean.

The vectors are valid frames of today's sender. These are the frames of other senders: an older one, whose structs end
earlier; a newer one, whose structs are longer; one that uses every range to its end; and a faulty or hostile one.
"""
import json
import struct

from decoder import BATCH, EVENTS, HEADER, RECORDS, REFUSAL, REGION, REFERENCE, OUTCOME, REPLIES, REQUESTS, width

MOST = {"H": 0xfffe, "I": 0xfffffffe, "Q": 0xfffffffffffffffe, "i": 0x7fffffff, "q": 0x7fffffffffffffff}
NESTED = {"R": REGION, "F": REFERENCE, "O": OUTCOME}
INVALID = {"refused": "invalid"}
MAX_MESSAGE, MAX_BATCH = 65536, 253


class Frame:
    """A packet, where it comes from, and what it means."""

    def __init__(self, name, data, n_fds, direction, table, decoded, stored=False):
        self.name, self.data, self.n_fds, self.direction, self.table = name, data, n_fds, direction, table
        self.decoded, self.stored = decoded, stored  # stored: a golden vector, perhaps of a past release

    def other(self, name, data, decoded):
        return Frame(f"{self.name}-{name}", data, self.n_fds, self.direction, self.table, decoded)


def vectors(folder):
    out = []
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            v = json.loads(line)
            out.append(Frame(v["name"], bytes.fromhex(v["hex"]), len(v["fds"]), v["direction"], v.get("table"), v["decoded"], True))
    return out


def put(fields, values):
    """The inverse of decoder.read."""
    data = b""
    for item in fields.split():
        code, name = item.split(":")
        value = values[name]
        data += bytes.fromhex(value) if code in ("16", "64") else put(NESTED[code], value) if code in NESTED else struct.pack("<" + code, value)
    return data


def each(fields, values, change):
    """The values of a struct, each passed through change(code, name, value), and those of the structs in it."""
    out = {}
    for item in fields.split():
        code, name = item.split(":")
        out[name] = each(NESTED[code], values[name], change) if code in NESTED else change(code, name, values[name])
    return out


def shape(said, table):
    """The fields and texts of the struct that the message is about: the fixed part, a batch's element, a page's record."""
    if said["kind"] == "error":
        return REFUSAL, ""
    if "records" in said:
        return RECORDS[table]
    known = {"request": REQUESTS, "reply": REPLIES, "event": EVENTS}[said["kind"]]
    return known[said["header"]["op"] & 0x3fff][2:]


def parts(said):
    return said.get("elements", said.get("records", []))


def write(said, table, sized=lambda data: data):
    """The bytes of a decoded message. `sized` gives the struct of shape() another length."""
    fields, texts = shape(said, table)

    def behind(part):
        detail = part.get("detail")
        return "".join(part.get("texts", {}).get(t, "") for t in texts.split()).encode() + \
            (put(REFUSAL, detail["refusal"]) + detail["sentence"].encode() if detail else b"")
    rows = [sized(put(fields, part["fields"])) for part in parts(said)]
    if "elements" in said:
        fixed = put(BATCH, said["fixed"] | {"element_size": len(rows[0])})
        rest = b"".join(rows) + b"".join(behind(part) for part in said["elements"])
    elif "records" in said:
        page = said["fixed"] | ({"element_size": len(rows[0])} if rows else {})
        fixed, rest = put(REPLIES[14][2], page), b"".join(row + behind(part) for row, part in zip(rows, said["records"]))
    else:
        fixed, rest = sized(put(fields, said["fixed"])), behind(said) + said.get("sentence", "").encode()
    size = 24 + len(fixed) + len(rest)
    return put(HEADER, said["header"] | {"size": size, "fixed": len(fixed)}) + fixed + rest


def rewritten(said, data, part=lambda part: part):
    """The message to which `data`, another form of `said`, must decode: new sizes, and each struct passed through part()."""
    fixed, = struct.unpack_from("<H", data, 22)
    out = said | {"header": said["header"] | {"size": len(data), "fixed": fixed}}
    if parts(said):
        at = 26 if "elements" in said else 24 + 26
        out["fixed"] = said["fixed"] | {"element_size": struct.unpack_from("<H", data, at)[0]}
        key = "elements" if "elements" in said else "records"
        return out | {key: [part(row) for row in said[key]]}
    if "records" in said:
        return out
    changed = part({"fields": said["fixed"]} | ({"texts": said["texts"]} if "texts" in said else {}))
    return out | {"fixed": changed["fields"]} | ({"texts": changed["texts"]} if "texts" in changed else {})


def older(frame):
    """At each field: the sender's struct ends there. Fields that it left out are zero, and so are the texts that this counts."""
    said, (fields, texts) = frame.decoded, shape(frame.decoded, frame.table)
    ends = [width(" ".join(fields.split()[:n])) for n in range(len(fields.split()))]
    for end in ends:
        names = [f.split(":")[1] for f, at in zip(fields.split(), ends) if at >= end]

        def cut(part):
            kept = {n: v for n, v in part["fields"].items() if n not in names}
            zeros = each(fields, part["fields"], lambda code, name, _: "00" * int(code) if code in ("16", "64") else 0)
            out = part | {"fields": {n: kept.get(n, zeros[n]) for n in part["fields"]}}
            if texts:
                out["texts"] = {t: "" if t + "_len" in names else v for t, v in part["texts"].items()}
            if "outcome" in names:
                out.pop("detail", None)
            return out
        meant = rewritten(said, frame.data, cut)
        data = write(meant, frame.table, lambda data: data[:end])
        nothing = parts(said) and not end
        yield frame.other(f"minimal-{end}", data, INVALID if nothing else rewritten(meant, data))


def longer_head(frame, tail):
    """`tail` stands behind the fixed part of a batch or of a LIST page, and the header counts it."""
    end = 24 + frame.decoded["header"]["fixed"]
    data = struct.pack("<I", len(frame.data) + len(tail)) + frame.data[4:22] + struct.pack("<H", end - 24 + len(tail)) + frame.data[24:end]
    return data + tail + frame.data[end:]


def newer(frame):
    """The sender's struct is longer: the rest must be zero."""
    said = frame.decoded
    if "elements" in said or "records" in said:
        data = longer_head(frame, bytes(16))
        yield frame.other("future-head", data, said | {"header": said["header"] | {"size": len(data), "fixed": said["header"]["fixed"] + 16}})
        yield frame.other("tail-head", longer_head(frame, bytes(15) + b"\1"), {"refused": "too_new"})
    if said.get("records") == []:
        return  # there is no record that could be longer
    data = write(said, frame.table, lambda data: data + bytes(16))
    yield frame.other("future", data, rewritten(said, data))
    for at in (0, 15):
        data = write(said, frame.table, lambda data: data + bytes(at) + b"\x80" + bytes(15 - at))
        # A refusal is read as far as it is known: a reason must not become a riddle.
        yield frame.other(f"tail-{at}", data, rewritten(said, data) if said["kind"] == "error" else {"refused": "too_new"})


def largest(frame):
    """Each number is the highest of its type, each text has 96 bytes, and a batch has as many elements as a packet takes."""
    said, (fields, texts) = frame.decoded, shape(frame.decoded, frame.table)

    def highest(code, name, value):
        if name.startswith("reserved") or name in ("status", "fd_index", "detail_len", "count", "element_size"):
            return 0
        return 96 if name.endswith("_len") else "ff" * int(code) if code in ("16", "64") else MOST[code]

    def fill(part):
        out = {"fields": each(fields, part["fields"], highest)}
        return out | ({"texts": {t: t[0] * 96 for t in texts.split()}} if texts else {})
    said = rewritten(said, frame.data, fill)
    if parts(said):
        row = parts(said)[0]
        room = MAX_MESSAGE - 24 - len(put(BATCH if "elements" in said else REPLIES[14][2], said["fixed"]))
        many = min(MAX_BATCH, room // (width(fields) + 96 * len(texts.split())))
        said = said | {"fixed": said["fixed"] | {"count": many}, "elements" if "elements" in said else "records": [row] * many}
    if said["kind"] == "error":
        said = said | {"sentence": "x" * 400}
    data = write(said, frame.table)
    yield frame.other("maximal", data, rewritten(said, data))


def shorter(frame):
    """The last byte is missing, and the header's size says so. Of an error, that is the last byte of the sentence."""
    if frame.decoded["kind"] != "error":
        data = struct.pack("<I", len(frame.data) - 1) + frame.data[4:-1]
        whole = 24 + frame.decoded["header"]["fixed"] == len(frame.data)
        yield frame.other("short", data, {"malformed": "fixed"} if whole else INVALID)


def is_todays(frame):
    """Whether it names every field of today's struct, and is what today's sender makes."""
    try:
        return write(frame.decoded, frame.table) == frame.data
    except KeyError:
        return False


def variants(golden):
    """For a vector made by today's sender. One whose structs have grown since is an older sender's frame already."""
    for frame in golden:
        if is_todays(frame):
            for family in (older, newer, largest, shorter):
                yield from family(frame)


def hostile(golden):
    """Frames that no sender should make, by patches of golden ones."""
    known = {frame.name: frame for frame in golden}
    status, create = known["status-request"], known["example-3-create"]
    hello, attach, page = known["hello-request"], known["attach-request"], known["list-regions"]
    not_found = known["error-not-found"]

    def patch(data, offset, code, value):
        blob = struct.pack("<" + code, value)
        return data[:offset] + blob + data[offset + len(blob):]

    def resized(data, fixed=8):
        return patch(patch(data, 0, "I", len(data)), 22, "H", fixed)

    def bad(name, data, why, n_fds=0, direction="request"):
        return Frame(f"frame-{name}", data, n_fds, direction, None, {"malformed": why})

    def refused(name, data, why, base=status):
        return Frame(f"refused-{name}", data, 0, base.direction, base.table, {"refused": why})

    def batch(base, count, element_size, elements):
        return resized(patch(patch(base.data[:32], 24, "H", count), 26, "H", element_size) + elements)
    whole = status.data
    yield bad("empty", b"", "empty")
    yield bad("one-byte", b"\x20", "short_header")
    yield bad("23-bytes", whole[:23], "short_header")
    yield bad("size-over", patch(whole, 0, "I", 33), "size")
    yield bad("size-under", patch(whole, 0, "I", 31), "size")
    yield bad("size-huge", patch(whole, 0, "I", 0xffffffff), "size")
    yield bad("fixed-over", patch(whole, 22, "H", 9), "fixed")
    yield bad("fixed-huge", patch(whole, 22, "H", 0xffff), "fixed")
    yield bad("fds-missing", patch(whole, 20, "H", 1), "fd_count")
    yield bad("fds-unasked", whole, "fd_count", n_fds=1)
    yield bad("op-reply-bit", patch(whole, 4, "H", 0x8000 | 15), "op_bits")
    yield bad("op-event-bit", patch(whole, 4, "H", 0x4000 | 7), "op_bits")
    yield bad("from-broker-no-bit", whole, "op_bits", direction="from_broker")
    yield bad("from-broker-both-bits", patch(patch(whole, 4, "H", 0xc001), 8, "Q", 7), "op_bits", direction="from_broker")
    yield bad("event-with-tag", patch(known["gap-event"].data, 8, "Q", 7), "op_bits", direction="from_broker")
    yield bad("error-short", patch(not_found.data[:44], 0, "I", 44), "fixed", direction="from_broker")
    yield refused("unknown-op", patch(whole, 4, "H", 999), "unknown_op")
    yield refused("op-zero", patch(whole, 4, "H", 0), "unknown_op")
    yield refused("unknown-flag", patch(whole, 6, "H", 8), "unknown_flags")
    yield refused("status-set", patch(whole, 16, "i", -1), "invalid")
    yield refused("reserved-set", patch(whole, 24, "B", 1), "too_new")
    yield refused("rest-unasked", resized(whole + b"\0"), "invalid")
    for count in (0, 2, 0xffff):
        yield refused(f"batch-count-{count}", patch(create.data, 24, "H", count), "invalid")
    yield refused("batch-count-254", batch(create, 254, 24, bytes(254 * 24)), "invalid")
    yield refused("batch-wraps", patch(create.data, 24, "I", 0xffffffff), "invalid")
    yield refused("batch-product-wraps-16", batch(create, 128, 512, bytes(24)), "invalid")
    yield refused("batch-element-0", patch(create.data, 26, "H", 0), "invalid")
    yield refused("batch-reserved", patch(create.data, 28, "I", 1), "too_new")
    yield refused("batch-no-fixed", resized(create.data[:24], fixed=0), "invalid")
    yield refused("element-reserved", patch(create.data, 32 + 36, "I", 1), "too_new")
    yield refused("text-long", patch(create.data, 32 + 32, "H", 3), "invalid")
    yield refused("text-short", patch(create.data, 32 + 32, "H", 1), "invalid")
    size = 24 + hello.decoded["header"]["fixed"]
    yield refused("text-sum-wraps-16", resized(patch(hello.data[:size], size - 8, "H", 0xffff) + b"ab", fixed=size - 24), "invalid")
    row = put(REQUESTS[3][2], attach.decoded["elements"][0]["fields"] | {"group_len": 0xffff, "name_len": 0xffff})
    yield refused("batch-text-sum-wraps-16", batch(attach, 2, len(row), row * 2 + b"abcd"), "invalid")
    yield refused("list-count", patch(page.data, 24 + 24, "H", 4), "invalid", page)
    yield refused("list-count-wraps", patch(patch(page.data, 24 + 24, "H", 0xffff), 24 + 26, "H", 0xffff), "invalid", page)
    yield refused("list-zero-element", patch(page.data, 24 + 26, "H", 0), "invalid", page)


def frames(folder):
    """The golden vectors, and all that follows from them."""
    golden = vectors(folder)
    return golden + list(variants(golden)) + list(hostile(golden))
