# SPDX-License-Identifier: Apache-2.0
"""Shared memory owned by a broker, so that it goes when its users are gone.

`connect()` opens a session. Regions, slots and messages are buffers: memoryview, numpy.asarray and torch.frombuffer take
them without a copy. The import starts no thread, installs no handler and prints nothing. Modules that need more of the
standard library are imported when they are used first.
"""
from __future__ import annotations

import os as _os
import sys as _sys

if "t" in getattr(_sys, "abiflags", ""):
    raise ImportError("shmbroker needs the GIL: this is a free-threaded Python. Use the ordinary build of this version.")

from . import errors
from ._core import (EVENT_APPEARED, EVENT_ENDED, EVENT_GONE, EVENT_GPU, EVENT_PUBLISHED, EVENT_READY, EVENT_RECLAIM, Event,
                    GpuRegion, GpuTensor, Group, GroupEnding, Message, MessagePart, Part, Pool, PoolInfo, Queue,
                    QueueInfo, Region, RegionId, RegionInfo, RegionStat, Session, SessionInfo, SizeClassInfo, Slot, Watch,
                    find, group_variable, set_sharing_strategy, sharing_strategies, sharing_strategy)
from ._core import connect as _connect
from ._core import version as __version__
from .errors import (Broken, Busy, Closed, Denied, Empty, Error, Exists, Forked, Full, GroupEnded, Invalid, LimitReached,
                     LocalOnly, NoBroker, NoDescriptors, NoMemory, NotFound, NotReady, OutOfShared, PeerGone, SessionLost,
                     Stale, StillMapped, SystemFailure, Timeout, Unsupported, WriteClosed)
from .ticket import Ticket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Literal

_LAZY = {"SharedMemory": "shared_memory", "ShareableList": "shared_memory", "mp": "mp", "shared_memory": "shared_memory",
         "ranks": "ranks", "spawn": "processes", "start_processes": "processes", "ProcessContext": "processes",
         "RankFailure": "process_errors", "ProcessException": "process_errors",
         "ProcessRaisedException": "process_errors", "ProcessExitedException": "process_errors", "status": "views", "list": "views", "views": "views"}


def connect(socket: str | None = None, *, group: str | None = None, program: str | None = None,
            local: Literal["never", "ok", "only"] = "never", start: bool = True, admin: bool = False,
            timeout: float = 5.0) -> Session:
    """Opens a session, in this order of groups:

    - `group`: "NAME:TOKEN", the name of a group of this user (made if there is none), or "" for an unnamed one of its own
    - SHMBROKER_GROUP, which `shmbroker run` sets
    - the group `shell-UID` of this user, where programs that were started apart meet. An object made there under a name
      goes with its last holder, unless it is made with `keep=` or `name_with_holders=False`
    """
    if group is not None and not isinstance(group, str):
        raise TypeError('group is None or a str ("NAME", "@ID", "NAME:TOKEN", or "" for a group of its own), not '
                        f"{type(group).__name__!r}")
    token = group if group and len(group.rpartition(":")[2]) == 32 and ":" in group else None
    session = _connect(socket, group=token, program=program, local=local, start=start, admin=admin,
                       no_group=group is not None and token is None, timeout=timeout)
    try:
        users = group is None and not _os.environ.get("SHMBROKER_GROUP")
        if users:
            group, token = f"shell-{_os.geteuid()}", None
        if group and token is None and not admin and session.info().mode != "local":
            if group.startswith("@") or ":" in group:
                session.join(group, timeout=timeout)
            else:
                session.join(session.create_group(group, keep=3600, adopt_existing=True, timeout=timeout), timeout=timeout)
            session.names_with_holders = users
    except BaseException:
        session.close()
        raise
    return session


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'shmbroker' has no attribute '{name}'")
    import importlib
    module = importlib.import_module("." + _LAZY[name], __name__)
    value = module if name == _LAZY[name] else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_LAZY))
