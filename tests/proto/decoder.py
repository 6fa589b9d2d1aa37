#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A second reader of the wire, written by hand from proto/PROTOCOL.md.

It shares no code and no table with the C++ codec: an error in messages.toml or in the generator would otherwise be
made by both and go unseen. Keep it so.

read_vectors.py holds it against the golden vectors and against the C++ codec.
"""
import struct

# One letter a field, as in the struct module; "16" and "64" are that many bytes, "R" a region_ref, "F" a ref_id, "O" an outcome. Nothing is
# padded: the document names its padding.
REGION = "Q:id I:generation I:reserved"
REFERENCE = "Q:counter I:creator I:reserved"
OUTCOME = "i:status H:fd_index H:detail_len"
BATCH = "H:count H:element_size I:reserved"
REFUSAL = "H:slot H:scope I:system_errno Q:scope_id Q:limit Q:used Q:asked"
HEADER = "I:size H:op H:flags Q:tag i:status H:n_fds H:fixed"

# op: (name, is a batch, fields, texts)
REQUESTS = {
    1: ("hello", False, "H:version_min H:version_max I:pid Q:features Q:start_time Q:fork_session 16:fork_secret "
        "16:group_token H:library_len H:group_len I:reserved", "library group"),
    2: ("create", True, "Q:group Q:length q:keep I:flags I:rights H:name_len H:reserved0 I:reserved1", "name"),
    3: ("attach", True, "I:by I:rights I:flags I:owner_uid R:region 16:ticket H:group_len H:name_len I:reserved", "group name"),
    4: ("release", True, "R:region I:count I:flags", ""),
    5: ("ready", True, "R:region Q:populated I:page_kind I:flags", ""),
    6: ("publish", False, "R:region", ""),
    7: ("ticket_create", False, "R:region I:rights I:uses q:lifetime I:flags I:reserved Q:session", ""),
    8: ("inherit", True, "R:region I:rights I:count", ""),
    9: ("group_create", False, "I:flags I:limit_regions q:keep Q:limit_bytes H:name_len H:reserved0 I:reserved1", "name"),
    10: ("group_join", False, "16:token I:owner_uid I:flags H:name_len H:reserved0 I:reserved1", "name"),
    11: ("group_leave", False, "Q:group", ""),
    12: ("group_end", False, "Q:group I:flags H:name_len H:reserved", "name"),
    13: ("watch", False, "I:kind I:events I:owner_uid I:flags R:region Q:group Q:watch H:group_len H:name_len I:reserved 16:ticket",
         "group name"),
    14: ("list", False, "I:table I:flags Q:cursor Q:group R:region I:owner_uid H:group_len H:name_len", "group name"),
    15: ("status", False, "Q:reserved", ""),
    16: ("pool_create", False, "Q:group q:keep I:flags I:slots I:lanes I:queues I:segments H:name_len H:reserved Q:lane_bytes", "name"),
    17: ("pool_join", False, "Q:pool I:flags I:owner_uid H:group_len H:name_len I:reserved", "group name"),
    18: ("pool_leave", False, "Q:pool I:flags I:reserved", ""),
    19: ("pool_segment", False, "Q:pool R:region Q:slot_size I:slots I:slots_limit", ""),
    20: ("queue_open", False, "Q:pool I:kind I:flags I:cells I:cell_size H:name_len H:reserved0 I:reserved1", "name"),
    21: ("queue_close", False, "Q:pool I:queue I:serial I:flags I:reserved", ""),
    22: ("lane_finished", True, "Q:pool I:lane I:serial I:end I:reserved", ""),
    23: ("queue_hold", True, "Q:pool I:lane I:serial R:region I:flags I:reserved", ""),
    24: ("pool_doorbell", False, "Q:pool I:flags I:participant I:life I:reserved", ""),
    60: ("ticket_revoke", False, "16:ticket", ""),
    61: ("tickets_release", False, "R:region Q:group Q:cursor I:owner_uid I:flags", ""),
    64: ("shelf_empty", False, "Q:bytes", ""),
    65: ("books", False, "Q:reserved", ""),
    25: ("world_join", False, "I:port I:rank I:world_size H:address_len H:name_len", "address name"),
    26: ("world_leave", False, "Q:world", ""),
    27: ("world_pool", False, "Q:world Q:pool", ""),
    28: ("ref_create", True, "Q:world Q:counter I:owner I:user I:state I:flags I:owner_life I:user_life", ""),
    29: ("ref_fork", True, "Q:world F:reference I:user I:user_life", ""),
    30: ("ref_take", True, "Q:world F:fork I:flags I:reserved", ""),
    31: ("ref_release", True, "Q:world F:fork", ""),
    32: ("ref_settle", True, "Q:world F:reference I:state H:error_len H:reserved", "error"),
    33: ("ref_ask", False, "Q:world F:reference I:flags I:reserved", ""),
    34: ("group_limit", False, "Q:group Q:bytes H:name_len H:reserved0 I:reserved1", "name"),
    40: ("gpu_device", False, "16:uuid I:flags H:pci_len H:reserved", "pci"),
    41: ("gpu_publish", True, "Q:group Q:bytes Q:chunk_bytes Q:granularity q:keep 16:uuid Q:manifest_bytes I:kind I:flags I:rights I:chunks "
         "I:driver H:name_len H:reserved Q:offset Q:allocation 64:handle", "name"),
    42: ("gpu_chunks", False, "R:region I:first I:count", ""),
    43: ("gpu_open", True, "I:by I:rights I:flags I:owner_uid R:region 16:ticket H:group_len H:name_len I:reserved", "group name"),
    44: ("gpu_more", False, "R:region I:first I:count", ""),
    45: ("gpu_report", True, "R:region I:what i:code 16:uuid", ""),
    46: ("gpu_retire", True, "R:region", ""),
    47: ("gpu_timeline", False, "Q:group q:keep I:flags I:words H:name_len H:reserved0 I:reserved1", "name"),
    48: ("gpu_pinned", True, "R:region I:flags I:reserved", ""),
}
REPLIES = {
    1: ("hello", False, "H:version H:mode I:broker_uid I:uid I:max_message Q:features Q:epoch Q:session Q:group 16:fork_secret "
        "H:max_batch H:broker_len I:reserved", "broker"),
    2: ("create", True, "O:outcome R:region Q:bytes Q:group I:flags I:rights", ""),
    3: ("attach", True, "O:outcome R:region Q:length Q:bytes Q:group I:rights I:state I:page_kind I:flags", ""),
    4: ("release", True, "O:outcome", ""),
    6: ("publish", False, "R:region I:rights I:reserved", ""),
    7: ("ticket_create", False, "16:ticket q:expires", ""),
    8: ("inherit", True, "O:outcome I:rights I:reserved", ""),
    9: ("group_create", False, "Q:group 16:token", ""),
    10: ("group_join", False, "Q:group", ""),
    11: ("group_leave", False, "Q:group", ""),
    12: ("group_end", False, "I:members I:regions Q:bytes_freed", ""),
    13: ("watch", False, "Q:watch I:state I:reserved", ""),
    14: ("list", False, "Q:next Q:total_bytes Q:total_count H:count H:element_size I:reserved", ""),
    15: ("status", False, "I:mode I:engine Q:epoch Q:features q:uptime Q:bytes Q:bytes_limit Q:bytes_cached Q:requests Q:refusals "
         "Q:reclaims Q:bytes_reclaimed I:pid I:broker_uid I:regions I:sessions I:groups I:leases I:tickets I:watches I:descriptors "
         "I:descriptors_limit I:descriptors_reserved I:in_flight H:version_len H:kernel_len H:engine_len H:losses_len",
         "version kernel engine losses"),
    16: ("pool_create", False, "Q:pool Q:group Q:directory_bytes Q:control_bytes I:participant I:life", ""),
    17: ("pool_join", False, "Q:pool Q:group Q:directory_bytes Q:control_bytes I:participant I:life", ""),
    18: ("pool_leave", False, "I:unread I:reserved", ""),
    19: ("pool_segment", False, "I:segment I:first_slot", ""),
    20: ("queue_open", False, "I:queue I:serial I:lane I:lane_serial", ""),
    21: ("queue_close", False, "I:readers I:writers", ""),
    23: ("queue_hold", True, "O:outcome", ""),
    24: ("pool_doorbell", False, "I:participant I:life", ""),
    60: ("ticket_revoke", False, "I:uses_left I:reserved", ""),
    61: ("tickets_release", False, "Q:next Q:bytes_freed I:tickets I:regions I:held I:reserved", ""),
    64: ("shelf_empty", False, "Q:bytes Q:pending", ""),
    65: ("books", False, "Q:bytes I:major I:minor", ""),
    25: ("world_join", False, "Q:world Q:group Q:pool I:present I:flags I:life I:reserved", ""),
    26: ("world_leave", False, "I:present I:forks", ""),
    27: ("world_pool", False, "Q:pool", ""),
    28: ("ref_create", True, "O:outcome F:reference F:fork", ""),
    29: ("ref_fork", True, "O:outcome F:fork", ""),
    30: ("ref_take", True, "O:outcome F:reference I:owner I:state I:owner_life I:reserved", ""),
    31: ("ref_release", True, "O:outcome", ""),
    32: ("ref_settle", True, "O:outcome I:state I:users", ""),
    33: ("ref_ask", False, "I:state I:owner I:users I:in_flight q:created H:error_len H:reserved0 I:reserved1", "error"),
    34: ("group_limit", False, "Q:group Q:bytes Q:before Q:used", ""),
    40: ("gpu_device", False, "Q:watch I:hold I:minor", ""),
    41: ("gpu_publish", True, "O:outcome R:region Q:bytes Q:group I:rights I:state I:chunks I:reserved", ""),
    42: ("gpu_chunks", False, "I:state I:chunks", ""),
    43: ("gpu_open", True, "O:outcome R:region Q:bytes Q:chunk_bytes Q:granularity Q:group Q:offset Q:allocation Q:manifest_bytes 16:uuid "
         "I:kind I:state I:rights I:flags I:chunks I:sent I:driver I:exporter_pid H:manifest_fd H:reserved0 I:reserved1 64:handle", ""),
    44: ("gpu_more", False, "I:first I:count", ""),
    45: ("gpu_report", True, "O:outcome I:state I:regions", ""),
    46: ("gpu_retire", True, "O:outcome I:users I:reserved", ""),
    47: ("gpu_timeline", False, "R:region Q:bytes Q:group", ""),
    48: ("gpu_pinned", True, "O:outcome I:pins I:reserved", ""),
}
EVENTS = {
    1: ("region_ready", False, "Q:sequence Q:watch R:region", ""),
    2: ("region_published", False, "Q:sequence Q:watch R:region", ""),
    3: ("region_gone", False, "Q:sequence Q:watch R:region", ""),
    4: ("name_appeared", False, "Q:sequence Q:watch R:region H:name_len H:reserved0 I:reserved1", "name"),
    5: ("group_ended", False, "Q:sequence Q:watch Q:group Q:bytes_freed", ""),
    6: ("reclaim", False, "Q:sequence Q:watch Q:group Q:bytes I:uid I:pid I:regions I:how i:code H:text_len H:reserved", "text"),
    7: ("gap", False, "Q:sequence Q:watch Q:lost", ""),
    8: ("pool_changed", False, "Q:sequence Q:watch Q:pool", ""),
    9: ("give_up", False, "Q:sequence Q:watch R:region", ""),
    10: ("resume", False, "Q:sequence Q:watch Q:number", ""),
    16: ("world_changed", False, "Q:sequence Q:watch Q:world I:change I:rank I:present I:life", ""),
    17: ("ref_unused", False, "Q:sequence Q:watch Q:world F:reference", ""),
    18: ("ref_changed", False, "Q:sequence Q:watch Q:world F:reference I:state I:owner", ""),
    24: ("gpu_state", False, "Q:sequence Q:watch R:region I:state I:kind i:code I:pid", ""),
    25: ("gpu_drained", False, "Q:sequence Q:watch R:region", ""),
    26: ("gpu_device", False, "Q:sequence Q:watch 16:uuid I:hold I:minor I:system_errno H:text_len H:reserved", "text"),
}
RECORDS = {
    "regions": ("R:region Q:length Q:bytes Q:touched Q:group I:owner_uid I:state I:page_kind I:flags I:holders I:writers I:tickets "
                "I:creator_pid q:created q:keep q:freed_at H:group_len H:name_len I:queues Q:pool", "group name"),
    "groups": ("Q:group Q:bytes Q:bytes_limit Q:bytes_peak Q:bytes_cached I:owner_uid I:flags I:members I:heirs I:supervisors "
               "I:regions I:regions_limit I:reserved0 q:created q:keep H:name_len H:reserved1 I:reserved2", "name"),
    "sessions": ("Q:session Q:group I:uid I:pid I:state I:leases I:watches I:in_flight q:connected I:death_by H:library_len H:reserved",
                 "library"),
    "leases": ("R:region Q:session I:uid I:pid I:rights I:count I:state I:reserved q:since", ""),
    "tickets": ("R:region Q:group I:maker_uid I:rights I:uses_left I:maker_pid q:expires Q:maker", ""),
    "uids": ("Q:bytes Q:bytes_limit I:uid I:sessions I:groups I:regions I:leases I:tickets I:watches I:tickets_left Q:tickets_limit Q:session_tickets",
             ""),
    "pools": ("Q:pool Q:group Q:bytes Q:control_bytes I:owner_uid I:flags I:slots I:slots_limit I:slots_used I:slots_high I:segments "
              "I:participants I:leaving I:queues I:lanes I:deaths q:created q:keep H:group_len H:name_len I:reserved", "group name"),
    "queues": ("Q:pool Q:group I:queue I:serial I:kind I:flags I:cells I:cell_size I:readers I:writers I:lanes I:closed Q:depth Q:lag "
               "Q:lost Q:regions I:owner_uid I:deaths H:pool_len H:name_len I:in_regions", "pool name"),
    "participants": ("Q:pool Q:session I:participant I:life I:state I:pid I:uid I:slots_held I:reading I:writing Q:unread", ""),
    "worlds": ("Q:world Q:group Q:pool I:owner_uid I:port I:world_size I:present I:died I:flags Q:references Q:forks q:created "
               "H:address_len H:reserved0 I:replaced", "address"),
    "workers": ("Q:world Q:session I:rank I:state I:pid I:uid Q:owned Q:forks H:name_len H:reserved0 I:life I:participant I:participant_life", "name"),
    "references": ("Q:world F:reference I:owner I:state I:users I:in_flight Q:user_ranks q:created H:error_len H:reserved0 I:reserved1",
                   "error"),
    "gpu_regions": ("R:region Q:bytes Q:chunk_bytes Q:group 16:uuid I:owner_uid I:kind I:state I:flags I:chunks I:hold I:minor I:driver "
                    "I:exporter_pid I:exporter I:importers I:leaving I:tickets I:queues i:code I:publish_flags q:created q:keep q:freed_at "
                    "H:group_len H:name_len I:reserved", "group name"),
    "reports": ("Q:report Q:session Q:group Q:bytes Q:gpu_bytes q:when I:uid I:pid I:regions I:leases I:how i:code H:group_len "
                "H:library_len H:ending_len H:reserved", "group library ending"),
    "refusals": ("H:slot H:scope I:reserved Q:count", ""),
}


def text(data):
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"bytes": data.hex()}


class Malformed(Exception):
    """The frame is broken: the connection ends."""


class Refused(Exception):
    """An error reply; the connection stays."""


def width(fields):
    return sum({"Q": 8, "q": 8, "I": 4, "i": 4, "H": 2, "16": 16, "64": 64, "R": 16, "F": 16, "O": 8}[f.split(":")[0]] for f in fields.split())


def read(fields, data):
    """Fields that an older sender left out read as zero. Those that a newer one added, and reserved ones, must be zero."""
    size = width(fields)
    if any(data[size:]):
        raise Refused("too_new")
    data, out, at = data[:size].ljust(size, b"\0"), {}, 0
    for item in fields.split():
        code, name = item.split(":")
        step = width(item)
        raw = data[at:at + step]
        at += step
        if code in ("16", "64"):
            out[name] = raw.hex()
        elif code in "RFO":
            out[name] = read({"R": REGION, "F": REFERENCE, "O": OUTCOME}[code], raw)
        else:
            out[name] = struct.unpack("<" + code, raw)[0]
            if name.startswith("reserved") and out[name]:
                raise Refused("too_new")
    return out


class Rest:
    def __init__(self, data):
        self.data = data

    def take(self, size):
        if size > len(self.data):
            raise Refused("invalid")
        taken, self.data = self.data[:size], self.data[size:]
        return taken

    def texts(self, names, fields):
        return {n: text(self.take(fields[n + "_len"])) for n in names.split()}

    def end(self):
        if self.data:
            raise Refused("invalid")


def decode(data, n_fds, direction, table=None):
    if not data:
        raise Malformed("empty")
    if len(data) < 24:
        raise Malformed("short_header")
    head = read(HEADER, data[:24])
    if head["size"] != len(data):
        raise Malformed("size")
    if head["fixed"] > len(data) - 24:
        raise Malformed("fixed")
    if head["n_fds"] != n_fds:
        raise Malformed("fd_count")
    reply, event, op = head["op"] & 0x8000, head["op"] & 0x4000, head["op"] & 0x3fff
    if direction == "request":
        if reply or event:
            raise Malformed("op_bits")
    elif bool(reply) == bool(event) or (event and head["tag"]):
        raise Malformed("op_bits")
    if head["flags"] & ~7:
        raise Refused("unknown_flags")
    fixed, rest = data[24:24 + head["fixed"]], Rest(data[24 + head["fixed"]:])

    # The reader of a refusal passes over what it does not know: being strict would turn a reason into a riddle.
    if reply and head["status"]:
        name = REPLIES[op][0] if op in REPLIES else REQUESTS[op][0] if op in REQUESTS else f"op {op}"
        return {"header": head, "message": name, "kind": "error", "fixed": read(REFUSAL, fixed[:40]),
                "sentence": text(rest.data)}
    if head["status"]:
        raise Refused("invalid")
    known, kind = (REPLIES, "reply") if reply else (EVENTS, "event") if event else (REQUESTS, "request")
    if op not in known:
        raise Refused("unknown_op")
    name, is_batch, fields, texts = known[op]
    out = {"header": head, "message": name, "kind": kind}
    if is_batch:
        out["fixed"] = batch = read(BATCH, fixed)
        if not 1 <= batch["count"] <= 253 or not batch["element_size"]:
            raise Refused("invalid")
        raw = rest.take(batch["count"] * batch["element_size"])
        rows = [read(fields, raw[i:i + batch["element_size"]]) for i in range(0, len(raw), batch["element_size"])]
        out["elements"] = [element(row, texts, rest) for row in rows]
    else:
        out["fixed"] = read(fields, fixed)
        if texts:
            out["texts"] = rest.texts(texts, out["fixed"])
        if kind == "reply" and name == "list":
            out["records"] = records(out["fixed"], rest, *RECORDS[table])
    rest.end()
    return out


def element(row, texts, rest):
    out = {"fields": row}
    if texts:
        out["texts"] = rest.texts(texts, row)
    if "outcome" in row and row["outcome"]["detail_len"]:
        detail = rest.take(row["outcome"]["detail_len"])
        out["detail"] = {"refusal": read(REFUSAL, detail[:40]), "sentence": text(detail[40:])}
    return out


def records(page, rest, fields, texts):
    rows = []
    for _ in range(page["count"]):
        if not page["element_size"]:
            raise Refused("invalid")
        row = {"fields": read(fields, rest.take(page["element_size"]))}
        if texts:
            row["texts"] = rest.texts(texts, row["fields"])
        rows.append(row)
    return rows


def verdict(data, n_fds, direction, table):
    try:
        return decode(data, n_fds, direction, table)
    except Malformed as e:
        return {"malformed": str(e)}
    except Refused as e:
        return {"refused": str(e)}
