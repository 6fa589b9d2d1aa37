# SPDX-License-Identifier: Apache-2.0
"""Figures of queues between two Python processes: small objects, and arrays of 64 MiB.

Each side is a `Line`: a child process, a queue to it, and one back. The same code serves every kind of queue.
"""
import multiprocessing
import time
from multiprocessing import shared_memory

import numpy

from shmbroker import mp

OBJECT = {"number": 4711, "text": "x" * 24, "values": (1.5, 2.5, 3.5)}  # 100 bytes as a pickle
ARRAY = 64 << 20
IN_FLIGHT = 4
NUMBERS = ARRAY // 8


def echo(there, back):
    while True:
        item = there.get()
        back.put(item)
        if item is None:
            return


def take(there, back):
    """Takes as many objects as the first one says, and says so."""
    while True:
        count = there.get()
        if count is None:
            return
        for _ in range(count):
            there.get()
        back.put(count)


def look(there, back, room):
    """Looks at both ends of each array and drops it."""
    while True:
        count = there.get()
        if count is None:
            return
        for _ in range(count):
            array = there.get()
            if array[0] != array[-1]:
                raise ValueError(f"{array[0]} and {array[-1]} in one array")
            del array
            room.release()
        back.put(count)


def look_in_turn(there, back, room, names):
    """The floor of arrays: they lie in buffers that both processes have mapped, and only their numbers travel."""
    buffers = [shared_memory.SharedMemory(name) for name in names]
    arrays = [numpy.ndarray(NUMBERS, buffer=buffer.buf) for buffer in buffers]
    while True:
        count = there.get()
        if count is None:
            break
        for _ in range(count):
            array = arrays[there.get()]
            if array[0] != array[-1]:
                raise ValueError(f"{array[0]} and {array[-1]} in one array")
            room.release()
        back.put(count)
    del arrays, array
    for buffer in buffers:
        buffer.close()


class Line:
    def __init__(self, module, kind, target, *more):
        self.there, self.back = getattr(module, kind)(), getattr(module, kind)()
        self.process = module.Process(target=target, args=(self.there, self.back, *more), daemon=True)
        self.process.start()

    def close(self):
        self.there.put(None)
        self.process.join()


class Echo(Line):
    def __init__(self, module, kind="Queue"):
        super().__init__(module, kind, echo)

    def measure(self, count):
        """Half of a round trip, in microseconds."""
        put, get = self.there.put, self.back.get
        begin = time.perf_counter()
        for _ in range(count):
            put(OBJECT)
            get()
        return (time.perf_counter() - begin) * 0.5e6 / count


class Stream(Line):
    def __init__(self, module, kind="Queue"):
        super().__init__(module, kind, take)

    def measure(self, count):
        """Thousands of objects per second, from the first put until the last was taken."""
        begin = time.perf_counter()
        self.there.put(count)
        for _ in range(count):
            self.there.put(OBJECT)
        self.back.get()
        return count / (time.perf_counter() - begin) * 1e-3


class Arrays(Line):
    """Four arrays are filled in turn and put: each is filled again when the receiver is through with it."""

    def __init__(self, module, kind="Queue"):
        self.room = multiprocessing.Semaphore(IN_FLIGHT)
        self.arrays = self.make()
        super().__init__(module, kind, look, self.room)

    def make(self):
        return [numpy.zeros(NUMBERS) for _ in range(IN_FLIGHT)]

    def fill(self, number):
        self.arrays[number % IN_FLIGHT].fill(number)
        return self.arrays[number % IN_FLIGHT]

    def measure(self, count):
        """GB/s, from the first fill until the last array was looked at."""
        begin = time.perf_counter()
        self.there.put(count)
        for number in range(count):
            self.room.acquire()
            self.there.put(self.fill(number))
        self.back.get()
        return count * ARRAY / (time.perf_counter() - begin) * 1e-9


class HandedOver(Arrays):
    """The same with arrays of mp.empty, which travel without a copy."""

    def make(self):
        return None

    def fill(self, number):
        array = mp.empty(NUMBERS)
        array.fill(number)
        return array


class Refilled(Arrays):
    """Four buffers that both processes have mapped are filled in turn; only a number is put."""

    def __init__(self):
        self.room = multiprocessing.Semaphore(IN_FLIGHT)
        self.buffers = [shared_memory.SharedMemory(create=True, size=ARRAY) for _ in range(IN_FLIGHT)]
        self.arrays = [numpy.ndarray(NUMBERS, buffer=buffer.buf) for buffer in self.buffers]
        Line.__init__(self, multiprocessing, "SimpleQueue", look_in_turn, self.room,
                      [buffer.name for buffer in self.buffers])

    def fill(self, number):
        self.arrays[number % IN_FLIGHT].fill(number)
        return number % IN_FLIGHT

    def close(self):
        super().close()
        self.arrays = None
        for buffer in self.buffers:
            buffer.close()
            buffer.unlink()
