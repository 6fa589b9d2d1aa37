# SPDX-License-Identifier: Apache-2.0
"""Where `install` enters torch. The names that it needs there are in wanted.py.

One place serves each purpose in torch 1.13 and 2.x: the reducers of UntypedStorage and of tensors for what is pickled,
`_new_shared` for what a DataLoader's worker collates, `share_memory_` and `is_shared` of storages, and the names that
torch.multiprocessing has from the standard library.
"""
from __future__ import annotations

import importlib
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch.multiprocessing as _stock
from torch.utils.data import dataloader as _dataloader

from . import multiprocessing as _ours
from . import reductions, storage

spawn = importlib.import_module("shmbroker.torch.spawn")

_ITERATOR = "_MultiProcessingDataLoaderIter"


def _share_memory(stock: Any) -> Any:
    def share_memory_(self: Any) -> Any:
        if not reductions.ours(self):
            return stock(self)
        if not storage.shared(self):
            storage.move(self)
        return self

    return share_memory_


def _is_shared(stock: Any) -> Any:
    def is_shared(self: Any) -> bool:
        return storage.shared(self) or stock(self)

    return is_shared


def _new_shared(stock: Any) -> Any:
    def _new_shared(cls: Any, size: int, *, device: Any = "cpu", **other: Any) -> Any:
        if torch.device(device).type != "cpu" or size == 0:
            return stock.__func__(cls, size, device=device, **other)
        return storage.new(size)

    return classmethod(_new_shared)


def _new_using(stock: Any) -> Any:
    def new(size: int) -> Any:
        return storage.new(size) if size else stock(size)

    return staticmethod(new)


def put(replace: Any, reducers: dict[Any, Any]) -> None:
    kind = torch.UntypedStorage
    replace(kind, "share_memory_", _share_memory(kind.share_memory_))
    replace(kind, "is_shared", _is_shared(kind.is_shared))
    replace(kind, "_new_shared", _new_shared(kind._new_shared))
    for name in ("_new_using_fd_cpu", "_new_using_filename_cpu"):
        if hasattr(kind, name):
            replace(kind, name, _new_using(getattr(kind, name)))
    for name in _ours.NAMES:
        replace(_stock, name, getattr(_ours, name))
    module = importlib.import_module("torch.multiprocessing.spawn")
    for name in spawn.__all__:
        for holder in (module, _stock):
            if hasattr(holder, name):
                replace(holder, name, getattr(spawn, name))
    iterator = getattr(_dataloader, _ITERATOR)
    replace(iterator, "__init__", _ours._iterator(iterator.__init__))
    if hasattr(iterator, "_try_get_data"):
        replace(iterator, "_try_get_data", _ours._try_get_data(iterator._try_get_data))
    if hasattr(iterator, "_get_data"):
        replace(iterator, "_get_data", _ours._get_data(iterator._get_data))
    for of, reducer in ((torch.UntypedStorage, reductions.reduce_storage), (torch.Tensor, reductions.reduce_tensor),
                        (torch.nn.Parameter, reductions.reduce_tensor)):
        reducers[of] = ForkingPickler._extra_reducers.get(of)
        ForkingPickler.register(of, reducer)


def take_away(reducers: dict[Any, Any]) -> None:
    for of, before in reducers.items():
        if before is None:
            ForkingPickler._extra_reducers.pop(of, None)
        else:
            ForkingPickler.register(of, before)
    reducers.clear()
