# SPDX-License-Identifier: Apache-2.0
"""Storages of torch in regions of the broker.

A shared storage lies in one region. The storage holds the Region object, which holds the mapping and this process'
reference to the region. So the memory goes back when the last storage in all processes has gone, however those ended.

`move` puts a private storage into a region in place, as torch's own `_share_fd_cpu_` does: all tensors on the storage see
the new memory. torch offers no call for that from Python. So the pointer, its owner and its deleter are exchanged between
the two storage objects, at places that `Layout` finds by looking at storages whose content is known.

Each process knows its living shared storages by the identity of their regions. So a tensor that comes again, or comes home,
is on the same storage. A forked child inherits the storages. It takes a reference of its own when it first sends one.
"""
from __future__ import annotations

import collections
import ctypes
import os
import threading
import weakref

import torch
from torch.multiprocessing import reductions as _stock

from .. import _core, errors
from ..mp import message, place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LARGE = 2 << 20  # bytes; from here on the broker recycles memory, and has it in huge pages
_KEPT_BYTES = 16 << 20  # of small regions that come again and again
_KEPT_COUNT = 256

_DATA_WORDS = 3  # what a storage says of its memory: address, deleter, owner


def untyped(tensor: Any) -> Any:
    """The untyped storage of a tensor: torch 2 has a method for it, and warns of the other way."""
    if hasattr(tensor, "untyped_storage"):
        return tensor.untyped_storage()
    return tensor._storage() if hasattr(tensor, "_storage") else tensor.storage().untyped()


class Layout:
    """Where a storage object of this torch keeps its memory's address, and whether it may be resized."""

    def __init__(self) -> None:
        usable = ctypes.CDLL(None).malloc_usable_size
        usable.argtypes, usable.restype = [ctypes.c_void_p], ctypes.c_size_t
        own = [torch.UntypedStorage(4096) for _ in range(4)]
        views = [memoryview(bytearray(4096)) for _ in own]
        foreign = [untyped(torch.frombuffer(view, dtype=torch.uint8)) for view in views]
        length = min(usable(one._cdata) for one in own + foreign) // 8 * 8
        words = [(ctypes.c_uint64 * (length // 8)).from_address(one._cdata) for one in own + foreign]
        places = [number for number in range(length // 8 - _DATA_WORDS - 2)
                  if all(word[number] == one.data_ptr() for word, one in zip(words, own + foreign))]
        if not places:
            raise LookupError("no storage object of this torch has its memory's address in it")
        self.data = places[0] * 8
        size = next((number for number in range(places[0] + 1, length // 8)
                     if all(word[number] == 4096 for word in words)), None)
        if size is None:
            raise LookupError("no storage object of this torch has its size in it")
        flags = [(size + 1) * 8 + number for number in range(8)]
        self.resizable = next((at for at in flags if all(_byte(one, at) == 1 for one in own)
                               and all(_byte(one, at) == 0 for one in foreign)), None)
        self._prove(own[0], foreign[0])

    def _prove(self, one: Any, other: Any) -> None:
        first, second = one.data_ptr(), other.data_ptr()
        self.exchange(one, other)
        if one.data_ptr() != second or other.data_ptr() != first:
            raise LookupError("the memory of two storages of this torch cannot be exchanged")
        self.exchange(one, other)

    def exchange(self, one: Any, other: Any) -> None:
        """`one` gets the memory of `other`, and stays what it is to all tensors on it."""
        kind = ctypes.c_uint64 * _DATA_WORDS
        first, second = kind.from_address(one._cdata + self.data), kind.from_address(other._cdata + self.data)
        first[:], second[:] = second[:], first[:]
        if self.resizable is not None:
            flag, fixed = (ctypes.c_uint8.from_address(at._cdata + self.resizable) for at in (one, other))
            flag.value, fixed.value = fixed.value, flag.value


def _byte(storage: Any, at: int) -> int:
    return ctypes.c_uint8.from_address(storage._cdata + at).value


_layout: Layout | None = None
_regions: weakref.WeakValueDictionary[int, _core.Region] = weakref.WeakValueDictionary()  # by address
_inherited: weakref.WeakValueDictionary[int, _core.Region] = weakref.WeakValueDictionary()  # the parent's
_adopted: weakref.WeakKeyDictionary[Any, _core.Region] = weakref.WeakKeyDictionary()  # own references to those
_storages = _stock.SharedCache()  # by identity, weakly
_lock = threading.Lock()  # of the next two
_kept: collections.OrderedDict[Any, tuple[Any, int]] = collections.OrderedDict()  # storages and their sizes
_came: collections.OrderedDict[Any, None] = collections.OrderedDict()


def _fork() -> None:
    global _lock
    _lock = threading.Lock()
    _inherited.update(_regions)
    _regions.clear()
    _kept.clear()
    _came.clear()


os.register_at_fork(after_in_child=_fork)


def layout() -> Layout:
    """Raises LookupError where this torch's storages are not understood."""
    global _layout
    if _layout is None:
        _layout = Layout()
    return _layout


def new_region(size: int, session: _core.Session | None = None) -> _core.Region:
    """Memory for one storage, in that session or in that of this process. It still has its earlier contents."""
    from torch.utils.data import get_worker_info
    worker = get_worker_info() is not None
    if session is None and worker:
        session, _ = place.home(ask=False)
    if size >= LARGE:
        message.let_go()
    while True:
        try:
            if session is None:
                return place.new_region(size, many_writers=size < LARGE)
            return session.create(size, many_writers=size < LARGE, uninitialised=True)
        except errors.SessionLost as error:
            if worker:  # it ends with the broker of its loader, and does not look for another one
                raise loader_lost() from None
            raise place.whole(error) from None
        except errors.OutOfShared as error:
            with _lock:
                kept = list(_kept.values())
                _kept.clear()
            if not kept:
                raise advised(error)
            del kept


def loader_lost() -> errors.SessionLost:
    return errors.SessionLost("the broker of this DataLoader has gone. Make a new iterator, or a new DataLoader where it has "
                              "persistent workers: that finds the next broker, or starts one")


def advised(error: errors.OutOfShared) -> errors.OutOfShared:
    """The error, whose sentence says how the limit is raised, with what else a training script can change."""
    from torch.utils.data import get_worker_info
    if error.slot != "bytes":
        return error
    worker = get_worker_info()
    if worker is not None:
        error.sentence += (f". DataLoader worker {worker.id} of {worker.num_workers} asked for it: lower prefetch_factor, "
                           "num_workers or batch_size")
    else:
        error.sentence += ". Drop tensors in shared memory that are not used any more"
    return error


def over(region: _core.Region) -> Any:
    """A storage whose memory is the region. It keeps the region."""
    storage = untyped(torch.frombuffer(region, dtype=torch.uint8))
    _regions[region.address] = region
    _storages[tuple(region.id)] = _stock.StorageWeakRef(storage)
    return storage


def new(size: int) -> Any:
    """A new storage in shared memory."""
    if size == 0:
        return torch.UntypedStorage(0)
    return over(new_region(size))


def move(storage: Any, session: _core.Session | None = None) -> _core.Region:
    """Puts a private storage into shared memory, in place."""
    region = new_region(storage.nbytes(), session)
    fresh = over(region)
    fresh.copy_(storage)
    layout().exchange(storage, fresh)
    _storages[tuple(region.id)] = _stock.StorageWeakRef(storage)
    return region


def shared(storage: Any) -> bool:
    """Whether its memory is a region."""
    address = storage.data_ptr()
    return address in _regions or address in _inherited


def region_of(storage: Any) -> _core.Region | None:
    """The region that the storage lies in, with a reference of this process."""
    address = storage.data_ptr()
    region = _regions.get(address)
    if region is None:
        region = _inherited.get(address)
        if region is not None:
            region = _adopt(region, storage)
    return region


def _adopt(region: _core.Region, storage: Any) -> _core.Region:
    """In a forked child: a reference of its own to what it has inherited."""
    own = _adopted.get(region)
    if own is None:
        session, _ = place.home(ask=False)
        try:
            own = session.attach(region.id, write=True, populate=False)
        except errors.Error:
            # The parent has dropped it. This process still has the memory, alone with other children.
            return move(storage)
        _adopted[region] = own
    return own


def known(identity: tuple[int, int, int]) -> Any:
    """The living storage of this process in that region, or None."""
    with _lock:
        kept = _kept.get(identity)
        if kept is not None:
            _kept.move_to_end(identity)
            return kept[0]
    found = _storages.get(identity)
    return None if found is None else torch.UntypedStorage._new_with_weak_ptr(found.cdata)


def attached(identity: tuple[int, int, int], attach: Any) -> Any:
    """A storage in that region, which this process has none of. `attach` maps it."""
    region = attach()
    storage = over(region)
    if region.size < LARGE:
        _keep(identity, storage, region.size)
    return storage


def _keep(identity: tuple[int, int, int], storage: Any, size: int) -> None:
    """A storage that comes a second time stays, within bounds, because it may come again."""
    gone = []  # storages end without the lock
    with _lock:
        if identity not in _came:
            _came[identity] = None
            if len(_came) > 4 * _KEPT_COUNT:
                _came.popitem(last=False)
            return
        _kept[identity] = storage, size
        total = sum(one for _, one in _kept.values()) if size > 65536 or len(_kept) > _KEPT_COUNT else 0
        while len(_kept) > _KEPT_COUNT or total > _KEPT_BYTES:
            _, last = _kept.popitem(last=False)
            gone.append(last)
            total -= last[1]
