# SPDX-License-Identifier: Apache-2.0
"""The functions that the workers of test_torch_rpc.py call in each other. As a program: a worker that serves until the
world ends.

usage: torch_rpc_functions.py NAME RANK WORLD_SIZE
"""
import os
import signal
import sys
import threading
import time

import torch

import shmbroker.torch.rpc as rpc

kept = {}


class Odd(Exception):
    """An exception that cannot be made from one text."""

    def __init__(self, one, two):
        super().__init__(one, two)


class Counter:
    def __init__(self, start):
        self.value = start

    def add(self, by=1):
        self.value += by
        return self.value

    @rpc.functions.async_execution
    def add_later(self, by):
        return done(self.add(by))


def done(value):
    future = torch.futures.Future()
    future.set_result(value)
    return future


def give_back(value):
    return value


def combine(a, *, scale):
    return (a + 1) * scale


def write_four(tensor):
    tensor.fill_(4)
    return tensor.sum().item()


def ones(count):
    return torch.ones(count)


def keep_ones(name, count):
    kept[name] = torch.ones(count)
    return kept[name]


def keep_data(name, count):
    """Only another tensor on the same memory stays."""
    ones = torch.ones(count)
    kept[name] = ones.data
    return ones


def keep_array(name, count):
    import numpy
    kept[name] = torch.from_numpy(numpy.ones(count, numpy.float32))
    return torch.from_numpy(kept[name].numpy())


def fill_kept(name, value):
    kept[name].data.fill_(value)


def keep(name, value):
    kept[name] = value


def forget(name):
    del kept[name]


def fetch(rref):
    return rref.to_here()


def fill_value(rref, value):
    rref.local_value().fill_(value)


def fail(kind, text):
    raise kind(text)


def fail_from(text):
    try:
        raise KeyError("the cause")
    except KeyError as error:
        raise ValueError(text) from error


class Unreadable:
    """Its value arrives, and raises when it is read."""
    def __reduce__(self):
        return fail_from, ("read",)


def fail_meanwhile(text):
    try:
        raise KeyError("met before")
    except KeyError:
        raise ValueError(text)


class UnreadableMeanwhile:
    def __reduce__(self):
        return fail_meanwhile, ("read",)


class NoCopy(Exception):
    """An exception of which no copy can be made: its constructor takes other arguments than it keeps."""

    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


def fail_without_copy(one, two):
    raise NoCopy(one, two)


class UnreadableWithoutCopy:
    def __reduce__(self):
        return fail_without_copy, (1, 2)


def fail_odd():
    raise Odd(1, 2)


def give_unpicklable():
    return threading.Lock()


def sleep(seconds):
    time.sleep(seconds)
    return seconds


def count(name):
    kept[name] = kept.get(name, 0) + 1


def counted_later(name, most):
    """How often it was counted, once that is so often, or after a while."""
    end = time.monotonic() + 30
    while kept.get(name, 0) < most and time.monotonic() < end:
        time.sleep(0.01)
    return kept.get(name, 0)


def sleep_and_count(name, seconds):
    time.sleep(seconds)
    count(name)


def own(value):
    """Three references to values of this worker, which its caller may use."""
    return [rpc.RRef([value, number]) for number in range(3)]


def multiply(size):
    return (torch.ones(size, size) @ torch.ones(size, size)).sum().item()


def sum_of(first, second):
    return first.to_here() + second.to_here()


def was_confirmed(rref):
    return rref.confirmed_by_owner(), rref.to_here()


def make_at(worker, value):
    return rpc.remote(worker, give_back, args=(value,))


def list_of_references(worker):
    return [make_at(worker, 1), make_at(worker, 2)]


def add_to_local(rref):
    return rref.to_here() + 40


def call_back(worker, depth):
    if depth == 0:
        return [rpc.get_worker_info().name]
    me = rpc.get_worker_info().name
    return [me] + rpc.rpc_sync(worker, call_back, args=(me, depth - 1))


def around(rref, workers, left):
    """Hands a reference on, round and round."""
    if left == 0:
        return rref.to_here()
    return rpc.rpc_sync(workers[left % len(workers)], around, args=(rref, workers, left - 1))


def hop(path, other, left):
    """Goes back and forth with nobody waiting, and leaves a mark at the end."""
    if left == 0:
        with open(path, "w") as file:
            file.write("arrived")
        return
    kept[left] = rpc.rpc_async(other, hop, args=(path, rpc.get_worker_info().name, left - 1))


def values_here():
    return rpc.world._debug_info()["num_owner_rrefs"]


def hold_references(worker, count):
    kept["references"] = [rpc.remote(worker, ones, args=(1000,)) for _ in range(count)]
    for one in kept["references"]:
        one.to_here()


def hold_numbers(worker, count):
    kept["references"] = [rpc.remote(worker, give_back, args=(number,)) for number in range(count)]
    for one in kept["references"]:
        one.to_here()


def die():
    os.kill(os.getpid(), signal.SIGKILL)


@rpc.functions.async_execution
def add_in_chain(to, x, y, z):
    return rpc.rpc_async(to, torch.add, args=(x, y)).then(lambda future: future.wait() + z)


@rpc.functions.async_execution
def no_future():
    return 3


@rpc.functions.register("double")
def double(value):
    return [value, value]


@rpc.functions.register("fail")
def fail_plainly(text):
    raise ValueError(text)


@rpc.functions.register("sum_bytes")
def sum_bytes(buffer):
    return sum(memoryview(buffer)[:100_000])


@rpc.functions.register("fill")
def fill(size, value):
    return bytes([value]) * size


def serve(name, rank, size, port):
    """A process that multiprocessing has started: a worker until the world ends."""
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port))
    rpc.init_rpc(name, rank=rank, world_size=size)
    rpc.shutdown()


def serve_to_the_last_reference(name, rank, size, port, told):
    """The same, and a reference that is left is an error of the shutdown."""
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port))
    rpc.init_rpc(name, rank=rank, world_size=size)
    try:
        told.put(rpc.state.current().core.shutdown(False, True, True, 60 * 10**9))
    except Exception as error:
        told.put(str(error))


def main():
    name, rank, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    rpc.init_rpc(name, rank=rank, world_size=size)
    rpc.shutdown()


if __name__ == "__main__":
    # The others know the functions under the name of the module, and so does this process.
    import torch_rpc_functions

    torch_rpc_functions.main()
