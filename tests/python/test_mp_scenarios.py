# SPDX-License-Identifier: Apache-2.0
"""Scenarios 1 to 10 of docs/conformance.md with NumPy arrays, for each start method. The numbers are those of that page.

One process for each method takes part in all of them. After each scenario no region is left, and no descriptor.
"""
import os
import subprocess
import sys
import time

import mp_children as children
import numpy
import pytest
import shmbroker
from mp_world import METHODS, descriptors, ended, until
from shmbroker import SharedMemory, mp

ROUNDS = 30


class Partner:
    """A process that runs functions for the scenarios, one after another."""

    def __init__(self, method):
        self.context = mp.get_context(method)
        if method == "forkserver":
            self.context.set_forkserver_preload(["mp_children"])
        self.tasks, self.results, self.event = self.context.Queue(), self.context.Queue(), self.context.Event()
        self.process = self.context.Process(target=children.serve, args=(self.tasks, self.results, self.event))
        self.process.start()
        self(children.descriptors_here)

    def __call__(self, function, *args):
        self.tasks.put((function, args))
        return self.results.get(timeout=60)


@pytest.fixture(scope="module", params=METHODS)
def running(broker, request):
    partner = Partner(request.param)
    yield partner
    partner.tasks.put(None)
    assert ended(partner.process, 100) and partner.process.exitcode == 0


def regions():
    """Those of this user that somebody uses. Pools belong to the queues of the partner."""
    return {one.id for one in shmbroker.list().regions if not one.pool and one.state != "cached"}


@pytest.fixture
def partner(running):
    """1 and 2, around each scenario: what was there before is there, and nothing else."""
    before = regions(), descriptors(), running(children.descriptors_here)
    yield running
    assert until(lambda: regions() == before[0])
    assert descriptors() <= before[1] + 4
    assert running(children.descriptors_here) <= before[2] + 4


class Block:
    """Numbers in memory that several processes write to."""

    def __init__(self, *shape):
        self.memory = SharedMemory(create=True, size=8 * int(numpy.prod(shape)))
        self.array = numpy.ndarray(shape, buffer=self.memory.buf)
        self.array[...] = 0

    def end(self):
        self.array = None
        self.memory.close()
        self.memory.unlink()


def test_1_2_no_object_and_no_descriptor_is_left(partner):
    before = regions(), descriptors()
    for number in range(100):
        array = mp.empty(4096) if number % 2 else numpy.empty(1 << 18)
        array[...] = number
        assert partner(children.sum_of, array) == array.size * number
    del array
    assert until(lambda: regions() == before[0])
    assert descriptors() <= before[1]


def test_3_a_write_of_the_child_shows_in_the_whole_and_in_a_part(partner):
    for _ in range(ROUNDS):
        block = Block(5, 5)
        column = block.array[:, 1]
        partner.event.clear()
        partner.tasks.put((children.set_to_four, (block.memory, column.strides[0], column.ctypes.data
                                                  - block.array.ctypes.data)))
        assert partner.event.wait(60)
        assert (block.array == 4).all() and (column == 4).all()
        assert partner.results.get(timeout=60) == (20, 4)
        column = None
        block.end()


def test_4_what_comes_twice_is_the_same_memory(partner):
    for _ in range(ROUNDS):
        partner.tasks.put((children.make_and_send_twice, ()))
        first, second = (partner.results.get(timeout=60) for _ in range(2))
        in_one_message = partner.results.get(timeout=60)
        assert in_one_message[0] is in_one_message[1]
        for one in first, second, in_one_message[0]:
            assert (numpy.frombuffer(one.buf) == 1).all()
        first.buf[0] = 7
        assert second.buf[0] == in_one_message[0].buf[0] == 7
        assert mp.find(first.buf).id == mp.find(second.buf).id
        for one in first, second, in_one_message[0]:
            one.close()
        assert partner(children.drop_what_was_made)


def test_5_what_a_process_sends_to_itself_is_its_own_memory(partner):
    queue = partner.context.Queue()
    for _ in range(ROUNDS):
        block = Block(5, 5)
        block.array[...] = numpy.arange(25).reshape(5, 5)
        queue.put([block.memory, block.memory, block.array, block.array[2], block.array[:, 3]])
        whole, again, *copies = queue.get(timeout=60)
        assert whole is again
        assert mp.find(whole.buf).id == mp.find(block.memory.buf).id
        for copy, sent in zip(copies, (block.array, block.array[2], block.array[:, 3])):
            assert (copy == sent).all()
        numpy.frombuffer(whole.buf)[0] = 44
        assert block.array[0, 0] == 44
        assert copies[0][0, 0] == 0  # an array is the receiver's alone
        whole.close()
        del whole, again, copies, copy, sent
        block.end()
    queue.close()


def test_6_a_pool_of_two_writes_into_the_memory_of_its_caller(partner):
    with partner.context.Pool(2) as pool:
        for _ in range(ROUNDS):
            blocks = [Block(2, 2) for _ in range(4)]
            results = pool.map(children.fill_with_four_and_add_one, [block.memory for block in blocks])
            assert all((result == 5).all() for result in results)
            assert all((block.array == 4).all() for block in blocks)
            del results
            for block in blocks:
                block.end()
        pool.close()
        pool.join()


def test_7_an_object_is_there_from_put_on_and_gone_once_taken_and_dropped(partner):
    def mine():
        return [one for one in shmbroker.list().regions
                if one.creator_pid == os.getpid() and not one.pool and one.state != "cached"]

    queue = partner.context.Queue()
    for _ in range(3):
        array = numpy.arange(4.0 + (1 << 17))  # more than a slot has: a region of its own
        assert not mine()
        queue.put(array)
        time.sleep(0.05)
        assert [one.length for one in mine()] == [array.nbytes]
        received = queue.get(timeout=60)
        assert (received == array).all()
        del received
        queue._channel.let_go()
        assert until(lambda: not mine())
    queue.close()


def test_8_a_change_by_a_child_shows_in_its_parent(partner):
    block = Block(5)
    child = partner.context.Process(target=children.add_three, args=(block.memory,))
    child.start()
    assert ended(child) and child.exitcode == 0
    assert (block.array == 3).all()
    block.end()


def test_9_memory_is_private_at_first_and_shared_when_it_is_asked_for(partner):
    assert shmbroker.sharing_strategies() == ("file_descriptor", "file_system")
    before = shmbroker.sharing_strategy()
    try:
        for strategy in shmbroker.sharing_strategies():
            shmbroker.set_sharing_strategy(strategy)
            private = numpy.zeros(5)
            assert mp.find(private) is None
            block = Block(5)
            block.array[...] = private
            handed = mp.empty(5)
            assert mp.find(block.array) is not None and mp.find(handed) is not None
            assert partner(children.is_shared, block.memory)
            assert not partner(children.is_shared, private)
            del handed
            block.end()
    finally:
        shmbroker.set_sharing_strategy(before)


def test_10_empty_memory_is_shared_and_sent(partner):
    with shmbroker.connect(group="") as session, session.create(0) as region:
        assert len(region) == 0 and memoryview(region).nbytes == 0
    for dtype in "float32", "int64":
        for empty in numpy.zeros(0, dtype), mp.empty(0, dtype), mp.empty((0, 3), dtype):
            back = partner(children.give_back, empty)
            assert back.shape == empty.shape and back.dtype == empty.dtype


COLD = """
from shmbroker import mp
import numpy

def send(queue):
    queue.put(numpy.ones(1 << 18))

if __name__ == "__main__":
    context = mp.get_context("forkserver")
    queue = context.Queue()
    child = context.Process(target=send, args=(queue,))
    child.start()
    print(int(queue.get(timeout=60).sum()))
    child.join()
"""


def test_a_fork_server_that_has_nothing_preloaded_serves_too(broker, tmp_path):
    program = tmp_path / "cold.py"
    program.write_text(COLD)
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, f"{1 << 18}\n"), done.stderr
