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

reducers: dict[type, Any] = {}  # of packages that are not to change ForkingPickler's


class _Work(threading.local):
    """The message that this thread pickles or unpickles now. Reducers and rebuilding functions ask for it."""

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


class _Tool:
    """A pickler that is used again for the next small object: to make one takes longer than to pickle with it. It is also the
    dispatch table of its pickler. The pickler asks that only for types which it does not know itself, and most objects have
    none. So what reducers may ask for is prepared when the first one is asked for."""

    __slots__ = ("pickler", "sink", "buffers", "least", "attached", "session", "before")

    def __init__(self) -> None:
        self.sink: list[Any] = _Sink()
        self.buffers: list[memoryview] = []
        self.before: Any = None  # of `work`, once this has changed it
        self.pickler = pickle.Pickler(self.sink, 5, buffer_callback=self.apart)
        self.pickler.dispatch_table = self

    def __getitem__(self, kind: type) -> Any:
        if self.before is None:
            self.before = work.attached, work.alone, work.whole, work.session
            work.attached, work.alone, work.whole, work.session = self.attached, set(), set(), self.session
        return _reducers[kind]

    def apart(self, buffer: pickle.PickleBuffer) -> bool:
        try:
            view = buffer.raw()
        except BufferError:
            return True  # not one block: the pickler says so
        if view.nbytes < self.least:
            return True
        self.buffers.append(view)
        return False

    def repeat(self, pickler: Any, obj: Any) -> None:
        """Reducers have learned of things that come again in the message, and are to be sent whole: pickles it again."""
        told = 0
        while len(work.whole) != told:
            told = len(work.whole)
            if self.attached is not None:
                self.attached.clear()
            work.alone = set()
            self.sink.clear()
            self.buffers.clear()
            pickler.clear_memo()
            pickler.dump(obj)

    def leave(self) -> None:
        work.attached, work.alone, work.whole, work.session = self.before
        self.before = None


_spare: list[_Tool] = []
_SPARE = 8
_AGAIN = 1024  # bytes of a stream whose pickler is used again: forgetting many objects takes long


def dump(obj: Any, least: int = place.SMALL, attached: list[Any] | None = None,
         session: Any = None) -> tuple[list[Any], list[memoryview]]:
    """The stream in pieces, and the buffers that are large enough to travel apart. A reducer may add regions to
    `attached`, which travel with the message as they are. They must be of `session`, which is the queue's."""
    try:
        tool = _spare.pop()
    except IndexError:
        tool = _Tool()
    tool.least, tool.attached, tool.session = least, attached, session
    sink, pickler = tool.sink, tool.pickler
    tool.pickler = None  # no cycle: what is not used again goes at once, with all that it has pickled
    try:
        pickler.dump(obj)
        if tool.before is not None:
            tool.repeat(pickler, obj)
    finally:
        if tool.before is not None:
            tool.leave()
    if len(sink) != 1 or tool.buffers or len(sink[0]) > _AGAIN or len(_spare) >= _SPARE:
        return sink, tool.buffers
    stream = sink.pop()
    pickler.clear_memo()
    tool.pickler, tool.attached, tool.session = pickler, None, None
    _spare.append(tool)
    return [stream], []


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
