# SPDX-License-Identifier: Apache-2.0
"""Pickles with their large buffers apart: they travel in slots and regions, not in the pickle.

A pickled object is a stream of bytes and a list of buffers. Each buffer is copied once, into memory that its receiver
gets whole and for itself. Memory of `shmbroker.mp.empty` is not copied at all: it is handed over.
"""
from __future__ import annotations

import copyreg
import pickle
import sys
import threading
from multiprocessing.reduction import ForkingPickler

from . import memory, place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_ATOMS = frozenset((int, float, bool, str, type(None)))


reducers: dict[type, Any] = {}  # of packages that are not to change ForkingPickler's


class _Work(threading.local):
    """What this thread pickles or unpickles now: reducers and rebuilding functions ask for it."""

    attached: list[Any] | None = None  # of a message in the making: parts behind its buffers
    session: Any = None  # of that message's queue
    tickets: list[Any] | None = None  # of what a connection sends: reducers add theirs
    message: Any = None  # the one that is unpickled
    alone: set[Any] = set()  # things of which a reducer has sent only a part, as a copy
    whole: set[Any] = set()  # those that come again in the message: they are sent whole, once


work = _Work()


class _Sink(list):
    """A file for the pickler. Large bytes objects arrive as they are, without a copy."""

    write = list.append


class _Reducers:
    """The reducers of multiprocessing and of copyreg, as they are now, and ours for NumPy where it is loaded. The pickler
    asks for types that it does not know itself, so most objects never come here."""

    def __getitem__(self, kind: type) -> Any:
        for table in reducers, ForkingPickler._extra_reducers, copyreg.dispatch_table:
            reducer = table.get(kind)
            if reducer is not None:
                return reducer
        # getattr: it may be being imported in another thread
        if kind is getattr(sys.modules.get("numpy"), "ndarray", None):
            return _reduce_array
        raise KeyError(kind)


_reducers = _Reducers()


def _reduce_array(array: Any) -> Any:
    """Arrays arrive writable, as with the standard library, also those that are read-only or no single block here."""
    flags = array.flags
    if array.dtype.hasobject or flags.writeable and (flags.c_contiguous or flags.f_contiguous):
        return array.__reduce_ex__(5)
    if array.nbytes <= place.SLOT:
        return array.copy(order="A").__reduce_ex__(5)
    fresh = memory.empty(array.shape, array.dtype, order="F" if flags.f_contiguous else "C")
    fresh[...] = array
    return fresh.__reduce_ex__(5)


def dump(obj: Any, least: int = place.SMALL, attached: list[Any] | None = None,
         session: Any = None) -> tuple[list[Any], list[memoryview]]:
    """The stream in pieces, and the buffers that are large enough to travel apart. A reducer may add regions to
    `attached`, which travel with the message as they are. They must be of `session`, which is the queue's."""
    if type(obj) in _ATOMS:
        return [pickle.dumps(obj, 5)], []
    before = work.attached, work.alone, work.whole, work.session
    work.whole, work.session = set(), session
    try:
        while True:
            work.attached, work.alone, told = attached, set(), len(work.whole)
            chunks, buffers = _dump(obj, least)
            if len(work.whole) == told:
                return chunks, buffers
            if attached is not None:
                attached.clear()
    finally:
        work.attached, work.alone, work.whole, work.session = before


def _dump(obj: Any, least: int) -> tuple[list[Any], list[memoryview]]:
    chunks = _Sink()
    buffers: list[memoryview] = []

    def apart(buffer: pickle.PickleBuffer) -> bool:
        try:
            view = buffer.raw()
        except BufferError:
            return True  # not one block: the pickler says so
        if view.nbytes < least:
            return True
        buffers.append(view)
        return False

    pickler = pickle.Pickler(chunks, 5, buffer_callback=apart)
    pickler.dispatch_table = _reducers
    pickler.dump(obj)
    return chunks, buffers


def length(chunks: list[Any]) -> int:
    return sum(len(chunk) for chunk in chunks)


def fill(target: Any, chunks: list[Any]) -> None:
    """Copies the pieces one after another into memory."""
    with memoryview(target) as view:
        start = 0
        for chunk in chunks:
            end = start + len(chunk)
            view[start:end] = chunk
            start = end


loads = pickle.loads
