# SPDX-License-Identifier: Apache-2.0
"""Pools, slots, queues and messages as Python objects: parts without a copy, references that keep what they use, waits
that others and event loops can end, and a clear error for what does not fit."""
import asyncio
import errno
import gc
import threading
import weakref

import numpy
import pytest
import shmbroker


@pytest.fixture
def pool(session):
    with session.create_pool([(4096, 8), (65536, 4)]) as it:
        yield it


@pytest.fixture
def queue(pool):
    with pool.queue("q", kind="mpmc") as it:
        yield it


def test_a_drain_at_its_deadline_counts_what_was_not_taken(session):
    queue = session.queue("counted", kind="mpmc")
    for said in "1 message was not", "2 messages were not":
        queue.send(b"x")
        with pytest.raises(TimeoutError, match=f"^{said} taken before the deadline"):
            queue.drain(0.01)


def test_a_region_of_another_session_is_sent_once_it_is_attached_here(session):
    other = shmbroker.connect(group="")
    region = other.create(4096, many_writers=True)
    queue = session.queue("regions", kind="mpmc")
    with pytest.raises(shmbroker.Invalid, match="attach it in the queue's own session first, by its id, and send that"):
        queue.send(region)
    queue.send(session.attach(region.id))
    assert queue.receive().parts[0].region == region.id


def test_bytes_of_any_length_arrive(queue):
    for length in (0, 1, 56, 57, 4096, 65536, 1 << 20):
        queue.send(bytes([length % 251]) * length)
        message = queue.receive()
        assert bytes(message) == bytes([length % 251]) * length, length
        queue.send(bytearray(length))
        assert queue.receive_bytes() == bytes(length)
    queue.send(numpy.arange(10, dtype="int64"))
    assert numpy.frombuffer(queue.receive(), dtype="int64").tolist() == list(range(10))
    assert queue.info().in_regions == 2  # the longest ones, which no slot can hold


def test_a_message_has_parts_of_all_kinds(session, pool, queue):
    slot = pool.acquire(1000)
    numpy.asarray(slot)[:] = 5
    region = session.create(8192)
    numpy.asarray(region)[:] = 6
    gc.collect()
    queue.send([b"head", slot, region, shmbroker.Part(region, 4096, 100), shmbroker.Part(b"abcdef", 2, 3)], type=77)
    with queue.receive() as message:
        assert message.type == 77 and len(message) == 5
        assert [(part.kind, part.nbytes) for part in message.parts] == [
            ("bytes", 4), ("slot", 1000), ("region", 8192), ("region", 100), ("bytes", 3)]
        assert message.parts[3].same_as == 2 and message.parts[2].region == region.id
        assert bytes(message.parts[4]) == b"cde" and set(bytes(message.parts[1])) == {5}
        assert message.tobytes() == b"head" + bytes([5]) * 1000 + bytes([6]) * 8292 + b"cde"
        assert all(memoryview(part).readonly for part in message.parts)


def test_a_slot_is_writable_until_it_is_sent(pool, queue):
    slot = pool.acquire(10)
    assert slot.nbytes == len(slot) == 10 and slot.capacity == 4096 and not slot.readonly
    memoryview(slot)[:] = b"0123456789"
    queue.send(slot)
    assert slot.readonly and memoryview(slot).readonly
    assert bytes(queue.receive()) == b"0123456789"


def test_a_slot_taken_out_outlives_message_queue_pool_and_session(broker):
    session = shmbroker.connect(group="")
    pool = session.create_pool([(4096, 4)])
    queue = pool.queue("q", kind="mpmc")
    with pool.acquire(4096) as slot:
        numpy.asarray(slot)[:] = 9
        gc.collect()
        queue.send(slot)
    taken = queue.receive().take()
    array = numpy.asarray(taken)
    queue.close()
    pool.close()
    session.close()
    del queue, pool, session, taken, slot
    gc.collect()
    assert int(array.sum()) == 9 * 4096


def test_a_region_taken_out_has_the_rights_that_its_sender_gave(session, queue):
    region = session.create(4096)
    queue.send([shmbroker.Part(region, write=True), b"x"])
    message = queue.receive()
    taken = message.take(0)
    memoryview(taken)[0] = 8
    assert memoryview(region)[0] == 8 and taken.id == region.id and taken.session is session
    with pytest.raises(BufferError, match="taken out"):
        memoryview(message.parts[0])
    with pytest.raises(ValueError, match="is bytes"):
        message.take(1)
    with pytest.raises(ValueError):
        message.take(2)


def test_a_slot_that_was_handed_over_may_be_written(pool, queue):
    slot = pool.acquire(100)
    view = memoryview(slot)
    with pytest.raises(BufferError, match="move=True"):
        queue.send(slot, move=True)
    with pytest.raises(shmbroker.Empty):
        queue.receive(timeout=0)
    view[:4] = b"mine"
    view.release()
    queue.send(slot, move=True)
    assert slot.closed
    taken = queue.receive().take(writable=True)
    memoryview(taken)[:5] = b"yours"
    assert bytes(taken)[:5] == b"yours"
    part = pool.acquire(4096)
    queue.send([b"head", shmbroker.Part(part, 10, 20, write=True)])
    part.release()
    memoryview(queue.receive().take(1, writable=True))[:] = bytes(20)
    broadcast = pool.queue("all", kind="broadcast")
    broadcast.send(pool.acquire(10), move=True)
    with pytest.raises(PermissionError, match="other readers"):
        broadcast.receive().take(writable=True)
    broadcast.close()


def test_a_slot_that_its_sender_may_still_use_is_not_written(pool, queue):
    slot = pool.acquire(100)
    for given in slot, [b"head", slot]:
        queue.send(given)
        message = queue.receive()
        with pytest.raises(PermissionError, match="may still use it"):
            message.take(len(message) - 1, writable=True)
        with pytest.raises(TypeError, match="read-only"):
            memoryview(message.take(len(message) - 1))[0] = 1
    queue.send(b"a" * 1000)  # in a slot of the library
    with pytest.raises(PermissionError, match="may still use it"):
        queue.receive().take(writable=True)


def test_a_pool_that_was_opened_for_reading_gives_no_slot_to_write(broker):
    with shmbroker.connect(group="one") as writer, shmbroker.connect(group="one") as reader:
        pool = writer.create_pool([(4096, 2)])
        there = pool.queue("q", kind="mpmc", role="writer")
        here = reader.open_pool(pool.id, read_only=True).queue("q", kind="mpmc", role="reader")
        there.send(pool.acquire(100), move=True)
        message = here.receive()
        with pytest.raises(PermissionError, match="reading alone"):
            message.take(writable=True)
        assert message.take().readonly


def test_slots_come_back_when_nothing_uses_them(pool, queue):
    for _ in range(100):
        slot = pool.acquire(60000)
        queue.send(slot, move=True)
        array = numpy.frombuffer(queue.receive(), dtype="uint8")
        assert array.nbytes == 60000
        del slot, array
    held = [pool.acquire(60000) for _ in range(4)]
    with pytest.raises(shmbroker.Full):
        pool.acquire(60000, timeout=0)
    with pytest.raises(TimeoutError):
        pool.acquire(60000, timeout=0.01)
    threading.Timer(0.05, held.pop().release).start()
    assert pool.acquire(60000, timeout=30).nbytes == 60000


def test_a_slot_and_a_message_are_not_ended_under_live_buffers(pool, queue):
    slot = pool.acquire(10)
    view = memoryview(slot)
    with pytest.raises(BufferError):
        slot.release()
    view.release()
    slot.release()
    for attempt in (lambda: memoryview(slot), lambda: queue.send(slot), lambda: queue.send([slot])):
        with pytest.raises(shmbroker.Closed, match="slot"):
            attempt()
    queue.send(b"x" * 3000)
    message = queue.receive()
    part = memoryview(message.parts[0])
    with pytest.raises(BufferError):
        message.done()
    del message
    gc.collect()
    assert bytes(part) == b"x" * 3000  # the buffer keeps the message
    part.release()


def test_a_done_message_refuses_everything(queue):
    queue.send(b"x")
    message = queue.receive()
    parts = message.parts
    message.done()
    message.done()
    for attempt in (lambda: bytes(message), lambda: message.parts, lambda: message.type, lambda: memoryview(parts[0]),
                    message.take, message.give_back, lambda: len(message)):
        with pytest.raises(shmbroker.Closed, match="done"):
            attempt()


def test_find_gives_the_slot_of_an_array(session, pool):
    slot, other = pool.acquire(4096), pool.acquire(4096)
    array = numpy.asarray(slot)
    assert pool.find(array[10:]) is slot and shmbroker.find(array) is slot
    assert pool.find(memoryview(other)) is other
    assert pool.find(numpy.zeros(10)) is None
    second = session.create_pool([(4096, 1)])
    assert second.find(array) is None
    gone = weakref.ref(slot)
    del slot
    assert gone() is not None
    del array
    gc.collect()
    assert gone() is None


def test_empty_full_and_late_are_exceptions_of_the_standard_library(pool):
    import queue as standard
    small = pool.queue("small", kind="mpmc", cells=2)
    with pytest.raises(standard.Empty):
        small.get_nowait()
    with pytest.raises(TimeoutError):
        small.receive(timeout=0.01)
    small.send(b"1")
    small.send(b"2")
    with pytest.raises(standard.Full):
        small.send(b"3", timeout=0)
    with pytest.raises(standard.Full):
        small.send([b"3"], 0)
    with pytest.raises(TimeoutError):
        small.send(b"3", 0.01)
    assert [bytes(one) for one in small.receive_many(10)] == [b"1", b"2"]
    small.close()


def test_a_send_waits_for_room_and_a_receive_for_a_message(pool):
    narrow = pool.queue("narrow", kind="mpmc", cells=2)
    got = []

    def read():
        for _ in range(1000):
            got.append(narrow.receive_bytes())

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(1000):
        narrow.send(number.to_bytes(8, "little"), 30)
    reader.join()
    assert got == [number.to_bytes(8, "little") for number in range(1000)]
    narrow.close()


def test_many_messages_in_one_call(queue):
    assert queue.send_many([b"a", [b"b", b"c"], bytearray(b"d")], type=4) == 3
    messages = queue.receive_many(100)
    assert [one.tobytes() for one in messages] == [b"a", b"bc", b"d"] and messages[1].type == 4


def test_a_small_message_is_bytes_at_once_and_any_other_one_a_message(session, pool, queue):
    region = session.create(100)
    for small in [b"", b"a" * 56, b"b" * 57, b"c" * 8192] * 20:  # more often than there are slots
        queue.send(small)
        assert queue.receive_small() == small
    for given in [[b"a", b"b"], b"d" * 8193, region]:
        queue.send(given)
        with queue.receive_small() as message:
            assert isinstance(message, shmbroker.Message)
    queue.send(b"e", type=3)
    assert queue.receive_small().type == 3
    with pytest.raises(shmbroker.Empty):
        queue.receive_small(0)
    again = pool.queue("again", kind="mpmc", at_least_once=True)
    again.send(b"f")
    assert queue.info().depth == 0 and bytes(again.receive_small()) == b"f"  # not done: another one may get it yet


def test_a_batch_may_wait_for_room_for_its_first_message_alone(pool):
    line = pool.queue("line", kind="mpmc", cells=4)
    five = [b"%d" % number for number in range(5)]
    assert line.send_many(five, 0, wait_for_all=False) == 4
    with pytest.raises(shmbroker.Full):
        line.send_many(five[4:], 0, wait_for_all=False)
    with pytest.raises(shmbroker.Timeout):
        line.send_many(five[4:], 0.01, wait_for_all=False)
    taker = threading.Timer(0.05, lambda: [line.receive_bytes() for _ in range(2)])
    taker.start()
    assert line.send_many(five[4:], 30, wait_for_all=False) == 1
    taker.join()
    assert [line.receive_bytes() for _ in range(3)] == [b"2", b"3", b"4"]
    assert line.send_many([], 0, wait_for_all=False) == 0


def test_a_second_thread_is_refused_where_only_one_may_receive(pool):
    line = pool.queue("line", kind="spsc")
    started = threading.Event()

    def wait():
        started.set()
        line.receive(30)

    waiter = threading.Thread(target=wait)
    waiter.start()
    started.wait()
    with pytest.raises(shmbroker.Busy, match="another thread"):
        while True:  # until the other one is in its call
            try:
                line.receive(0)
            except shmbroker.Empty:
                pass
    line.send(b"x")
    waiter.join()
    line.close()


def test_a_shut_queue_gives_what_is_left_and_then_says_closed(pool):
    ending = pool.queue("ending", kind="mpmc")
    ending.send(b"last")
    ending.shutdown()
    with pytest.raises(shmbroker.Closed):
        ending.send(b"more")
    assert bytes(ending.receive()) == b"last"
    with pytest.raises(shmbroker.Closed):
        ending.receive()
    ending.close()
    with pytest.raises(shmbroker.Closed, match="the queue was closed"):
        ending.send(b"x")
    with pytest.raises(shmbroker.Closed, match="the queue was closed"):
        ending.info()


def test_a_close_for_everybody_ends_the_wait_of_another_thread(pool):
    queue = pool.queue("waited-for", kind="mpmc")
    ended = []

    def wait():
        try:
            queue.receive(None)
        except shmbroker.Closed as closed:
            ended.append(closed)

    waiter = threading.Thread(target=wait)
    waiter.start()
    queue.close(everybody=True)
    waiter.join(30)
    assert len(ended) == 1


def test_a_reader_that_only_sends_keeps_no_lane_of_a_writer_that_has_gone(broker):
    def opened(session, role):
        return session.open_pool(pool.id).queue("q", kind="mpmc", role=role)

    with shmbroker.connect(group="lanes") as first, shmbroker.connect(group="lanes") as second:
        pool = first.create_pool([(4096, 4)], lanes=3)
        sends = pool.queue("q", kind="mpmc", role="both")
        takes = opened(second, "reader")
        for number in range(6):  # each needs a lane
            with shmbroker.connect(group="lanes") as third:
                opened(third, "writer").send(b"%d" % number)
            assert takes.receive_bytes() == b"%d" % number
            with pytest.raises((shmbroker.Empty, shmbroker.PeerGone)):
                takes.receive_bytes(0)
            sends.send(b"own")
            assert takes.receive_bytes() == b"own"


def test_at_least_once_gives_an_undone_message_again(pool):
    queue = pool.queue("work", kind="mpmc", at_least_once=True)
    queue.send(b"job")
    message = queue.receive()
    with pytest.raises(shmbroker.Busy):
        queue.receive(0)
    message.give_back()
    message = queue.receive()
    view = memoryview(message)
    with pytest.raises(BufferError):
        queue.close()
    view.release()
    queue.close()
    assert message.closed
    again = pool.queue("work", kind="mpmc", at_least_once=True)
    assert bytes(again.receive()) == b"job"
    again.close()


def test_messages_expire(pool):
    queue = pool.queue("short", kind="mpmc", expiring=True)
    queue.send(b"old", lifetime=1e-9)
    queue.send(b"new")
    assert bytes(queue.receive()) == b"new" and queue.info().expired == 1
    queue.close()


def test_a_queue_of_its_own_needs_no_pool(session):
    with session.queue("alone", kind="broadcast") as queue:
        assert queue.pool is None and queue.kind == "broadcast" and queue.role == "both" and queue.name == "alone"
        region = session.create(4096)
        queue.send([b"x", region])
        taken = queue.receive().take(1)
        assert taken.id == region.id


def test_asyncio_receives_without_a_thread(pool):
    queue = pool.queue("async", kind="mpmc")
    threads = threading.active_count()

    async def consume(count):
        return [bytes(await queue.receive_async(timeout=30)) for _ in range(count)]

    async def main():
        consumers = [asyncio.create_task(consume(50)) for _ in range(4)]
        for number in range(200):
            queue.send(number.to_bytes(2, "little"))
            if number % 7 == 0:
                await asyncio.sleep(0)
        got = [one for part in await asyncio.gather(*consumers) for one in part]
        with pytest.raises(TimeoutError):
            await queue.receive_async(timeout=0.01)
        queue.send(b"a")
        queue.send(b"b")
        queue.shutdown()
        assert [bytes(message) async for message in queue] == [b"a", b"b"]
        return got

    got = asyncio.run(main())
    assert sorted(got) == sorted(number.to_bytes(2, "little") for number in range(200))
    assert threading.active_count() == threads
    queue.close()


def test_the_death_of_a_writer_is_told_after_its_messages(python, session):
    name = "of-the-dead"
    group = session.create_group("dying")
    session.join(group)
    reader = session.queue(name, kind="mpmc", role="reader")
    python("""
import os, shmbroker
queue = shmbroker.connect().queue("of-the-dead", kind="mpmc", role="writer")
queue.send(b"last words")
os.kill(os.getpid(), 9)
""", status=-9, SHMBROKER_GROUP=shmbroker.group_variable("dying", group.token))
    assert bytes(reader.receive(30)) == b"last words"
    with pytest.raises(shmbroker.PeerGone) as gone:
        reader.receive(30)
    assert gone.value.errno == errno.EOWNERDEAD
    reader.close()


@pytest.mark.parametrize("call,expected", [
    (lambda p, q: q.send("text"), TypeError), (lambda p, q: q.send(7), TypeError), (lambda p, q: q.send([]), ValueError),
    (lambda p, q: q.send(), TypeError), (lambda p, q: q.send(b"x", timeout=-1), ValueError),
    (lambda p, q: q.send([b"x"], type=-1), ValueError), (lambda p, q: q.send(numpy.zeros((4, 4)).T[1:]), (BufferError, ValueError)),
    (lambda p, q: q.receive(-1), ValueError), (lambda p, q: q.receive_many(0), ValueError),
    (lambda p, q: p.acquire(1 << 40), ValueError), (lambda p, q: p.acquire(-1), ValueError),
    (lambda p, q: p.acquire("x"), TypeError), (lambda p, q: p.queue("q2", kind="pipe"), ValueError),
    (lambda p, q: p.queue("q2", kind="mpmc", cells=3), ValueError), (lambda p, q: p.queue(""), ValueError),
    (lambda p, q: p.queue("q2", role="owner"), ValueError), (lambda p, q: p.find(7), TypeError),
    (lambda p, q: shmbroker.Part(b"abc", 4).__class__ and q.send(shmbroker.Part(b"abc", 4)), ValueError),
    (lambda p, q: q.send(shmbroker.Part(b"abc", 0, 4)), ValueError), (lambda p, q: shmbroker.Part(b"", -1), ValueError)])
def test_what_cannot_be_sent_or_taken_is_refused(pool, queue, call, expected):
    with pytest.raises(expected):
        call(pool, queue)
    with pytest.raises(shmbroker.Empty):
        queue.get_nowait()


def test_a_refusal_names_things_of_python(pool, session):
    with pytest.raises(shmbroker.Invalid, match="Session.create and send that"):
        pool.acquire(1 << 40)
    with session.create_pool(queues=2) as without_slots, pytest.raises(shmbroker.Invalid, match="Session.create"):
        without_slots.acquire(1)


def test_a_slot_of_another_pool_is_refused(session, queue):
    other = session.create_pool([(4096, 1)])
    with pytest.raises(shmbroker.Invalid, match="another pool"):
        queue.send(other.acquire(1))


def test_a_pool_is_opened_by_name_and_by_id(session):
    made = session.create_pool([(4096, 2, 4)], name="opened")
    assert session.open_pool("opened").id == made.id == session.open_pool(made.id).id
    reader = shmbroker.connect(group="")
    with pytest.raises(shmbroker.NotFound):
        reader.open_pool("opened")
    assert made.info().slots_limit == 4 and made.info().classes[0].slots == 2
    made.remove()
    with pytest.raises(shmbroker.NotFound):
        session.open_pool("opened")
    made.close()
    made.close()
    with pytest.raises(shmbroker.Closed):
        made.acquire(1)
