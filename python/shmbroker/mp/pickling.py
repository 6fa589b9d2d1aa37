# SPDX-License-Identifier: Apache-2.0
"""Pickles with their large buffers apart: they travel in slots and regions, not in the pickle.

A pickled object is a stream of bytes and a list of buffers. Each buffer is copied once, into memory that its receiver
gets whole and for itself. Memory of `shmbroker.mp.empty` is not copied at all: it is handed over.
"""
from __future__ import annotations

import copyreg
import pickle
import sys
from multiprocessing.reduction import ForkingPickler

from . import memory, place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_ATOMS = frozenset((int, float, bool, str, type(None)))


class _Sink(list):
    """A file for the pickler. Large bytes objects arrive as they are, without a copy."""

    write = list.append


def _table() -> dict[type, Any]:
    """The reducers of multiprocessing and of copyreg, as they are now, and ours for NumPy where it is loaded."""
    table = copyreg.dispatch_table.copy()
    table.update(ForkingPickler._extra_reducers)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        try:
            table.setdefault(numpy.ndarray, _reduce_array)
        except AttributeError:
            pass  # it is being imported in another thread
    return table


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


def dump(obj: Any, least: int = place.SMALL) -> tuple[list[Any], list[memoryview]]:
    """The stream in pieces, and the buffers that are large enough to travel apart."""
    if type(obj) in _ATOMS:
        return [pickle.dumps(obj, 5)], []
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
    pickler.dispatch_table = _table()
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
