# SPDX-License-Identifier: Apache-2.0
"""Functions, arguments and results on their way between a program and its ranks: pickled as multiprocessing pickles for
a new process, so that its locks, queues and connections travel. A Region travels as a ticket."""
from __future__ import annotations

import fcntl
import io
import os
import pickle
import stat
from multiprocessing import context, popen_spawn_posix
from multiprocessing.reduction import ForkingPickler
from typing import Any, Callable

from . import _core
from .errors import Invalid
from .ticket import Ticket

Lend = Callable[[Any], Ticket]


class Departure:
    """The face of a process that is about to start: multiprocessing's reducers ask it to take descriptors along."""

    DupFd = popen_spawn_posix._DupFd  # type: ignore[attr-defined]

    def __init__(self, method: str) -> None:
        self.method = method
        self._descriptors: list[int] = []
        self._course: list[int] = []  # those that a pickle asked for, in its order
        self._place = 0

    def begin(self, anew: bool = False) -> None:
        """The same call is pickled again, for another rank. It gets the same copies: each rank inherits all of them, so
        100 tensors for 8 ranks would take 800. anew: the next object is another one."""
        self._place = 0
        if anew:
            self._course = []

    def duplicate_for_child(self, descriptor: int) -> int:
        if self._place == len(self._course):
            self._course.append(-1)
        elif not _same_file(self._course[self._place], descriptor):
            self._course[self._place] = -1
        if self._course[self._place] < 0:
            copy = os.dup(descriptor)
            self._descriptors.append(copy)
            os.set_inheritable(copy, True)
            self._course[self._place] = copy
        self._place += 1
        return self._course[self._place - 1]

    def __enter__(self) -> Departure:
        context.set_spawning_popen(self)
        return self

    def __exit__(self, *error: object) -> None:
        context.set_spawning_popen(None)

    def close(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.pop())


def _same_file(one: int, other: int) -> bool:
    first, second = os.fstat(one), os.fstat(other)
    return (stat.S_IFMT(first.st_mode) != 0  # an eventfd and its like have no type, and share one inode
            and (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)
            and fcntl.fcntl(one, fcntl.F_GETFL) == fcntl.fcntl(other, fcntl.F_GETFL))


class _Pickler(ForkingPickler):
    def __init__(self, file: io.BytesIO, lend: Lend, modules: set[str] | None) -> None:
        super().__init__(file, 5)
        self._lend, self._modules = lend, modules

    def reducer_override(self, value: Any) -> Any:
        if type(value) is _core.Region:
            return _attach, (self._lend(value), not value.readonly)
        if self._modules is not None:
            name = getattr(value, "__module__", None)
            if isinstance(name, str):
                self._modules.add(name)
        return NotImplemented


def pack(value: Any, lend: Lend, modules: set[str] | None = None) -> bytes:
    """`modules` gets the names of those that the unpickling will import."""
    file = io.BytesIO()
    _Pickler(file, lend, modules).dump(value)
    return file.getvalue()


def unpack(data: bytes | memoryview) -> Any:
    return pickle.loads(data)


def refuse(what: str, error: BaseException, advice: str) -> Invalid:
    return Invalid(f"{what} cannot be pickled: {describe(error)}. {advice}")


def describe(error: BaseException) -> str:
    return f"{type(error).__qualname__}: {text_of(error)}".rstrip(" .:")


def text_of(error: BaseException) -> str:
    """str() of an exception, whose own code may fail."""
    try:
        return str(error)
    except BaseException as another:
        if isinstance(another, (KeyboardInterrupt, SystemExit)):
            raise
        return f"<str() of this exception raised {type(another).__qualname__}>"


_session: _core.Session | None = None


def session() -> _core.Session:
    """One session for all regions that arrive in this process."""
    global _session
    if _session is None or _session.closed or _session.info().lost:
        from . import connect
        _session = connect()
    return _session


def use_session(one: _core.Session | None) -> _core.Session | None:
    """Regions that arrive are attached by `one` from here on. Returns what was used before."""
    global _session
    before, _session = _session, one
    return before


def _attach(ticket: Ticket, write: bool) -> _core.Region:
    return session().attach(ticket, write=write, share=True)
