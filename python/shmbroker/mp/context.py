# SPDX-License-Identifier: Apache-2.0
"""The contexts: those of multiprocessing with our queues, pipes, pools and processes.

Lock, RLock, Semaphore, Condition, Event, Barrier, Value, Array and Manager are those of the standard library.
"""
from __future__ import annotations

import multiprocessing.context as _base
from multiprocessing.context import *  # noqa: F403
from multiprocessing.context import AuthenticationError, BufferTooShort, ProcessError, TimeoutError  # noqa: F401

from . import process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def __getattr__(name: str) -> Any:
    return getattr(_base, name)


class BaseContext(_base.BaseContext):
    def Pipe(self, duplex: bool = True) -> Any:
        """Returns two connection objects connected by a pipe"""
        from .connection import Pipe
        return Pipe(duplex)

    def Queue(self, maxsize: int = 0) -> Any:
        """Returns a queue object"""
        from .queues import Queue
        return Queue(maxsize, ctx=self.get_context())

    def JoinableQueue(self, maxsize: int = 0) -> Any:
        """Returns a queue object"""
        from .queues import JoinableQueue
        return JoinableQueue(maxsize, ctx=self.get_context())

    def SimpleQueue(self) -> Any:
        """Returns a queue object"""
        from .queues import SimpleQueue
        return SimpleQueue(ctx=self.get_context())

    def Pool(self, processes: int | None = None, initializer: Any = None, initargs: Any = (),
             maxtasksperchild: int | None = None) -> Any:
        """Returns a process pool object"""
        from .pool import Pool
        return Pool(processes, initializer, initargs, maxtasksperchild, context=self.get_context())

    def get_context(self, method: str | None = None) -> Any:
        if method is None:
            return self
        try:
            return _concrete_contexts[method]
        except KeyError:
            raise ValueError(f"cannot find context for {method!r}") from None


class ForkContext(BaseContext):
    _name = "fork"
    Process = process.ForkProcess


class SpawnContext(BaseContext):
    _name = "spawn"
    Process = process.SpawnProcess


class ForkServerContext(BaseContext):
    _name = "forkserver"
    Process = process.ForkServerProcess


_concrete_contexts = {"fork": ForkContext(), "spawn": SpawnContext(), "forkserver": ForkServerContext()}


class DefaultContext(BaseContext):
    """Has the start method of `multiprocessing`, also in children, until set_start_method is called here."""

    Process = process.Process

    def __init__(self) -> None:
        self._actual_context: Any = None
        self._used = False

    def get_context(self, method: str | None = None) -> Any:
        if method is not None:
            return super().get_context(method)
        if self._actual_context is None:
            self._used = True
            return _concrete_contexts[_base._default_context.get_start_method()]
        return self._actual_context

    def set_start_method(self, method: str | None, force: bool = False) -> None:
        if (self._used or self._actual_context is not None) and not force:
            raise RuntimeError("context has already been set")
        if method is None and force:
            self._actual_context, self._used = None, False
            return
        self._actual_context = self.get_context(method)

    def get_start_method(self, allow_none: bool = False) -> Any:
        if self._actual_context is None and allow_none:
            return _base._default_context.get_start_method(allow_none=True)
        return self.get_context()._name

    def get_all_start_methods(self) -> list[str]:
        return _base._default_context.get_all_start_methods()


_default_context = DefaultContext()
