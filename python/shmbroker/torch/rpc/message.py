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

import io
import pickle
import struct
import threading
from typing import TYPE_CHECKING, Any, Callable

from ... import _core

if TYPE_CHECKING:
    Payload = tuple[bytes | bytearray, list[_core.Region], list[_core.RemoteReference]]

MAGIC = 0xC1
IN_REGION = 65536  # bytes of a buffer from which on it gets a region
_HEAD = struct.Struct("<BBHI")
_REGION, _PRIVATE = 1 << 63, 1 << 62
_ALIGNED = 16

Reducer = Callable[["Pickler", Any], Any]
_reducers: dict[type, Reducer] = {}
_arriving = threading.local()


def register(kind: type, reducer: Reducer) -> None:
    """How objects of exactly this type travel: as reducer_override of pickle gives it."""
    _reducers[kind] = reducer


class Pickler(pickle.Pickler):
    """One message. `references` may begin with the one that a call is about."""

    def __init__(self, file: io.BytesIO, references: list[Any]) -> None:
        self.buffers: list[pickle.PickleBuffer] = []
        self.references = references
        super().__init__(file, 5, buffer_callback=self.buffers.append)

    def reducer_override(self, value: Any) -> Any:
        reducer = _reducers.get(type(value))
        return NotImplemented if reducer is None else reducer(self, value)

    def refer(self, reference: Any) -> int:
        self.references.append(reference)
        return len(self.references) - 1


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
    file = io.BytesIO()
    pickler = Pickler(file, [] if references is None else references)
    pickler.dump(value)
    pickled = file.getbuffer()
    numbers: list[int] = []
    inline: list[memoryview] = []
    regions: list[_core.Region] = []
    for buffer in pickler.buffers:
        view = buffer.raw()
        if view.nbytes < IN_REGION:
            numbers.append(view.nbytes)
            inline.append(view)
        elif snapshot is not None and len(pickler.buffers) == 1:
            if snapshot.region is None:
                region = _filled(world, view)
                region.publish()
                snapshot.region = region
            numbers.append(view.nbytes | _REGION | _PRIVATE)
            regions.append(snapshot.region)
        else:
            numbers.append(view.nbytes | _REGION)
            regions.append(_filled(world, view))
    head = _HEAD.size + 8 * len(numbers)
    parts: list[Any] = [_HEAD.pack(MAGIC, 0, 0, len(numbers)), struct.pack(f"<{len(numbers)}Q", *numbers)]
    at = head
    for view in inline:
        pad = -at % _ALIGNED
        if pad:
            parts.append(bytes(pad))
        parts.append(view)
        at += pad + view.nbytes
    parts.append(pickled)
    return b"".join(parts), regions, pickler.references


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
            buffers.append(memoryview(_core.private_copy(region) if number & _PRIVATE else region)[:length])
        else:
            at += -at % _ALIGNED
            buffers.append(whole[at : at + length])
            at += length
    before = getattr(_arriving, "references", None)
    _arriving.references = references
    try:
        return pickle.loads(whole[at:], buffers=buffers)
    except AttributeError as error:
        raise AttributeError(f"{error} Default RPC pickler does not serialize function code. Ensure that UDFs are "
                             "defined on both caller and callee modules.") from error
    finally:
        _arriving.references = before


def arrived_reference(number: int) -> _core.RemoteReference:
    """For what is being unpickled by this thread."""
    return _arriving.references[number]  # type: ignore[no-any-return]
