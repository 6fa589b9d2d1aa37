# SPDX-License-Identifier: Apache-2.0
"""Arrays that are handed over: their memory goes to the receiver, without a copy.

`empty(shape, dtype)` makes a NumPy array in a region of its own. Put into a queue, sent through a connection, or
returned by a worker as a whole, it is the receiver's alone from then on. The sender drops its array, or at least does not
use it any more. To send it twice is an error, because the first receiver may have written into it.
"""
from __future__ import annotations

import os
import threading
import weakref

from .. import _core
from ..arguments import items, number
from . import place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_lock = threading.Lock()
_own: dict[_core.RegionId, bool] = {}  # regions that `empty` made here; True: handed over


def _fork() -> None:
    global _lock
    _lock = threading.Lock()
    _own.clear()  # the parent's arrays: a child may send copies of them


os.register_at_fork(after_in_child=_fork)


def empty(shape: Any, dtype: Any = float, order: str = "C") -> Any:
    """A NumPy array in shared memory, its contents not set, which the next receiver gets without a copy."""
    import numpy
    dtype = numpy.dtype(dtype)
    if dtype.hasobject:
        raise TypeError("an array of Python objects cannot be in shared memory: choose a dtype of plain values")
    of_shape = "an int or a tuple of ints"
    shape = (shape,) if hasattr(type(shape), "__index__") else items(shape, "shape", of_shape)
    shape = tuple(number(length, "shape", of_shape) for length in shape)
    size = dtype.itemsize
    for length in shape:
        if length < 0:
            raise ValueError("negative dimensions are not allowed")
        size *= length
    region = place.new_region(size)
    _own[region.id] = False
    array = numpy.ndarray(shape, dtype, region, order=order)
    weakref.finalize(region, _own.pop, region.id, None).atexit = False
    return array


def find(buffer: Any) -> _core.Slot | _core.Region | None:
    """The slot or region of this process in which the buffer lies, or None: whether it is in shared memory."""
    return _core.find(buffer)


def handed(view: memoryview, session: _core.Session) -> _core.Region | None:
    """The region that the view covers, if `empty` made it in this session: the one to hand over. Raises where that was
    done before. Memory of another session, such as one of an earlier broker, is copied as any other."""
    if not _own:
        return None
    region = _core.find(view)
    if not isinstance(region, _core.Region) or region.size != view.nbytes or region.session is not session:
        return None
    with _lock:
        gone = _own.get(region.id)
        if gone is None:
            return None
        if gone:
            raise ValueError("this array of shmbroker.mp.empty was handed over before: its memory belongs to the "
                             "receiver. Send a copy, or make a new array for each send")
        _own[region.id] = True
    return region


def take_back(region: _core.Region) -> None:
    """The send failed: the array is its maker's again."""
    with _lock:
        if region.id in _own:
            _own[region.id] = False
