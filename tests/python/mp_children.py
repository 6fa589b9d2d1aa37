# SPDX-License-Identifier: Apache-2.0
"""The functions that child processes of the test_mp_*.py run: importable under its own name for spawn and forkserver."""
import os
import signal
import sys
import time
import types

import numpy


def echo(tasks, results):
    """Sends back what comes, until None."""
    while (obj := tasks.get()) is not None:
        results.put(obj)


def facts(tasks, results):
    """Reports how an array looks where it arrives."""
    while (array := tasks.get()) is not None:
        results.put((array.shape, str(array.dtype), float(array.sum()), array.flags.writeable, array.flags.f_contiguous))
        array = None


def put_and_end(queue, objects):
    for obj in objects:
        queue.put(obj)


def put_and_die(queue, objects):
    for obj in objects:
        queue.put(obj)
    os.kill(os.getpid(), signal.SIGKILL)


def put_for_ever(queue, number):
    count = 0
    while True:
        queue.put((number, count, bytes(200)))
        count += 1


def get_for_ever(queue, got):
    while True:
        queue.get()
        got.put(1)


def get_one_and_wait(queue, ready):
    held = [queue.get() for _ in range(queue.qsize())]
    ready.put(len(held))
    time.sleep(1000)


def get_interrupted(queue, told):
    told.put("ready")
    for _ in range(2):
        try:
            queue.get()
        except KeyboardInterrupt:
            told.put("interrupted")


def fill_interrupted(queue, told):
    told.put("ready")
    try:
        while True:
            queue.put(1)
    except KeyboardInterrupt:
        told.put("interrupted")


def put_numbers(queue, start, count):
    for number in range(start, start + count):
        queue.put(number)


def put_numbers_and_give_up(queue, count, when):
    if when == "before":
        queue.cancel_join_thread()
    put_numbers(queue, 0, count)
    if when == "after":
        queue.cancel_join_thread()


def make_queue(told):
    """A child's own queue is in its parent's group."""
    from shmbroker import mp
    from shmbroker.mp import place
    mp.Queue()
    told.put(place.address())


def send_arrays(connection, count):
    for number in range(count):
        connection.send(numpy.full(100000, number))
    connection.close()


def serve(tasks, results, event):
    """Runs what comes, until None. An exception is a result too."""
    shared.update(event=event, results=results)
    while (task := tasks.get()) is not None:
        function, args = task
        try:
            results.put(function(*args))
        except Exception as error:
            results.put(error)
        del task, function, args


shared = {}


def descriptors_here():
    return len(os.listdir("/proc/self/fd"))


def set_to_four(memory, step, offset):
    """Of five times five numbers. Returns what one column of them has, seen as the sender saw it."""
    numpy.ndarray((5, 5), buffer=memory.buf)[...] = 4
    seen = numpy.ndarray(5, buffer=memory.buf, offset=offset, strides=(step,))
    found = int(seen.sum()), int(seen[4])
    del seen
    memory.close()
    shared["event"].set()
    return found


def make_and_send_twice():
    from shmbroker import SharedMemory
    memory = shared["made"] = SharedMemory(create=True, size=200)
    numpy.ndarray(25, buffer=memory.buf)[...] = 1
    shared["results"].put(memory)
    shared["results"].put(memory)
    return [memory, memory]


def drop_what_was_made():
    memory = shared.pop("made")
    memory.close()
    memory.unlink()
    return True


def fill_with_four_and_add_one(memory):
    array = numpy.ndarray((2, 2), buffer=memory.buf)
    array[...] = 4
    result = array + 1
    del array
    memory.close()
    return result


def add_three(memory):
    array = numpy.ndarray(5, buffer=memory.buf)
    array += 3


def is_shared(thing):
    """Whether a write of this process would be seen by its sender."""
    from shmbroker import mp
    if isinstance(thing, numpy.ndarray):
        return mp.find(thing) is not None
    found = mp.find(thing.buf) is not None
    thing.close()
    return found


def give_back(thing):
    return thing


def sum_of(array):
    return float(array.sum())


def sum_if_shared(array):
    from shmbroker import mp
    return float(array.sum()) if mp.find(array) is not None else None


def add_one(array):
    array += 1
    return array


def large(number):
    return numpy.full(50000, number)


def die(number):
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def square(number):
    return number * number


def cannot_return(number):
    return lambda: number


def raise_odd(number):
    raise Odd("a", number)


class Odd(Exception):
    """Its constructor takes other arguments than those that its pickle gives back."""

    def __init__(self, text, number):
        super().__init__(text)


class NotPicklable:
    def __reduce__(self):
        raise RuntimeError("this cannot be pickled")


class NotUnpicklable:
    def __reduce__(self):
        return _refuse, ()


def _refuse():
    raise RuntimeError("this cannot be unpickled")


class OnlyHere:
    """Unpickled elsewhere it is not found: its module name leads nowhere."""


OnlyHere.__module__ = "a_module_that_only_the_sender_has"


def only_here(number):
    """An object of a class in a module that only this process has."""
    module = types.ModuleType("only_in_the_worker")
    module.Thing = type("Thing", (), {"__module__": module.__name__})
    sys.modules[module.__name__] = module
    return module.Thing()


class ForksInPickle:
    def __reduce__(self):
        child = os.fork()
        if child == 0:
            os._exit(7)
        return os.waitstatus_to_exitcode, (os.waitpid(child, 0)[1],)
