# SPDX-License-Identifier: Apache-2.0
"""An mpmc queue of the broker, in a pool of its own, as the processes of one program share it.

Each process has one handle, with both ends unless it says which one it uses. No lock is shared: a process may be killed
at any instruction, and the others go on. The pool goes with its last process. So the memory of the dead is free, and
messages that no process can take any more go too.
"""
from __future__ import annotations

import threading
import time
import weakref
from multiprocessing import context, process, util
from queue import Empty

from .. import _core, errors
from . import message, place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Slots for what does not fit into a cell: bytes, how many at once, how many at most.
CLASSES = ((512, 64, 4096), (8192, 16, 2048), (65536, 4, 512), (place.SLOT, 1, 64))
CELLS = 256
INLINE = 120
PROCESSES = 64
_PATIENCE = 2.0  # seconds
_LOOK = 1.0
_REST = 0.02


class Channel:
    of_parent = False  # in a child: all that comes is from its parent
    _role = "both"

    def __init__(self, cells: int = CELLS, *, room: bool = False, at_least_once: bool = False) -> None:
        self.session, self.address = place.home()
        lanes = PROCESSES * 2 if room else PROCESSES
        # A cell is 8 bytes and its inline bytes; a lane has a header of its own.
        lane_bytes = PROCESSES * (cells * (INLINE + 8) + 4096) + (PROCESSES * 8192 if room else 0)
        self._settings = {"cells": cells, "at_least_once": at_least_once}
        self.pool = self.session.create_pool(CLASSES, lanes=lanes, queues=2, lane_bytes=lane_bytes)
        self._prepare()

    def _prepare(self) -> None:
        self._lock = threading.Lock()
        self._queue: _core.Queue | None = None
        self._next_check = 0.0
        self.at_hand: list[bytes | _core.Message] = []  # came while we looked whether one is there
        self._out: _core.Queue | None = None  # to send, where _queue is only to read
        _channels.add(self)
        util.register_after_fork(self, Channel._fork)

    def _fork(self) -> None:
        self._lock = threading.Lock()
        self.at_hand = []

    def __getstate__(self) -> Any:
        context.assert_spawning(self)
        try:
            self.session.ping()  # a child could not open this queue
        except errors.SessionLost as error:
            raise place.whole(error) from None
        keep_for_child(self.pool)
        return self.address, self.pool.id, self._settings

    def __setstate__(self, state: Any) -> None:
        self.address, pool, self._settings = state
        self.session = place.visit(self.address)
        try:
            self.pool = self.session.open_pool(pool)
        except errors.Error as error:
            raise place.whole(error)
        self._prepare()

    def check(self) -> None:
        """For calls that do not wait: a wait learns of the broker's end by itself. Looks once a second."""
        now = time.monotonic()
        if now < self._next_check:
            return
        self._next_check = now + _LOOK
        try:
            place.heed(self.session)
        except errors.SessionLost as error:
            self._next_check = 0.0
            raise place.whole(error) from None

    def use_as(self, role: str) -> None:
        """This process uses only this end, "reader" or "writer". A reader that never reads would keep the lanes of dead
        writers, and each writer takes one. A child by fork gives up its copy of the parent's handle."""
        with self._lock:
            queue, self._queue, self._role = self._queue, None, role
        if queue is not None:
            queue.close()

    def open(self) -> _core.Queue:
        """The handle of this process. A process that never uses the queue has none: each reader has to look at the lane
        of a writer that has died before the lane is free for another one."""
        queue = self._queue
        if queue is not None:
            return queue
        with self._lock:
            if self._queue is None:
                try:
                    self._queue = self._handle(self._role)
                except errors.OutOfShared as error:
                    if "lane" not in error.slot or self._role != "both":
                        raise
                    # The dead have left messages in all lanes. They are there to be read, and then there is room again.
                    self._queue = self._handle("reader")
            return self._queue

    def _handle(self, role: str) -> _core.Queue:
        try:
            return self.pool.queue("items", kind="mpmc", role=role, inline_bytes=INLINE, **self._settings)
        except errors.Error as error:
            raise place.whole(error)

    def _look(self) -> None:
        """A look that finds nothing gives back the lanes of the dead that this process has read."""
        with self._lock:
            queue = self._queue
        if queue is not None and queue.info().depth == 0:
            try:
                self.at_hand.append(queue.receive_small(0))
            except (errors.Empty, errors.PeerGone):
                pass

    def _open_to_send(self) -> _core.Queue:
        """Waits a while for a lane, because others may read what the dead have left."""
        end = time.monotonic() + _PATIENCE
        while True:
            self._look()
            with self._lock:
                try:
                    if self._out is None:
                        self._out = self._handle("writer")
                    return self._out
                except errors.OutOfShared as error:
                    if "lane" not in error.slot or time.monotonic() > end:
                        raise
            time.sleep(_REST)

    def send(self, parts: Any, timeout: float | None, kind: int = 0) -> None:
        """Raises Full or Timeout where the lane of this process has no room."""
        queue = self._queue or self.open()
        try:
            if kind:
                queue.send(parts, timeout, type=kind)
            else:
                queue.send(parts, timeout)
        except errors.PeerGone:
            self._resend(queue, parts, timeout, kind)
        except errors.Denied:
            if queue.role != "reader":
                raise
            self._resend(self._out or self._open_to_send(), parts, timeout, kind)
        except errors.SessionLost as error:
            raise place.whole(error) from None

    @staticmethod
    def _resend(queue: _core.Queue, parts: Any, timeout: float | None, kind: int) -> None:
        """A reader has died: the others, or this process, take what comes."""
        while True:
            try:
                return queue.send(parts, timeout, type=kind)
            except errors.PeerGone:
                pass
            except errors.SessionLost as error:
                raise place.whole(error) from None

    def send_many(self, messages: list[Any]) -> int:
        """Waits for room for the first one, and sends of the others as many as there is room for. Returns how many."""
        queue = self._queue or self.open()
        if queue.role == "reader":
            queue = self._out or self._open_to_send()
        while True:
            try:
                return queue.send_many(messages, None, wait_for_all=False)
            except errors.PeerGone:
                pass  # as in _resend
            except errors.SessionLost as error:
                raise place.whole(error) from None

    def receive(self, timeout: float | None) -> bytes | _core.Message:
        """The next message; a small one as bytes. Raises queue.Empty, and EOFError where nobody is left who could send one."""
        queue = self._queue or self.open()
        try:
            return queue.receive_small(timeout)
        except errors.Timeout:
            raise Empty from None
        except errors.Empty:
            self.check()
            raise
        except errors.PeerGone:
            pass
        except errors.SessionLost as error:
            raise place.whole(error) from None
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            self._orphan()
            try:
                return queue.receive_small(None if end is None else max(0.0, end - time.monotonic()))
            except errors.Timeout:
                raise Empty from None
            except errors.PeerGone:
                pass
            except errors.SessionLost as error:
                raise place.whole(error) from None

    def _orphan(self) -> None:
        if parent_has_ended() and (self.of_parent or self.pool.info().participants == 1):
            raise EOFError("the parent process has ended, and nobody is left who could put something into this queue")

    def let_go(self) -> None:
        """Gives back what this process holds for messages that have been taken."""
        try:
            (self._queue or self.open()).drain(0)
        except (errors.Full, errors.PeerGone, errors.Denied):
            pass  # not all of them were taken, or this process has sent none

    def depth(self) -> int:
        return (self._queue or self.open()).info().depth

    def close(self) -> None:
        """Leaves. Sent messages stay for the others."""
        with self._lock:
            queue, out, self._queue, self._out = self._queue, self._out, None, None
            for one in queue, out:
                if one is not None:
                    one.close()
            self.pool = None  # goes with its last user, which may be a child that starts


def parent_has_ended() -> bool:
    parent = process.parent_process()
    return parent is not None and (not parent.is_alive() or _is_dead(parent.pid))


def _is_dead(pid: int) -> bool:
    """is_alive() waits for the end of a pipe, which brothers of this process by fork hold open too."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except (FileNotFoundError, ProcessLookupError):
        return True


_channels: weakref.WeakSet[Channel] = weakref.WeakSet()


def in_use() -> list[Any]:
    """The objects that a child that is forked now may look at."""
    return [channel.pool for channel in list(_channels)] + message.held()


def keep_for_child(thing: Any) -> None:
    """Keeps it open until the child that is being started has ended, because it may not have opened it before."""
    popen = context.get_spawning_popen()
    if popen is not None:
        popen.__dict__.setdefault("_shmbroker_kept", []).append(thing)
