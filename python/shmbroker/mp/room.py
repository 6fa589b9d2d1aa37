# SPDX-License-Identifier: Apache-2.0
"""The bound of a bounded queue: how many messages lie in it, and who waits for room.

The number is that of the lanes themselves, so a process that is killed takes no place with it. A producer counts and sends
while it has a record lock, which the kernel takes from a process that ends. Consumers tell of each place that became free;
a producer that waits looks again after a while anyway, because a consumer may be killed before it tells.
"""
from __future__ import annotations

import fcntl
import os
import threading
import time
from multiprocessing import context
from queue import Full

from .. import errors
from . import place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .channel import Channel

LOOK = 0.05  # seconds


class Room:
    def __init__(self, maxsize: int) -> None:
        self._maxsize = maxsize
        self._file = os.memfd_create("shmbroker-mp-bound", os.MFD_CLOEXEC)
        self.fork()

    def fork(self) -> None:
        self._threads = threading.Lock()
        self._hints: Any = None  # where this process hears of room, and where it tells of it: each has its own end
        self._voice: Any = None
        self._silent_until = 0.0

    def __getstate__(self) -> Any:
        return self._maxsize, context.reduction.DupFd(self._file)

    def __setstate__(self, state: Any) -> None:
        self._maxsize, file = state
        self._file = file.detach()
        os.set_inheritable(self._file, False)
        self.fork()

    def __del__(self, close: Any = os.close) -> None:
        try:
            close(self._file)
        except (AttributeError, OSError):
            pass

    @staticmethod
    def _end(channel: Channel, role: str) -> Any:
        try:
            return channel.pool.queue("room", kind="mpmc", role=role, cells=16, inline_bytes=56)
        except errors.SessionLost as error:
            raise place.whole(error) from None

    def _open(self, channel: Channel) -> Any:
        if self._hints is None:
            with self._threads:
                if self._hints is None:
                    self._hints = self._end(channel, "reader")
                    os.pwrite(self._file, b"1", 0)
        return self._hints

    def _hear(self) -> None:
        """Takes what was told. A look that finds nothing gives back the lanes of dead consumers."""
        try:
            while True:
                self._hints.receive_bytes(0)
        except (errors.Empty, errors.PeerGone):
            pass

    def full(self, channel: Channel, unsent: int) -> bool:
        return channel.depth() + unsent >= self._maxsize

    def _try(self, channel: Channel, parts: Any, unsent: Any) -> bool:
        """Sends if there is room."""
        with self._threads:
            end = None
            while True:
                try:
                    fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except (BlockingIOError, PermissionError):
                    now = time.monotonic()
                    end = end or now + LOOK
                    if now > end:
                        return False  # its holder is stopped, or there are many
                    time.sleep(0.0001)
            try:
                if self.full(channel, len(unsent)):
                    return False
                if not len(unsent):
                    try:
                        channel.send(parts.parts, 0)
                        return True
                    except errors.Full:
                        pass
                unsent.add(parts)
                return True
            finally:
                fcntl.lockf(self._file, fcntl.LOCK_UN)

    def send(self, channel: Channel, parts: Any, unsent: Any, block: bool, timeout: float | None) -> None:
        """Raises queue.Full where there is no room in time."""
        if self._hints is not None:
            self._hear()
        if self._try(channel, parts, unsent):
            return
        end = None if timeout is None else time.monotonic() + timeout
        hints = self._open(channel)
        while True:
            if not block or end is not None and time.monotonic() >= end:
                channel.check()
                raise Full
            self._hear()  # what was told before this look
            if self._try(channel, parts, unsent):
                return
            try:
                hints.receive_bytes(LOOK if end is None else max(0.0, min(LOOK, end - time.monotonic())))
            except (errors.Empty, errors.Timeout, errors.PeerGone):
                pass
            except errors.SessionLost as error:
                raise place.whole(error) from None

    def tell(self, channel: Channel) -> None:
        """A message was taken. Nobody is told before a producer has waited, so that consumers which are killed leave no
        lane that nobody reads."""
        if self._voice is None:
            if not os.pread(self._file, 1, 0) or time.monotonic() < self._silent_until:
                return
            with self._threads:
                try:
                    if self._voice is None:
                        self._voice = self._end(channel, "writer")
                except errors.Error:  # no lane is free, or no broker is there: those who wait look by themselves
                    self._silent_until = time.monotonic() + LOOK
                    return
        try:
            self._voice.send(b"", 0)
        except errors.Error:
            pass  # there are hints enough, or nobody is left. The message that was taken must not be lost for that
