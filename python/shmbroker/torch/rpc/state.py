# SPDX-License-Identifier: Apache-2.0
"""The world that this process is in, if any: its worker, the names of the others, and the timeout of calls."""
from __future__ import annotations

import os
import threading
from typing import Any

from ... import _core

NOT_INITIALIZED = "RPC has not been initialized. Call torch.distributed.rpc.init_rpc first."


class NotInitialized(RuntimeError):
    """This process is in no world, or in none any more."""


class WorkerInfo:
    """A worker's name and rank. Equal for the same worker, and a key of dictionaries."""

    __slots__ = ("id", "name")

    def __init__(self, name: str, id: int) -> None:
        self.name, self.id = name, id

    def __repr__(self) -> str:
        return f"WorkerInfo(id={self.id}, name={self.name})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WorkerInfo) and (self.id, self.name) == (other.id, other.name)

    def __hash__(self) -> int:
        return hash((self.id, self.name))

    def __reduce__(self) -> tuple[Any, ...]:
        return WorkerInfo, (self.name, self.id)


class World:
    def __init__(self, worker: _core.RemoteWorld, timeout: float) -> None:
        self.core = worker
        self.timeout = timeout
        self.infos = [WorkerInfo(worker.worker(rank, None)[1], rank) for rank in range(worker.size)]
        self.me = self.infos[worker.rank]
        self._by_name = {info.name: info for info in self.infos}

    def info(self, to: object) -> WorkerInfo:
        """Of a name, a rank or a WorkerInfo, torch's own among them."""
        if isinstance(to, str):
            found = self._by_name.get(to)
            if found is None:
                raise RuntimeError(f"Unknown destination worker {to}. The workers of this world are "
                                   f"{', '.join(sorted(self._by_name))}.")
            return found
        rank = to if isinstance(to, int) else getattr(to, "id", None)
        if not isinstance(rank, int):
            raise ValueError(f"Cannot get WorkerInfo from name {to!r}")
        if not 0 <= rank < len(self.infos):
            raise RuntimeError(f"Unknown destination worker {rank}. The ranks of this world are 0 to "
                               f"{len(self.infos) - 1}.")
        return self.infos[rank]


_world: World | None = None
_before: list[World] = []  # of a parent process: not this one's to end
joining = threading.Lock()
joined = threading.Event()  # not set while init_rpc joins: the threads of the library may serve before it has the world
joined.set()


def current() -> World:
    if _world is None:
        raise NotInitialized(NOT_INITIALIZED)
    return _world


def current_or_none() -> World | None:
    return _world


def enter(world: World) -> None:
    global _world
    _world = world


def leave(world: World) -> bool:
    global _world
    if _world is not world:
        return False
    _world = None
    return True


def _forked() -> None:
    global _world, joining, joined
    if _world is not None:
        _before.append(_world)
    _world, joining, joined = None, threading.Lock(), threading.Event()
    joined.set()


os.register_at_fork(after_in_child=_forked)
