# SPDX-License-Identifier: Apache-2.0
"""Queues of shmbroker.mp: what arrives, what is refused, and what is left."""
import pickle
import queue as queues
import signal
import os
import threading
import time

import mp_children as children
import numpy
import pytest
import shmbroker
from mp_world import ctx, descriptors, end, ended, fork, maps, until  # noqa: F401
from shmbroker import mp


def test_it_has_every_public_name_of_multiprocessing():
    import multiprocessing
    missing = {name for name in dir(multiprocessing) if not name.startswith("_")} - set(dir(mp))
    assert not missing
    for name in multiprocessing.__all__:
        assert getattr(mp, name) is not None
    assert mp.connection.Listener is multiprocessing.connection.Listener
    assert mp.managers is multiprocessing.managers
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        mp.nothing


def test_arrays_arrive_whole_and_writable(ctx):
    tasks, results = ctx.Queue(), ctx.Queue()
    child = ctx.Process(target=children.facts, args=(tasks, results))
    child.start()
    whole = numpy.arange(600000, dtype="i4").reshape(600, 1000)
    read_only = whole.copy()
    read_only.flags.writeable = False
    own = mp.empty((300, 1000), "f4")
    own[...] = 2
    given = [whole, whole[::2, ::3], numpy.asfortranarray(whole), read_only, numpy.zeros((0, 3)), numpy.zeros(5), own,
             numpy.frombuffer(bytes(8000), "u1"), numpy.broadcast_to(numpy.float64(3), (50, 50))]
    for array in given:
        tasks.put(array)
    tasks.put(None)
    for array in given:
        shape, dtype, total, writable, fortran = results.get(timeout=30)
        assert (shape, dtype, total) == (array.shape, str(array.dtype), float(array.sum()))
        assert writable
        assert fortran == array.flags.f_contiguous or not array.flags.c_contiguous
    assert ended(child)


@pytest.mark.parametrize("handed", [False, True], ids=["put", "empty"])
def test_the_memory_of_large_arrays_is_used_again(handed):
    queue = mp.Queue()
    length = 3 << 19  # 12 MiB of float64, which no other test here uses
    for number in range(20):
        array = mp.empty(length) if handed else numpy.empty(length)
        array[...] = number
        queue.put(array)
        if number >= 2:  # two are on the way all the time
            assert queue.get()[-1] == number - 2
    del array
    regions = [region for region in shmbroker.list().regions if region.bytes == length * 8]
    assert 0 < len(regions) <= 5


def test_other_objects_arrive_as_they_were(ctx):
    tasks, results = ctx.Queue(), ctx.Queue()
    child = ctx.Process(target=children.echo, args=(tasks, results))
    child.start()
    given = [1, "text", b"", bytes(100), os.urandom(5000), os.urandom(3 << 20), bytearray(b"x" * 70000), {"a": [1, (2,)]},
             [b"y" * 300000, b"z" * 300000], 2 ** 70, True, 1.5]
    for obj in given:
        tasks.put(obj)
    tasks.put(None)
    assert [results.get(timeout=30) for _ in given] == given
    assert ended(child)


def test_what_cannot_be_pickled_is_an_exception_of_put_and_nothing_is_lost(ctx):
    for queue in ctx.Queue(), ctx.Queue(3), ctx.JoinableQueue(), ctx.SimpleQueue():
        with pytest.raises(RuntimeError, match="this cannot be pickled"):
            queue.put(children.NotPicklable())
        with pytest.raises(RuntimeError, match="this cannot be pickled"):
            queue.put([numpy.zeros(1 << 18), children.NotPicklable()])
        queue.put("next")
        assert queue.get() == "next"
        assert queue.empty()


def test_what_cannot_be_unpickled_is_an_exception_of_get_and_the_next_one_comes(fork):
    queue = fork.Queue()
    queue.put([children.NotUnpicklable(), numpy.zeros(100000)])
    queue.put(pickle.PickleBuffer(b"a" * 10))
    queue.put(7)
    with pytest.raises(RuntimeError, match="this cannot be unpickled"):
        queue.get()
    assert bytes(queue.get()) == b"a" * 10
    assert queue.get() == 7


def test_a_class_that_exists_on_one_side_only_is_an_exception_in_the_caller(fork):
    queue = fork.Queue()
    with pytest.raises(Exception, match="OnlyHere"):
        queue.put(children.OnlyHere())
    queue.put(1)
    assert queue.get() == 1


def test_an_exception_whose_constructor_fails_is_an_exception_of_get(fork):
    queue = fork.Queue()
    queue.put(children.Odd("a", 1))
    queue.put("next")
    with pytest.raises(TypeError, match="number"):
        queue.get()
    assert queue.get() == "next"


def test_a_fork_while_an_object_is_pickled_harms_nobody(fork):
    queue = fork.Queue()
    for _ in range(5):
        queue.put([children.ForksInPickle(), numpy.ones(100000)])
        status, array = queue.get(timeout=10)
        assert status == 7 and array.sum() == 100000


def test_an_unbounded_queue_takes_everything_without_a_reader(ctx):
    queue = ctx.Queue()
    for number in range(3000):
        queue.put(number)
    assert queue.qsize() == 3000
    child = ctx.Process(target=children.put_numbers, args=(queue, 3000, 1000))
    child.start()
    seen = [queue.get(timeout=20) for _ in range(4000)]
    assert [number for number in seen if number < 3000] == list(range(3000))
    assert [number for number in seen if number >= 3000] == list(range(3000, 4000))
    assert ended(child)
    assert queue.empty()


def test_a_process_waits_at_its_end_until_all_is_sent(ctx):
    queue = ctx.Queue()
    child = ctx.Process(target=children.put_numbers, args=(queue, 0, 2000))
    child.start()
    time.sleep(0.2)
    assert [queue.get(timeout=20) for _ in range(2000)] == list(range(2000))
    assert ended(child) and child.exitcode == 0


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_process_that_gives_up_what_is_unsent_ends_without_a_reader(fork, when):
    queue = fork.Queue()
    child = fork.Process(target=children.put_numbers_and_give_up, args=(queue, 300, when), daemon=True)
    child.start()
    assert ended(child) and child.exitcode == 0
    assert [queue.get(timeout=10) for _ in range(256)] == list(range(256)) and queue.empty()


def test_a_bounded_queue_keeps_its_bound(ctx):
    queue = ctx.Queue(3)
    for number in range(3):
        queue.put(number)
    assert queue.full() and queue.qsize() == 3
    with pytest.raises(queues.Full):
        queue.put_nowait(3)
    before = time.monotonic()
    with pytest.raises(queues.Full):
        queue.put(3, timeout=0.1)
    assert time.monotonic() - before >= 0.1
    assert queue.get() == 0
    queue.put(3, timeout=5)
    assert [queue.get() for _ in range(3)] == [1, 2, 3]
    with pytest.raises(queues.Empty):
        queue.get_nowait()
    with pytest.raises(queues.Empty):
        queue.get(timeout=0.05)
    with pytest.raises(queues.Empty):
        queue.get(timeout=-1)
    assert queue.empty() and not queue.full()


def test_many_producers_do_not_pass_the_bound(fork):
    queue = fork.Queue(2)
    producers = [fork.Process(target=children.put_numbers, args=(queue, 0, 200)) for _ in range(4)]
    for process in producers:
        process.start()
    total = 0
    for taken in range(800):
        if taken % 20 == 0:  # nobody takes meanwhile: else a count of all lanes is not that of one moment
            until(lambda: queue.qsize() >= 2)
            time.sleep(0.005)
            assert queue.qsize() == 2
        total += queue.get(timeout=30)
    assert total == 4 * sum(range(200))
    assert all(ended(process) for process in producers)


def test_a_consumer_that_is_killed_takes_no_place_of_a_bounded_queue_with_it(fork):
    queue, got = fork.Queue(2), fork.Queue()
    for _ in range(5):
        child = fork.Process(target=children.get_for_ever, args=(queue, got))
        child.start()
        queue.put(1, timeout=20)
        got.get(timeout=20)
        child.kill()
        assert ended(child)
    queue.put(1, timeout=10)
    queue.put(2, timeout=10)
    assert [queue.get(timeout=10), queue.get(timeout=10)] == [1, 2]


def test_the_reader_of_a_queue_is_ready_while_there_is_something_to_take_and_only_then(fork):
    for queue in fork.Queue(), fork.Queue(3), fork.SimpleQueue():
        reader = queue._reader
        assert not reader.poll(0)
        queue.put("before")
        assert mp.connection.wait([reader], 20) == [reader]
        assert queue.get() == "before"
        assert not reader.poll(0.05) and until(lambda: not mp.connection.wait([reader], 0))
        for number in range(2):
            queue.put(number)
        assert reader.poll(20)
        assert queue.get() == 0
        assert mp.connection.wait([reader], 20) == [reader]
        assert queue.get() == 1
        assert not reader.poll(0.05) and until(lambda: not mp.connection.wait([reader], 0))


def test_the_reader_of_a_queue_is_not_ready_for_what_another_process_has_taken(ctx):
    queue = ctx.Queue()
    queue.put(1)
    assert mp.connection.wait([queue._reader], 20) == [queue._reader]
    child = ctx.Process(target=queue.get)
    child.start()
    assert ended(child) and child.exitcode == 0
    assert until(lambda: not mp.connection.wait([queue._reader], 0))  # the end of the child is told, too


def test_a_message_that_comes_in_the_middle_of_a_look_is_taken_once_and_from_its_own_queue(fork, monkeypatch):
    one, other = fork.Queue(), fork.Queue()
    assert until(lambda: not mp.connection.wait([one._reader, other._reader], 0))
    one.put("came")
    with monkeypatch.context() as patch:
        patch.setattr(type(one._channel), "depth", lambda channel: 0)  # its value just before the message came
        assert mp.connection.wait([one._reader], 20) == [one._reader]
    assert one.qsize() == 1 and not one.empty()
    assert other.qsize() == 0 and other.empty()
    child = fork.Process(target=lambda: os._exit(one.qsize()))
    child.start()
    assert ended(child) and child.exitcode == 0  # its parent has taken the message
    assert one.get() == "came"
    assert one.qsize() == 0 and one.empty()


def test_a_closed_queue_gives_back_the_descriptors_of_its_reader(fork):
    def use():
        queue = fork.SimpleQueue()
        queue.put(1)
        assert mp.connection.wait([queue._reader], 20) and queue.get() == 1
        queue.close()

    use()
    before = descriptors()
    for _ in range(20):
        use()
    assert descriptors() <= before + 10


def test_join_waits_for_all_that_was_put(ctx):
    queue = ctx.JoinableQueue()
    with pytest.raises(ValueError, match="too many times"):
        queue.task_done()
    for number in range(3):
        queue.put(number)
    thread = threading.Thread(target=queue.join, daemon=True)
    thread.start()
    for _ in range(3):
        assert thread.is_alive()
        queue.get()
        queue.task_done()
    thread.join(20)
    assert not thread.is_alive()


def test_a_closed_queue_refuses(ctx):
    queue = ctx.Queue()
    with pytest.raises(AssertionError):
        queue.join_thread()
    queue.put(1)
    queue.close()
    queue.join_thread()
    queue.cancel_join_thread()
    with pytest.raises(ValueError, match="closed"):
        queue.put(1)
    with pytest.raises(ValueError, match="closed"):
        queue.get()
    simple = ctx.SimpleQueue()
    simple.close()
    simple.close()
    with pytest.raises(OSError):
        simple.get()
    with pytest.raises(OSError):
        simple.put(1)


def test_a_child_uses_a_queue_that_its_parent_has_closed(ctx):
    queue, result = ctx.Queue(), ctx.Queue()
    queue.put(numpy.ones(100000))
    queue.put(None)
    child = ctx.Process(target=children.facts, args=(queue, result))
    child.start()
    queue.close()
    del queue
    assert result.get(timeout=30)[2] == 100000
    assert ended(child)


@pytest.mark.parametrize("how", ["put_and_end", "put_and_die"])
def test_what_a_process_has_put_arrives_also_when_it_has_ended(ctx, how):
    queue = ctx.Queue()
    given = [numpy.full(100000, 3.0), numpy.full(400000, 4.0), b"small"]
    child = ctx.Process(target=getattr(children, how), args=(queue, given))
    child.start()
    assert ended(child)
    assert child.exitcode == (0 if how == "put_and_end" else -signal.SIGKILL)
    time.sleep(0.3)
    assert queue.get(timeout=10).sum() == 300000
    assert queue.get(timeout=10).sum() == 1600000
    assert queue.get(timeout=10) == b"small"


def held_by_others(queue):
    info = queue._channel.pool.info()
    return info.slots_used - info.slots_own


def test_what_a_killed_process_holds_is_freed(ctx):
    queue, ready = ctx.Queue(), ctx.Queue()
    for _ in range(20):
        queue.put(numpy.zeros(100000))
    child = ctx.Process(target=children.get_one_and_wait, args=(queue, ready))
    child.start()
    assert ready.get(timeout=30) == 20
    child.kill()
    assert ended(child)
    assert until(lambda: held_by_others(queue) == 0)
    assert queue.empty()


def test_what_nobody_read_is_freed_with_the_queue(fork):
    before = descriptors(), maps()
    for _ in range(5):
        queue = fork.Queue()
        for _ in range(10):
            queue.put(numpy.zeros(1 << 18))
        del queue
    assert until(lambda: descriptors() <= before[0] + 2 and maps() <= before[1] + 30)


def test_memory_of_empty_is_handed_over_without_a_copy(fork):
    queue = fork.Queue()
    array = mp.empty((1000, 1000), "f4")
    assert mp.find(array) is not None and mp.find(numpy.zeros(10)) is None
    array[...] = 1
    queue.put(array)
    received = queue.get()
    assert mp.find(received).id == mp.find(array).id
    with pytest.raises(ValueError, match="handed over before"):
        queue.put(array)
    received += 1
    assert received.sum() == 2_000_000
    queue.put(array[:10])  # a part is a copy
    assert queue.get().shape == (10, 1000)


def test_an_array_that_was_not_sent_is_its_makers_again(fork):
    queue = fork.Queue()
    array = mp.empty(100000)
    with pytest.raises(RuntimeError):
        queue.put([array, children.NotPicklable()])
    queue.put(array)
    assert queue.get().shape == (100000,)


def test_empty_refuses_what_it_cannot_make(broker):
    with pytest.raises(TypeError, match="Python objects"):
        mp.empty(3, object)
    with pytest.raises(ValueError, match="negative"):
        mp.empty(-1)
    for shape in (1.5, "12", None, (2, 1.5)):
        with pytest.raises(TypeError, match="shape is an int or a tuple of ints, not"):
            mp.empty(shape)
    with pytest.raises(shmbroker.OutOfShared) as caught:
        mp.empty(1 << 44, "u1")
    assert isinstance(caught.value, MemoryError)


def test_a_limit_is_out_of_shared_in_the_caller(python):
    python("""
import numpy, os, shmbroker
from shmbroker import _core, mp
session = _core.connect(no_group=True)
group = session.create_group("small", limit_bytes=64 << 20)
os.environ["SHMBROKER_GROUP"] = _core.group_variable("small", group.token)
queue = mp.Queue()
held = []
try:
    for _ in range(100):
        queue.put(numpy.zeros(4 << 20, "u1"))
except shmbroker.OutOfShared as error:
    assert isinstance(error, MemoryError), error
    print("refused:", error)
else:
    raise SystemExit("no limit was met")
count = queue.qsize()
assert count > 3
for _ in range(count):
    assert queue.get().nbytes == 4 << 20
queue.put(numpy.ones(4 << 20, "u1"))
assert queue.get().sum() == 4 << 20
""")


def test_sixty_four_processes_share_a_queue_and_the_next_is_refused_by_a_sentence(python):
    out = python("""
import os, sys, shmbroker
from shmbroker import mp
queue, go = mp.Queue(), os.pipe()
os.set_inheritable(go[0], True)
pids = []
for number in range(63):
    pid = os.fork()
    if pid == 0:
        queue.put(number)
        os.close(go[1])
        os.read(go[0], 1)
        os._exit(0)
    pids.append(pid)
got = {queue.get(timeout=60) for _ in range(63)}
assert got == set(range(63))
pid = os.fork()
if pid == 0:
    try:
        queue.put(64)
    except shmbroker.OutOfShared as error:
        print("refused:", error, flush=True)
        os._exit(5)
    os._exit(6)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
os.close(go[1])
for pid in pids:
    os.waitpid(pid, 0)
""", timeout=120)
    assert "64" in out and "refused" in out


@pytest.mark.parametrize("what", ["get_interrupted", "fill_interrupted"])
def test_an_interrupt_ends_a_get_and_a_put(ctx, what):
    queue, told = ctx.Queue(2), ctx.SimpleQueue()
    child = ctx.Process(target=getattr(children, what), args=(queue, told))
    child.start()
    assert told.get() == "ready"
    for _ in range(2 if what == "get_interrupted" else 1):
        time.sleep(0.3)
        os.kill(child.pid, signal.SIGINT)
        assert told.get() == "interrupted"
    assert ended(child) and child.exitcode == 0
    if what == "fill_interrupted":
        assert queue.qsize() == 2


def test_childrens_own_queues_are_in_the_group_of_their_parent(ctx):
    told = ctx.Queue()
    child = ctx.Process(target=children.make_queue, args=(told,))
    child.start()
    from shmbroker.mp import place
    assert told.get(timeout=30) == place.address()
    assert ended(child)


def test_a_queue_goes_to_children_only_by_inheritance(fork):
    queue = fork.Queue()
    with pytest.raises(RuntimeError, match="inheritance"):
        queue.put(fork.Queue())
    assert queue.empty()


def test_five_thousand_arrays_live_under_a_limit_of_descriptors(python):
    python("""
import numpy, resource
from shmbroker import mp
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
queue = mp.Queue()
held = []
for number in range(5000):
    queue.put(numpy.full(600, number))
    held.append(queue.get())
assert all(array[0] == number for number, array in enumerate(held))
""")
