# SPDX-License-Identifier: Apache-2.0
"""The names that torch must have for `install`, whatever its version. This module needs no more than a torch that can be
imported. So where a release lacks a name, `install` says so in one sentence, and torch stays as it is."""
from __future__ import annotations

import importlib
from typing import Any

import torch

NAMES = {
    "torch": ("frombuffer", "UntypedStorage", *("UntypedStorage." + name for name in (
        "_new_shared", "share_memory_", "is_shared", "_new_with_weak_ptr", "_weak_ref", "_cdata", "nbytes", "data_ptr",
        "device"))),
    "torch.multiprocessing": ("get_context",),
    "torch.multiprocessing.reductions": ("reduce_storage", "reduce_tensor", "SharedCache", "StorageWeakRef",
                                         "check_serializing_named_tensor"),
    "torch.multiprocessing.spawn": ("spawn", "start_processes", "ProcessContext", "ProcessException",
                                    "ProcessRaisedException", "ProcessExitedException"),
    "torch.utils.hooks": ("warn_if_has_hooks",),
    "torch.utils.data": ("get_worker_info",),
    "torch.utils.data.dataloader": ("_MultiProcessingDataLoaderIter",),
    "torch._utils": ("ExceptionWrapper",),
}


def version() -> str:
    return str(torch.__version__)


def _has(holder: Any, path: str) -> bool:
    for name in path.split("."):
        if not hasattr(holder, name):
            return False
        holder = getattr(holder, name)
    return True


def missing() -> list[str]:
    """The names that this torch lacks."""
    without = []
    for module, names in NAMES.items():
        try:
            holder = importlib.import_module(module)
        except ImportError:
            without.append(module)
        else:
            without += [f"{module}.{name}" for name in names if not _has(holder, name)]
    if without:
        return without
    from . import storage
    try:
        storage.layout()
    except LookupError as error:
        without.append(f"storages that can be moved ({error})")
    return without
