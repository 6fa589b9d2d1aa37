# SPDX-License-Identifier: Apache-2.0
"""Random SIGKILLs of producers, consumers and workers, and long runs: nobody hangs, nothing is left.

SHMBROKER_KILLS=500 gives the long form of the kills, SHMBROKER_BATCHES that of the batches.
"""
import os
import random
import time

import mp_children as children
import numpy
import pytest
import shmbroker
from mp_world import ctx, descriptors, end, ended, fork, maps, memory, until  # noqa: F401
from shmbroker import mp

KILLS = int(os.environ.get("SHMBROKER_KILLS", "24"))
BATCHES = int(os.environ.get("SHMBROKER_BATCHES", "10000"))


def test_killed_producers_and_consumers_block_nobody(fork):
    queue, bounded = fork.Queue(), fork.Queue(4)
    roles = [(children.put_for_ever, (queue, 0)), (children.put_for_ever, (bounded, 1)),
             (children.get_for_ever, (queue, bounded)), (children.get_for_ever, (bounded, queue))]
    choose = random.Random(16)
    running = []
    for role in roles * 2:
        running.append((role, fork.Process(target=role[0], args=role[1], daemon=True)))
        running[-1][1].start()
    for _ in range(KILLS):
        time.sleep(choose.random() * 0.02)
        place = choose.randrange(len(running))
        role, process = running[place]
        process.kill()
        assert ended(process)
        running[place] = role, fork.Process(target=role[0], args=role[1], daemon=True)
        running[place][1].start()
    end(*(process for _, process in running))
    for one in queue, bounded:  # still of use
        while True:
            try:
                one.get(timeout=0.2)
            except Exception:
                break
        one.put("last", timeout=20)
        assert one.get(timeout=20) == "last"
        assert until(lambda: one._channel.pool.info().slots_used == one._channel.pool.info().slots_own)
    assert until(lambda: queue._channel.pool.info().participants == 1)


def test_the_messages_of_many_dead_producers_are_read_and_then_there_is_room_again(fork):
    queue = fork.Queue()
    processes = [fork.Process(target=children.put_and_die, args=(queue, [number])) for number in range(64)]
    for process in processes:
        process.start()
        assert ended(process)  # 64 dead ones: no lane is left
    with pytest.raises(shmbroker.OutOfShared, match="lanes"):
        queue.put("no room")
    assert sorted(queue.get(timeout=20) for _ in processes) == list(range(64))
    queue.put("last")
    assert queue.get(timeout=20) == "last"
    assert queue.empty()


def test_a_get_goes_on_after_the_death_of_a_producer_until_an_item_or_its_limit(python):
    python("""
import os, queue, signal, threading
from shmbroker import mp
items = mp.Queue()

def read_what_a_killed_one_has_put():
    pid = os.fork()
    if pid == 0:
        items.put("of the dead")
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    assert items.get() == "of the dead"

read_what_a_killed_one_has_put()
try:
    raise SystemExit(f"there is {items.get(timeout=0.5)!r}")
except queue.Empty:
    pass
read_what_a_killed_one_has_put()
threading.Timer(0.5, items.put, ["of the living"]).start()
assert items.get() == "of the living"
""")


def test_each_killed_producers_items_arrive_without_a_gap(fork):
    queue = fork.Queue()
    choose = random.Random(17)
    for number in range(max(4, KILLS // 8)):
        child = fork.Process(target=children.put_for_ever, args=(queue, number))
        child.start()
        first = queue.get(timeout=30)
        time.sleep(choose.random() * 0.01)
        child.kill()
        assert ended(child)
        seen = [first]
        while True:
            try:
                seen.append(queue.get(timeout=0.3))
            except Exception:
                break
        assert [item[:2] for item in seen] == [(number, count) for count in range(len(seen))]


def test_killed_workers_do_not_stop_a_pool(fork):
    choose = random.Random(18)
    with fork.Pool(3) as pool:
        results = [pool.apply_async(time.sleep, (0.002,)) for _ in range(KILLS * 4)]
        for _ in range(max(4, KILLS // 4)):
            time.sleep(choose.random() * 0.05)
            workers = [worker for worker in list(pool._pool) if worker.is_alive()]
            if workers:
                choose.choice(workers).kill()
        outcomes = []
        for result in results:
            try:
                outcomes.append(result.get(timeout=60))
            except mp.WorkerDied as died:
                outcomes.append(died)
        assert len(outcomes) == len(results)
        assert pool.apply(children.square, (4,)) == 16


@pytest.mark.parametrize("size", [10, 2000, 40000])
def test_batches_leave_nothing_behind(fork, size):
    queue = fork.Queue()
    batch = numpy.ones(size)

    def run(count):
        for _ in range(count):
            queue.put(batch)
            assert queue.get().nbytes == batch.nbytes

    count = BATCHES if size <= 2000 else BATCHES // 10
    run(300)
    before = descriptors(), maps(), memory(), queue._channel.pool.info().bytes
    run(count)
    assert descriptors() <= before[0] + 1
    assert maps() <= before[1] + 8
    assert memory() <= before[2] + (16 << 20)
    assert queue._channel.pool.info().bytes == before[3]


def test_regions_leave_nothing_behind(fork):
    queue = fork.Queue()

    def run(count):
        for number in range(count):
            array = mp.empty(1 << 18)
            array[0] = number
            queue.put(array)
            del array
            assert queue.get()[0] == number

    run(50)
    before = descriptors(), maps(), memory()
    run(BATCHES // 20)
    assert descriptors() <= before[0] + 1
    assert maps() <= before[1] + 8
    assert memory() <= before[2] + (32 << 20)


def test_queues_leave_nothing_behind(fork):
    def run(count):
        for _ in range(count):
            queue, simple = fork.Queue(2), fork.SimpleQueue()
            queue.put(numpy.ones(5000))
            simple.put(1)
            assert simple.get() == 1

    run(5)
    before = descriptors(), maps()
    run(30)
    assert until(lambda: descriptors() <= before[0] + 1 and maps() <= before[1] + 8)
