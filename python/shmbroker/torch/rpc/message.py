# SPDX-License-Identifier: Apache-2.0
"""Messages between workers of Python: a pickle, with buffers and references beside it.

    0xC1 | flags | count of buffers | a number for each buffer | small buffers, each at a multiple of 16 | the pickle

No msgpack begins with 0xC1, so a receiver sees whether a worker of Python or one of C++ has written. A buffer from
64 KiB on lies in a region of the broker, which the receiver maps and has for itself. Smaller ones are views of the one
bytearray that has arrived. So every tensor is the receiver's own, as with torch.distributed.rpc.

A value that many workers fetch is copied into a region once (`Snapshot`). Its receivers map it privately: the kernel
copies the pages that they write.
"""
from __future__ import annotations

import copyreg
import pickle
import struct
import threading
import weakref
from typing import TYPE_CHECKING, Any, Callable

from ... import _core

if TYPE_CHECKING:
    Payload = tuple[bytes | bytearray, list[_core.Region], list[_core.RemoteReference]]

MAGIC = 0xC1
IN_REGION = 65536  # bytes of a buffer from which on it gets a region
_HEAD = struct.Struct("<BBHI")
_REGION, _PRIVATE = 1 << 63, 1 << 62
_ALIGNED = 16

_reducers: dict[type, Callable[[Any], Any]] = {}


class _Work(threading.local):
    """The message that this thread packs or unpacks now. Reducers and rebuilding functions ask for it."""

    going: list[Any] | None = None
    arriving: Any = None


_work = _Work()
arrived: weakref.WeakValueDictionary[int, _core.Region] = weakref.WeakValueDictionary()  # nobody else has them; by address


def register(kind: type, reducer: Callable[[Any], Any]) -> None:
    """How objects of exactly this type travel: as __reduce__ gives it."""
    _reducers[kind] = reducer


def refer(reference: Any) -> int:
    """The number of a reference that the message in the making carries."""
    going = _work.going
    if going is None:
        raise pickle.PicklingError("a reference is pickled in messages of rpc only")
    going.append(reference)
    return len(going) - 1


class _Sink(list[Any]):
    """A file for the pickler, which writes few and large pieces."""

    write = list.append


class Snapshot:
    """A region with the bytes that a buffer had, for all who ask for them."""

    def __init__(self) -> None:
        self.region: _core.Region | None = None
        self.mark: object = None  # of the value that it is of


def is_message(data: bytes | bytearray) -> bool:
    return len(data) > 0 and data[0] == MAGIC


def pack(world: _core.RemoteWorld, value: Any, references: list[Any] | None = None,
         snapshot: Snapshot | None = None) -> Payload:
    """`snapshot`: for a value that is one buffer, where its region is kept, or is already."""
    pieces, found = _Sink(), []
    pickler = pickle.Pickler(pieces, 5, buffer_callback=found.append)  # type: ignore[arg-type]
    pickler.dispatch_table = {**copyreg.dispatch_table, **_reducers}
    going: list[Any] = [] if references is None else references
    before, _work.going = _work.going, going
    try:
        pickler.dump(value)
    finally:
        _work.going = before
    numbers: list[int] = []
    inline: list[memoryview] = []
    regions: list[_core.Region] = []
    for buffer in found:
        view = buffer.raw()
        if view.nbytes < IN_REGION:
            numbers.append(view.nbytes)
            inline.append(view)
        elif snapshot is not None and len(found) == 1:
            if snapshot.region is None:
                region = _filled(world, view)
                region.publish()
                snapshot.region = region
            numbers.append(view.nbytes | _REGION | _PRIVATE)
            regions.append(snapshot.region)
        else:
            numbers.append(view.nbytes | _REGION)
            regions.append(_filled(world, view))
    at = _HEAD.size + 8 * len(numbers)
    parts: list[Any] = [_HEAD.pack(MAGIC, 0, 0, len(numbers)), struct.pack(f"<{len(numbers)}Q", *numbers)]
    for view in inline:
        pad = -at % _ALIGNED
        if pad:
            parts.append(bytes(pad))
        parts.append(view)
        at += pad + view.nbytes
    parts += pieces
    return b"".join(parts), regions, going


def _filled(world: _core.RemoteWorld, view: memoryview) -> _core.Region:
    region = world.region(view.nbytes)
    with memoryview(region) as memory:
        memory[: view.nbytes] = view
    return region


def unpack(content: tuple[bytearray, tuple[Any, ...], tuple[Any, ...]]) -> Any:
    data, regions, references = content
    whole = memoryview(data)
    count = _HEAD.unpack_from(data)[3]
    at = _HEAD.size + 8 * count
    buffers: list[memoryview] = []
    next_region = 0
    for number in struct.unpack_from(f"<{count}Q", data, _HEAD.size):
        length = number & ~(_REGION | _PRIVATE)
        if number & _REGION:
            region = regions[next_region]
            next_region += 1
            if not number & _PRIVATE:
                arrived[region.address] = region
            buffers.append(memoryview(_core.private_copy(region) if number & _PRIVATE else region)[:length])
        else:
            at += -at % _ALIGNED
            buffers.append(whole[at : at + length])
            at += length
    before, _work.arriving = _work.arriving, references
    try:
        return pickle.loads(whole[at:], buffers=buffers)
    except AttributeError as error:
        raise AttributeError(f"{error} Default RPC pickler does not serialize function code. Ensure that UDFs are "
                             "defined on both caller and callee modules.") from error
    finally:
        _work.arriving = before


def arrived_reference(number: int) -> _core.RemoteReference:
    """For what is being unpickled by this thread."""
    return _work.arriving[number]  # type: ignore[no-any-return]
