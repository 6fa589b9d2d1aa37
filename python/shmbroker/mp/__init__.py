# SPDX-License-Identifier: Apache-2.0
"""multiprocessing on the broker: `import shmbroker.mp as multiprocessing`, or `shmbroker.mp.get_context("spawn")`.

Queue, SimpleQueue, JoinableQueue, Pipe, Pool and Process carry large buffers in shared memory. All other names are those of
the standard library. Here besides: `empty` makes an array that a receiver gets without a copy, `find` tells whether a
buffer is in shared memory, and WorkerDied is the error of a task whose worker died.
"""
from __future__ import annotations

import importlib as _importlib
import multiprocessing as _base
import sys
from multiprocessing import SUBDEBUG, SUBWARNING, reduction  # noqa: F401

from . import context, process  # noqa: F401
from .memory import empty, find

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = [name for name in dir(context._default_context) if not name.startswith("_")]
globals().update((name, getattr(context._default_context, name)) for name in __all__)
__all__ += ["empty", "find", "WorkerDied"]


def __getattr__(name: str) -> Any:
    if name == "WorkerDied":
        from .pool import WorkerDied
        return WorkerDied
    if name in ("connection", "pool", "queues"):
        return _importlib.import_module("." + name, __name__)
    if name.startswith("__"):
        raise AttributeError(f"module 'shmbroker.mp' has no attribute '{name}'")
    try:
        return getattr(_base, name)
    except AttributeError:
        pass
    try:
        return _importlib.import_module("multiprocessing." + name)
    except ImportError:
        raise AttributeError(f"module 'shmbroker.mp' has no attribute '{name}'") from None


def __dir__() -> list[str]:
    return sorted(set(globals()) - {"TYPE_CHECKING", "annotations"} | {name for name in dir(_base) if not name.startswith("_")} | {"WorkerDied"})
