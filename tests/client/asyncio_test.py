#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A queue in asyncio, by the C ABI alone: loop.add_reader on the queue's descriptor, receive until EMPTY, and the loop's
other tasks run meanwhile. All messages of another process arrive, in order, and then the end of the queue.
Usage: asyncio_test.py LIBRARY BROKER"""
import asyncio
import ctypes
import os
import subprocess
import sys
import tempfile

MESSAGES = 2000
OK, CLOSED, EMPTY, PEER_GONE = 0, 25, 28, 29
NO_WAIT = -2
READER, WRITER, LINE = 1, 2, 1
NO_GROUP = 1 << 4


class Error(ctypes.Structure):
    _fields_ = [("status", ctypes.c_int32), ("system_errno", ctypes.c_int32), ("slot", ctypes.c_uint32),
                ("scope", ctypes.c_uint32), ("scope_id", ctypes.c_uint64), ("limit", ctypes.c_uint64),
                ("used", ctypes.c_uint64), ("asked", ctypes.c_uint64), ("sentence", ctypes.c_char * 512)]


class ConnectOptions(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("socket", ctypes.c_char_p), ("group", ctypes.c_char_p),
                ("program", ctypes.c_char_p), ("flags", ctypes.c_uint32), ("reserved", ctypes.c_uint32),
                ("timeout_ns", ctypes.c_int64)]


class QueueOptions(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("kind", ctypes.c_uint32), ("role", ctypes.c_uint32),
                ("flags", ctypes.c_uint32), ("cells", ctypes.c_uint32), ("inline_bytes", ctypes.c_uint32),
                ("reserved", ctypes.c_uint32), ("spin_ns", ctypes.c_int64), ("wait_ns", ctypes.c_int64),
                ("timeout_ns", ctypes.c_int64)]


class Library:
    """The few functions that this needs; a status that is not allowed is an exception with its sentence."""

    def __init__(self, path):
        self.c = ctypes.CDLL(path)
        self.c.shmb_message_data.restype = ctypes.c_void_p
        self.c.shmb_message_length.restype = ctypes.c_uint64
        for name in ("shmb_message_data", "shmb_message_length", "shmb_message_free", "shmb_disconnect"):
            getattr(self.c, name).argtypes = [ctypes.c_void_p]
        for name in ("shmb_message_free", "shmb_disconnect"):
            getattr(self.c, name).restype = None

    def call(self, name, *arguments, allowed=(OK,)):
        error = Error()
        status = getattr(self.c, name)(*arguments, ctypes.byref(error))
        if status not in allowed:
            raise RuntimeError(f"{name}: status {status}: {error.sentence.decode()}")
        return status

    def connect(self, socket):
        options = ConnectOptions(ctypes.sizeof(ConnectOptions), socket.encode(), None, b"asyncio_test", NO_GROUP, 0, 0)
        session = ctypes.c_void_p()
        self.call("shmb_connect", ctypes.byref(options), ctypes.byref(session))
        return session

    def open_queue(self, session, role):
        options = QueueOptions(size=ctypes.sizeof(QueueOptions), kind=LINE, role=role)
        queue = ctypes.c_void_p()
        self.call("shmb_queue_open_alone", session, b"q", ctypes.byref(options), ctypes.byref(queue))
        return queue

    def message(self):
        message = ctypes.c_void_p()
        self.call("shmb_message_new", ctypes.byref(message))
        return message


def send_numbers(library, session):
    """In a forked child, which joins the pool on its own: in bursts, so that the reader's loop sleeps between them."""
    queue = library.open_queue(session, WRITER)
    for number in range(MESSAGES):
        if number % 100 == 0:
            os.sched_yield()
        body = number.to_bytes(8, "little")
        library.call("shmb_queue_send", queue, body, ctypes.c_uint64(len(body)), ctypes.c_int64(60_000_000_000))
    library.call("shmb_queue_shutdown", queue, ctypes.c_uint32(0))


class QueueReader:
    """Hands the messages of a queue to a task."""

    def __init__(self, loop, library, queue):
        self.loop, self.library, self.queue, self.message = loop, library, queue, library.message()
        self.arrived = asyncio.Queue()
        descriptor = ctypes.c_int()
        library.call("shmb_queue_descriptor", queue, ctypes.byref(descriptor))
        self.descriptor, self.wakes = descriptor.value, 0
        loop.add_reader(self.descriptor, self.readable)

    def readable(self):
        self.wakes += 1
        while True:
            status = self.library.call("shmb_queue_receive", self.queue, self.message, ctypes.c_uint32(0),
                                       ctypes.c_int64(NO_WAIT), allowed=(OK, EMPTY, PEER_GONE, CLOSED))
            if status == EMPTY:  # armed again: the next message makes the descriptor readable
                return
            if status == CLOSED:
                self.loop.remove_reader(self.descriptor)
                self.arrived.put_nowait(None)
                return
            if status == OK:
                data = self.library.c.shmb_message_data(self.message)
                length = self.library.c.shmb_message_length(self.message)
                self.arrived.put_nowait(int.from_bytes(ctypes.string_at(data, length), "little"))


async def read_all(library, queue):
    reader = QueueReader(asyncio.get_running_loop(), library, queue)
    ticks = 0

    async def other_work():
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.001)

    work = asyncio.create_task(other_work())
    numbers = []
    while (number := await reader.arrived.get()) is not None:
        numbers.append(number)
    work.cancel()
    library.c.shmb_message_free(reader.message)
    return numbers, reader.wakes, ticks


def run(library, socket):
    session = library.connect(socket)
    queue = library.open_queue(session, READER)  # here, so that there is a pool and a reader before the child comes
    child = os.fork()
    if child == 0:
        status = 1
        try:
            send_numbers(library, session)
            status = 0
        except Exception as failure:  # the child has no other way to tell
            print(f"the writer: {failure}", file=sys.stderr, flush=True)
        os._exit(status)
    try:
        numbers, wakes, ticks = asyncio.run(asyncio.wait_for(read_all(library, queue), 60))
    finally:
        _, status = os.waitpid(child, 0)
    library.call("shmb_queue_close", queue, ctypes.c_uint32(0))
    library.c.shmb_disconnect(session)
    if status != 0:
        return f"the writer ended with {status}"
    if numbers != list(range(MESSAGES)):
        return f"{len(numbers)} messages arrived, or in another order: {numbers[:10]}"
    if wakes == 0 or ticks == 0:
        return f"the loop was woken {wakes} times and did other work {ticks} times"
    print(f"{len(numbers)} messages in {wakes} wakes of the loop")
    return None


def main():
    library, broker = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="shmb-asyncio-") as folder:
        ready, write_end = os.pipe()
        daemon = subprocess.Popen([broker, "--directory", folder + "/broker", "--ready-fd", str(write_end), "--log-level",
                                   "error"], pass_fds=[write_end])
        try:
            os.close(write_end)
            if os.read(ready, 1) != b"\n":
                wrong = "the broker did not start"
            else:
                wrong = run(Library(library), folder + "/broker/socket")
        finally:
            os.close(ready)
            daemon.terminate()
            status = daemon.wait(30)
    if wrong is None and status != 0:
        wrong = f"the broker ended with {status}"
    if wrong is not None:
        print(wrong)
    return 1 if wrong is not None else 0


if __name__ == "__main__":
    sys.exit(main())
