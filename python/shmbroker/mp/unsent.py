# SPDX-License-Identifier: Apache-2.0
"""The items that an unbounded queue has taken and its lane has no room for yet.

A lane has a fixed number of cells, and `put` of an unbounded queue never waits for readers. So the rest stays with the
process that put it, in order, and a thread sends it as room comes. There is no thread until then, and it ends when all is
sent. A process waits for it at its end, as it waits for the feeder thread of the standard library.
"""
from __future__ import annotations

import collections
import itertools
import threading
from multiprocessing import util

from .. import errors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .channel import Channel
    from .message import Outgoing


_AT_ONCE = 1024  # messages; a thread that has to wait for the interpreter after each one would send few


class Unsent:
    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.fork()

    def fork(self) -> None:
        """In a forked child: what is unsent is the parent's."""
        self._lock = threading.Lock()
        self._waiting: collections.deque[Outgoing] = collections.deque()
        self._thread: threading.Thread | None = None
        self._finalizer: Any = None
        self._failure: BaseException | None = None
        self._wait_at_exit = True
        self._then: Any = None

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, outgoing: Outgoing) -> None:
        with self._lock:
            if self._failure is not None:
                raise self._fail()
            self._waiting.append(outgoing)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="shmbroker-unsent", daemon=True)
                try:
                    self._thread.start()
                except BaseException:
                    self._thread = None
                    self._waiting.pop()
                    raise
                if self._wait_at_exit:
                    self._finalizer = util.Finalize(None, self._at_exit, exitpriority=-5)

    def _run(self) -> None:
        while True:
            with self._lock:
                first = [outgoing.parts for outgoing in itertools.islice(self._waiting, _AT_ONCE)]
            try:
                sent = self._channel.send_many(first)
            except BaseException as error:  # the broker has gone: the next put tells it, or the end of the process
                with self._lock:
                    self._failure = error
                    self._end()
                return
            del first
            with self._lock:
                for _ in range(sent):
                    self._waiting.popleft()
                if not self._waiting:
                    self._end()
                    self._forget()
                    return

    def _end(self) -> None:
        self._thread = None
        if self._then is not None:
            self._then()

    def _forget(self) -> None:
        if self._finalizer is not None:
            self._finalizer.cancel()
            self._finalizer = None

    def _at_exit(self) -> None:
        """multiprocessing prints what is raised here."""
        thread = self._thread
        if thread is not None:
            thread.join()
        if self._failure is not None:
            kind = errors.SessionLost if isinstance(self._failure, errors.SessionLost) else errors.Error
            raise kind(f"{len(self._waiting)} items that this process has put into a queue are lost: {self._failure}") \
                from self._failure

    def _fail(self) -> BaseException:
        """The failure, which is told now: the end of the process need not do it."""
        self._forget()
        return self._failure

    def close(self, then: Any) -> None:
        """Calls `then` once all is sent, or cannot be sent."""
        with self._lock:
            if self._thread is None:
                then()
            else:
                self._then = then

    def join(self) -> None:
        thread = self._thread
        if thread is not None and self._wait_at_exit:
            thread.join()
        if self._failure is not None:
            raise self._fail()

    def cancel(self) -> None:
        """The process does not wait for it at its end; what is unsent then is lost."""
        with self._lock:
            self._wait_at_exit = False
            self._forget()
