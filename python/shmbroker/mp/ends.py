# SPDX-License-Identifier: Apache-2.0
"""The two ends of a queue as connections: what `queue._reader` and `queue._writer` are in the standard library.

Pools and executors wait for `_reader` together with processes and pipes. The broker's own descriptor tells only of
messages that come after a look which found none. So the reader has a descriptor of its own above it, readable exactly
while there is something to take, as far as this process knows.
"""
from __future__ import annotations

import os
import select
import sys
import threading
import time
from multiprocessing import util
from queue import Empty

from .. import errors
from . import message, pickling

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .channel import Channel


_DAY = 86400.0  # seconds; poll(2) takes 24 of them


class Bell:
    """A descriptor that is readable while `set`, or when the queue's own descriptor is."""

    def __init__(self, below: int) -> None:
        self._flag = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll = select.epoll()
        self._epoll.register(self._flag, select.EPOLLIN)
        self._epoll.register(below, select.EPOLLIN)
        self._set = False
        self.close = util.Finalize(self, Bell._end, (self._epoll, self._flag))

    @staticmethod
    def _end(epoll: Any, flag: int) -> None:
        epoll.close()
        os.close(flag)

    def fileno(self) -> int:
        return self._epoll.fileno()

    def set(self, on: bool) -> None:
        if on != self._set:
            self._set = on
            if on:
                os.eventfd_write(self._flag, 1)
            else:
                os.eventfd_read(self._flag)


class Reader:
    """Takes objects out of the queue."""

    readable, writable = True, False

    def __init__(self, channel: Channel, taken: Any = None) -> None:
        self._channel = channel
        self._taken = taken  # called after each message
        self.closed = False
        self.fork()

    def fork(self) -> None:
        self._lock = threading.RLock()
        self._bell: Bell | None = None

    def take(self, timeout: float | None) -> Any:
        """The next object; raises queue.Empty."""
        if self.closed:
            raise OSError("handle is closed")
        if self._bell is None and not self._channel.at_hand:
            received = self._channel.receive(timeout)
        else:
            received = self._watched(timeout)
        if self._taken is not None:
            self._taken()
        return pickling.loads(received) if type(received) is bytes else message.load(received)

    def _watched(self, timeout: float | None) -> Any:
        with self._lock:
            received = self._channel.at_hand.pop() if self._channel.at_hand else None
        try:
            if received is None:
                received = self._channel.receive(timeout)
            return received
        finally:
            try:
                self._look()
            except errors.SessionLost:
                pass  # the next take tells it, and what was received is not lost

    def _look(self) -> bool:
        """Whether there is a message; where there is none, the descriptor tells of the next one."""
        with self._lock:
            there = bool(self._channel.at_hand) or self._channel.depth() > 0
            if not there and self._bell is not None:
                try:
                    self._channel.at_hand.append(self._channel.receive(0))
                    there = True
                except Empty:
                    pass
                except EOFError:
                    there = True
                except errors.SessionLost:
                    self._bell.set(True)
                    raise
            if self._bell is not None:
                self._bell.set(there)
            return there

    def recv(self) -> Any:
        """As take(None). An executor calls it whenever the descriptor has told of something, also for nothing: of a
        process that came or died. It must not wait here then, and passes over None."""
        if self._bell is not None and sys._getframe(1).f_globals.get("__name__") == "concurrent.futures.process":
            try:
                return self.take(0)
            except Empty:
                return None
        return self.take(None)

    def poll(self, timeout: float | None = 0.0) -> bool:
        if self.closed:
            raise OSError("handle is closed")
        if self._channel.at_hand or self._channel.depth() > 0:
            return True
        if timeout is not None and timeout <= 0:
            self._channel.check()
            return False
        end = None if timeout is None else time.monotonic() + timeout
        look = select.poll()
        look.register(self.fileno(), select.POLLIN)
        while True:
            look.poll(None if end is None else min(max(0.0, end - time.monotonic()), _DAY) * 1000)
            if self._look():
                return True
            if end is not None and time.monotonic() >= end:
                return False

    def fileno(self) -> int:
        if self.closed:
            raise OSError("handle is closed")
        with self._lock:
            if self._bell is None:
                self._bell = Bell(self._channel.open().fileno())
            self._look()
            return self._bell.fileno()

    def count(self) -> int:
        return self._channel.depth() + len(self._channel.at_hand)

    def close(self) -> None:
        self.closed = True
        bell, self._bell = self._bell, None
        if bell is not None:
            bell.close()


class Writer:
    """Puts objects into the queue; waits while its lane is full."""

    readable, writable = False, True

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.closed = False

    def send(self, obj: Any) -> None:
        if self.closed:
            raise OSError("handle is closed")
        outgoing = message.Outgoing(obj, self._channel)
        try:
            self._channel.send(outgoing.parts, None)
        except BaseException:
            outgoing.fail()
            raise

    def close(self) -> None:
        self.closed = True
