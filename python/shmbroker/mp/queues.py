# SPDX-License-Identifier: Apache-2.0
"""Queue, JoinableQueue and SimpleQueue over queues of the broker.

Pickling is done in `put`, so an object that cannot be pickled is an exception there and not a lost item. An item that was
put arrives even if this process is killed at its next instruction, as long as its lane has room (unsent.py).
"""
from __future__ import annotations

import time
import types
from multiprocessing import context, util

from .. import errors
from ..arguments import number, seconds
from .channel import CELLS, Channel
from .ends import Reader, Writer
from .message import Outgoing
from .room import Room
from .unsent import Unsent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_PATIENCE = 0.001  # seconds that a put waits for room before its message becomes an unsent one
_LOOK = 1.0  # seconds
_MOST_CELLS = 1024  # of a bounded queue


class Queue:
    """As multiprocessing.Queue. Large buffers in objects travel in shared memory, without a pipe."""

    def __init__(self, maxsize: int = 0, *, ctx: Any = None) -> None:
        self._maxsize = max(0, number(maxsize, "maxsize"))
        cells = CELLS
        while self._maxsize > cells and cells < _MOST_CELLS:
            cells *= 2
        self._channel = Channel(cells, room=self._maxsize > 0)
        self._room = Room(self._maxsize) if self._maxsize else None
        self._prepare()

    def _prepare(self) -> None:
        self._unsent = Unsent(self._channel)
        self._reader = Reader(self._channel, self._tell if self._room else None)
        self._writer = Writer(self._channel)
        self._closed = False
        util.register_after_fork(self, Queue._fork)

    def _fork(self) -> None:
        self._unsent.fork()
        self._reader.fork()
        if self._room is not None:
            self._room.fork()

    def __getstate__(self) -> Any:
        context.assert_spawning(self)
        return self._maxsize, self._channel, self._room

    def __setstate__(self, state: Any) -> None:
        self._maxsize, self._channel, self._room = state
        self._prepare()

    def _check(self) -> None:
        if self._closed:
            raise ValueError(f"Queue {self!r} is closed")

    def _tell(self) -> None:
        self._room.tell(self._channel)

    def put(self, obj: Any, block: bool = True, timeout: float | None = None) -> None:
        if self._closed:
            self._check()
        outgoing = Outgoing(obj, self._channel)
        try:
            if self._room is not None:
                self._room.send(self._channel, outgoing, self._unsent, block, timeout)
            elif self._unsent:
                self._unsent.add(outgoing)
            else:
                try:
                    self._channel.send(outgoing.parts, 0)
                except errors.Full:
                    self._later(outgoing)
        except BaseException:
            outgoing.fail()
            raise

    def _later(self, outgoing: Outgoing) -> None:
        try:
            self._channel.send(outgoing.parts, _PATIENCE)
        except errors.Timeout:
            self._unsent.add(outgoing)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if self._closed:
            self._check()
        if not block:
            timeout = 0
        elif timeout is not None and seconds(timeout, "timeout") < 0:
            timeout = 0
        return self._reader.take(timeout)

    def qsize(self) -> int:
        self._channel.check()
        return self._reader.count() + len(self._unsent)

    def empty(self) -> bool:
        return not self._reader.poll()

    def full(self) -> bool:
        self._channel.check()
        return self._room is not None and self._room.full(self._channel, len(self._unsent))

    def get_nowait(self) -> Any:
        return self.get(False)

    def put_nowait(self, obj: Any) -> None:
        self.put(obj, False)

    def close(self) -> None:
        """No more puts and gets of this process. Unsent items are sent first."""
        if not self._closed:
            self._closed = True
            self._unsent.close(self._leave)

    def _leave(self) -> None:
        self._reader.close()
        self._writer.close()
        self._channel.close()

    def join_thread(self) -> None:
        assert self._closed, f"Queue {self!r} not closed"
        self._unsent.join()

    def cancel_join_thread(self) -> None:
        self._unsent.cancel()


class JoinableQueue(Queue):
    """As multiprocessing.JoinableQueue: counts the objects that were put and not reported by task_done()."""

    def __init__(self, maxsize: int = 0, *, ctx: Any) -> None:
        super().__init__(maxsize, ctx=ctx)
        self._unfinished = ctx.Semaphore(0)

    def __getstate__(self) -> Any:
        return super().__getstate__() + (self._unfinished,)

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state[:-1])
        self._unfinished = state[-1]

    def put(self, obj: Any, block: bool = True, timeout: float | None = None) -> None:
        self._check()
        self._unfinished.release()  # before a reader can report it
        try:
            super().put(obj, block, timeout)
        except BaseException:
            self._unfinished.acquire(False)
            raise

    def task_done(self) -> None:
        if not self._unfinished.acquire(False):
            raise ValueError("task_done() called too many times")

    def join(self) -> None:
        pause, look = 0.0001, time.monotonic() + _LOOK
        while not self._unfinished._semlock._is_zero():
            time.sleep(pause)
            pause = min(pause * 2, 0.01)
            if time.monotonic() > look:
                self._channel.check()  # without a broker nobody takes what was put
                look = time.monotonic() + _LOOK


class SimpleQueue:
    """As multiprocessing.SimpleQueue. `put` waits while the queue is full."""

    def __init__(self, *, ctx: Any = None) -> None:
        self._channel = Channel()
        self._prepare()

    def _prepare(self) -> None:
        self._reader = Reader(self._channel)
        self._writer = Writer(self._channel)
        util.register_after_fork(self, SimpleQueue._fork)

    def _fork(self) -> None:
        self._reader.fork()

    def __getstate__(self) -> Any:
        context.assert_spawning(self)
        return self._channel

    def __setstate__(self, state: Any) -> None:
        self._channel = state
        self._prepare()

    def close(self) -> None:
        self._reader.close()
        self._writer.close()
        self._channel.close()

    def empty(self) -> bool:
        return not self._reader.poll()

    def get(self) -> Any:
        return self._reader.take(None)

    def put(self, obj: Any) -> None:
        self._writer.send(obj)

    __class_getitem__ = classmethod(types.GenericAlias)
