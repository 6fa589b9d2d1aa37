# SPDX-License-Identifier: Apache-2.0
"""Calls of `_core` beside the same calls of the C functions, which the library python_calls.c makes in this process.

Both are of one broker. The queue has both ends in one process, so nobody is woken, and only the call is measured.
"""
import ctypes
import time

import shmbroker

BATCH = 128  # sends before the queue is emptied, which is not measured


class Calls:
    def __init__(self, library):
        self._session = shmbroker.connect(group="")
        self._pool = self._session.create_pool([(4096, 4)])
        self._queue = self._pool.queue("calls", kind="spsc", role="both", cells=2 * BATCH)
        self._region = self._session.create(4096)
        self._library = ctypes.CDLL(library)
        self._library.python_calls_open(self._session.info().socket.encode())

    def _in_c(self, name):
        function = getattr(self._library, name)
        function.argtypes, function.restype = [ctypes.c_long], ctypes.c_double
        return function

    def _send(self, count):
        message, send, took = bytes(56), self._queue.send, 0.0
        for _ in range(count):
            begin = time.perf_counter()
            for _ in range(BATCH):
                send(message)
            took += time.perf_counter() - begin
            for done in self._queue.receive_many(BATCH):
                done.done()
        return took * 1e6 / count / BATCH

    def _attach(self, count):
        """Processor time of this process: the way to the broker and back takes far longer, and varies more."""
        where, attach = self._region.id, self._session.attach
        begin = time.process_time()
        for _ in range(count):
            attach(where, write=True).close()
        return (time.process_time() - begin) * 1e6 / count

    def figures(self):
        """Name, both sides, calls of one measurement, and how many times as many measurements as of other figures. An
        attach varies by more than `_core` adds, so it is measured in many short turns."""
        return [("send.56B", self._send, self._in_c("python_calls_send"), 300, 1),
                ("attach", self._attach, self._in_c("python_calls_attach"), 100, 40)]
