# SPDX-License-Identifier: Apache-2.0
"""Regions as Python objects: buffers without a copy, counted, closed in any order, and refused with a clear error."""
import ctypes
import gc
import os
import pickle
import threading
import weakref

import numpy
import pytest
import shmbroker


def test_a_region_is_a_buffer_without_a_copy(session):
    with session.create(1 << 16, name="frames") as region:
        array = numpy.asarray(region)
        assert array.nbytes == len(region) == region.size == 1 << 16
        assert array.ctypes.data == region.address
        array[7] = 42
        assert memoryview(region)[7] == 42
        assert numpy.frombuffer(region, dtype="float64").shape == (8192,)
        del array
        gc.collect()


def test_a_region_without_bytes_is_a_buffer(session):
    region = session.create(0)
    assert bytes(region) == b"" and region.size == 0


def test_a_region_is_not_closed_under_a_live_buffer(session):
    region = session.create(4096)
    view = memoryview(region)
    with pytest.raises(BufferError, match="1 buffers of it are in use"):
        region.close()
    with pytest.raises(BufferError):
        region.publish()
    view[0] = 1
    view.release()
    region.close()
    region.close()
    assert region.closed


def test_a_closed_region_refuses_everything(session):
    region = session.create(4096)
    region.close()
    for attempt in (lambda: memoryview(region), lambda: len(region), lambda: region.id, region.info, region.stat,
                    region.publish, region.ticket, region.descriptor, region.populate, region.__enter__):
        with pytest.raises(shmbroker.Closed, match="the region was closed"):
            attempt()


def test_numpy_makes_no_array_of_a_closed_handle(session):
    pool = session.create_pool([(4096, 2)])
    queue = pool.queue("q", kind="mpmc")
    region, slot = session.create(4096), pool.acquire(10)
    assert numpy.asarray(region, "u2").shape == (4096,)
    queue.send(slot)
    message = queue.receive()
    part = message.parts[0]
    region.close(), slot.release(), message.done()
    for closed in region, slot, message, part:
        with pytest.raises(shmbroker.Closed):
            numpy.asarray(closed)
        with pytest.raises(shmbroker.Closed):
            numpy.array(closed, dtype="u1", copy=True)


def test_a_closed_session_refuses_everything_and_its_regions_go_on(broker):
    session = shmbroker.connect(group="")
    region = session.create(4096, name="goes-on")
    session.close()
    session.close()
    memoryview(region)[0] = 5
    assert region.stat().name == "goes-on"
    assert region.session is session
    for attempt in (lambda: session.create(1), lambda: session.attach("x"), session.info, session.ping,
                    session.create_pool, lambda: session.queue("q"), session.next_event, session.fileno):
        with pytest.raises(shmbroker.Closed, match="the session was closed"):
            attempt()


def test_a_read_only_region_stays_read_only(session):
    writer = session.create(4096, name="read-only")
    memoryview(writer)[:5] = b"hello"
    reader = session.attach("read-only")
    assert reader.readonly and memoryview(reader).readonly
    with pytest.raises(TypeError):
        memoryview(reader)[0] = 1
    array = numpy.asarray(reader)
    with pytest.raises(ValueError):
        array[0] = 1
    with pytest.raises(ValueError):
        array.flags.writeable = True
    with pytest.raises(shmbroker.WriteClosed) as refused:
        session.attach("read-only", write=True)
    assert isinstance(refused.value, PermissionError)


def test_publish_ends_writing(session):
    region = session.create(4096, name="published")
    memoryview(region)[:2] = b"ab"
    region.publish()
    assert region.readonly and bytes(region)[:2] == b"ab"
    assert region.info().state == "published"
    with pytest.raises(TypeError):
        memoryview(region)[0] = 1


def test_a_region_is_attached_by_name_identity_and_ticket(session):
    region = session.create(4096, name="three-ways", many_writers=True)
    assert session.attach("three-ways", write=True).id == region.id
    assert session.open("three-ways").id == region.id
    assert session.attach(pickle.loads(pickle.dumps(region.id))).id == region.id
    ticket = region.ticket(write=True)
    assert len(ticket) == 16 and shmbroker.Ticket(str(ticket)) == ticket and pickle.loads(pickle.dumps(ticket)) == ticket
    other = shmbroker.connect(group="")
    with pytest.raises(shmbroker.NotFound):
        other.attach("three-ways")
    theirs = other.attach(ticket, write=True)
    memoryview(theirs)[0] = 9
    assert memoryview(region)[0] == 9
    with pytest.raises(shmbroker.NotFound):
        other.attach(ticket)  # it had one use
    lent = region.lend(uses=2)
    session.revoke(lent)
    with pytest.raises(shmbroker.NotFound):
        other.attach(lent)


def test_an_attach_waits_for_a_name(session):
    first = session.create(4096)  # a session has a group to look in once it has made something
    threading.Timer(0.05, lambda: session.create(4096, name="late", many_writers=True)).start()
    assert session.attach("late", wait=30).name == "late"
    with pytest.raises(TimeoutError):
        session.attach("never", wait=0.01)
    assert first.size == 4096


def test_many_regions_are_made_and_attached_at_once(session):
    regions = session.create_many([4096] * 300, many_writers=True)
    again = session.attach_many([region.id for region in regions], write=True)
    assert [one.id for one in again] == [one.id for one in regions]
    mixed = session.attach_many([regions[0].id, "nothing-there"], return_errors=True)
    assert mixed[0].id == regions[0].id and isinstance(mixed[1], shmbroker.NotFound)
    assert "nothing-there" in str(mixed[1])
    with pytest.raises(shmbroker.NotFound):
        session.attach_many([regions[0].id, "nothing-there"])


def test_a_name_is_taken_once(session):
    first = session.create(4096, name="taken")
    with pytest.raises(shmbroker.Exists) as refused:
        session.create(4096, name="taken")
    assert isinstance(refused.value, FileExistsError) and "taken" in str(refused.value)
    session.unname("taken")
    with pytest.raises(shmbroker.NotFound):
        session.attach("taken")
    assert first.size == 4096
    with session.create(4096, name="with-its-name") as region:
        region.close(unname=True)
    with pytest.raises(shmbroker.NotFound):
        session.attach("with-its-name")


@pytest.mark.parametrize("size", [-1, 1 << 47, 1 << 63, 1 << 64, 1 << 100])
def test_a_size_that_cannot_be_is_refused(session, size):
    with pytest.raises(ValueError) as refused:
        session.create(size)
    assert isinstance(refused.value, shmbroker.Invalid)
    with pytest.raises(ValueError):
        session.create_many([4096, size])


def test_a_size_over_the_limit_is_out_of_shared_memory_with_its_numbers(session):
    with pytest.raises(shmbroker.OutOfShared) as refused:
        session.create(1 << 46)
    error = refused.value
    assert isinstance(error, MemoryError) and error.asked == 1 << 46 and error.limit > 0
    assert error.slot == "bytes" and error.scope in ("group", "uid", "host") and error.status == "limit"
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) and str(again) == str(error) and again.limit == error.limit


@pytest.mark.parametrize("call", [
    lambda s: s.create("a lot"), lambda s: s.create(1.5), lambda s: s.create(), lambda s: s.create(1, 2),
    lambda s: s.create(1, nome="x"), lambda s: s.create(1, name=7), lambda s: s.attach(7), lambda s: s.attach(None),
    lambda s: s.create(1, timeout="soon"), lambda s: s.attach("x", where="y"), lambda s: s.watch(region="x")])
def test_an_argument_of_the_wrong_type_is_a_type_error(session, call):
    with pytest.raises(TypeError):
        call(session)


@pytest.mark.parametrize("call", [
    lambda s: s.create(1, timeout=None), lambda s: s.create(1, timeout=0), lambda s: s.create(1, timeout=-1),
    lambda s: s.create(1, timeout=float("nan")), lambda s: s.create(1, name="a/b"), lambda s: s.create(1, name="a\0b"),
    lambda s: s.create(1, name=""), lambda s: s.create(1, keep="forever"), lambda s: s.create(1, keep=-1),
    lambda s: s.attach(b"short"), lambda s: s.create(1, numa=5000), lambda s: s.create(1, numa=-1),
    lambda s: s.create(1, numa=0, populate=False),
    lambda s: s.watch(), lambda s: s.watch(name="x", group=1), lambda s: s.join(7)])
def test_a_value_out_of_range_is_a_value_error(session, call):
    with pytest.raises(ValueError) as refused:
        call(session)
    assert isinstance(refused.value, shmbroker.Invalid) and str(refused.value)


BAD = ("x", b"", [], object(), float("nan"), -1, 5, 1.5, None)


@pytest.mark.parametrize("function, arguments", [
    ("create", "size name group keep numa huge timeout"), ("create_many", "sizes group numa timeout"),
    ("attach", "where wait timeout"), ("attach_many", "wheres timeout"), ("gpu_import", "where"), ("adopt", "fd"),
    ("stat", "where"), ("unname", "address"), ("revoke", "ticket"), ("join", "group"), ("leave", "group"),
    ("end_group", "group"), ("create_group", "name limit_bytes limit_regions keep timeout"), ("unwatch", "watch"),
    ("watch", "region name group reclaim events timeout"), ("open_pool", "where wait"), ("queue", "name kind role cells"),
    ("create_pool", "classes name group keep lanes queues lane_bytes timeout"), ("next_event", "timeout")])
def test_no_argument_of_a_session_ends_in_a_sentence_about_python(broker, function, arguments):
    session = shmbroker.connect(group="")
    required = {"create": {"size": 1}, "create_many": {"sizes": [1]}, "attach": {"where": "x"},
                "attach_many": {"wheres": ["x"]}, "queue": {"name": "q", "kind": "mpmc"}, "open_pool": {"where": "p"}}
    for argument in arguments.split():
        for value in BAD[:6] if argument in ("wait", "timeout") else BAD:  # the rest of them are waits
            try:
                getattr(session, function)(**{**required.get(function, {}), argument: value})
            except TypeError as error:
                # It says what the argument is, and what it is not.
                assert f" is a" in str(error) and f", not '{type(value).__name__}'" in str(error), (argument, value, error)
            except (ValueError, shmbroker.Error) as error:
                assert str(error)


def test_what_is_no_buffer_and_what_is_no_list_is_named(session):
    pool = session.create_pool([(4096, 1)])
    queue = pool.queue("q", kind="mpmc")
    for call, sentence in ((lambda: queue.send("x"), "a part of a message is a Slot, a Region, a Part, or a buffer"),
                           (lambda: queue.send_many("x"), "messages is a list or tuple"),
                           (lambda: pool.acquire("x"), "nbytes is an int, not 'str'"),
                           (lambda: session.create_pool([5]), "a size class is .slot_size, slots."),
                           (lambda: session.create_many(b"x"), "sizes is a list or tuple of sizes, not 'bytes'"),
                           (lambda: shmbroker.find(5), "buffer is a buffer such as a memoryview"),
                           (lambda: shmbroker.Ticket(5), "a ticket is made of its 16 bytes")):
        with pytest.raises(TypeError, match=sentence):
            call()


def test_the_text_of_a_ticket_is_no_name_and_the_refusal_says_so(session):
    ticket = session.create(4096).ticket()
    for attach in (lambda: session.attach(str(ticket)), lambda: session.attach_many([str(ticket)])):
        with pytest.raises(shmbroker.NotFound, match=r"if it is the text of a ticket, give shmbroker.Ticket\(text\)"):
            attach()
    assert session.attach(shmbroker.Ticket(str(ticket))).size == 4096


def test_a_keep_is_refused_in_the_words_of_python(session):
    for keep in (8 * 86400, float("inf")):
        with pytest.raises(shmbroker.OutOfShared, match='at most 7d; give keep="released", or raise limits.keep_max'):
            session.create(1, name="too-long", keep=keep)
    for keep in (1, "released"):
        with pytest.raises(shmbroker.Invalid, match="keep needs a name"):
            session.create(1, keep=keep)
        with pytest.raises(shmbroker.Invalid, match="keep needs a name"):
            session.create_pool([(4096, 1)], keep=keep)
    session.create(1, keep=0).close()


def test_a_handle_cannot_be_pickled_and_the_refusal_says_what_can(session):
    region = session.create(4096, name="of-this-process")
    pool = session.create_pool([(4096, 1)])
    queue = pool.queue("q", kind="mpmc")
    queue.send(b"x")
    message = queue.receive()
    for handle, way in ((region, "send region.ticket"), (pool.acquire(10), r"pool.queue\(name\).send\(slot\)"),
                        (pool, "session.open_pool"), (queue, "session.queue"), (session, "shmbroker.connect"),
                        (message, "message.tobytes"), (message.parts[0], "bytes.part")):
        for protocol in (2, 5):
            with pytest.raises(TypeError, match=f"cannot pickle a {type(handle).__name__} of shmbroker: .*{way}"):
                pickle.dumps(handle, protocol)
    ticket = pickle.loads(pickle.dumps(region.ticket()))
    assert session.attach(ticket).id == region.id


def test_a_foreign_ticket_finds_nothing(session):
    with pytest.raises(shmbroker.NotFound):
        session.attach(shmbroker.Ticket("ab" * 16))
    with pytest.raises(ValueError):
        shmbroker.Ticket("xyz")


def test_memory_comes_from_the_node_that_is_asked_for(session):
    region = session.create(1 << 20, numa=0)
    memoryview(region)[0] = 1
    with open("/proc/self/numa_maps", encoding="ascii") as maps:
        line = next(line for line in maps if line.startswith(f"{region.address:x} "))
    assert "bind:0" in line


def test_small_pages_where_huge_ones_are_not_wanted_and_a_refusal_where_they_cannot_be(session):
    assert session.create(4 << 20, huge=False).info().pages == "small"
    with pytest.raises(shmbroker.Unsupported, match="huge=True"):
        session.create(4096, huge=True)


def test_more_than_the_hosts_reserve_of_hugetlb_pages_is_refused_in_words(session):
    with open("/proc/meminfo", encoding="ascii") as facts:
        free = next((int(line.split()[1]) for line in facts if line.startswith("HugePages_Free")), 0)
    with pytest.raises((shmbroker.NoMemory, shmbroker.Unsupported), match="hugetlb"):
        session.create((free + 1) * (2 << 20), hugetlb=True)
    with pytest.raises(shmbroker.Invalid, match="hugetlb"):
        session.create(0, hugetlb=True)


def test_a_descriptor_is_the_callers(session):
    region = session.create(4096)
    memoryview(region)[:2] = b"hi"
    fd = region.descriptor()
    try:
        assert os.pread(fd, 2, 0) == b"hi" and not os.get_inheritable(fd)
    finally:
        os.close(fd)


def test_regions_outlive_the_limit_of_descriptors(python):
    python("""
import resource, shmbroker
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
session = shmbroker.connect(group="")
regions = [session.create(4096) for _ in range(5000)]
for number, region in enumerate(regions):
    memoryview(region)[:4] = number.to_bytes(4, "little")
assert all(int.from_bytes(memoryview(region)[:4], "little") == number for number, region in enumerate(regions))
""")


def test_a_full_table_of_the_broker_says_whose_it_is_and_how_to_get_a_larger_one(private, python):
    python("""
import resource, shmbroker
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
session = shmbroker.connect(group="")
pid = shmbroker.status().pid
regions = []
try:
    while True: regions.append(session.create(4096))
except shmbroker.NoDescriptors as error:
    assert isinstance(error, OSError) and 50 < error.limit <= 200 and error.used == error.limit and error.asked == 1
    for word in (f"used {error.used} of {error.limit}", f"end pid {pid}", "ulimit -Hn"):
        assert word in str(error), error
regions.pop()
session.create(4096)
""")


def test_a_full_table_of_this_process_says_whose_it_is_and_loses_nothing(python):
    python("""
import os, resource, shmbroker
session = shmbroker.connect(group="")
first_free = os.dup(0)
os.close(first_free)
resource.setrlimit(resource.RLIMIT_NOFILE, (first_free, 1000))
try: session.create(4096, name="one")
except shmbroker.NoDescriptors as error:
    for word in (f"(pid {os.getpid()})", f"({first_free})", "`ulimit -n`"): assert word in str(error), error
else: raise AssertionError
resource.setrlimit(resource.RLIMIT_NOFILE, (1000, 1000))
session.create(4096, name="one")
""")


def test_a_buffer_outlives_all_that_it_came_from(broker):
    session = shmbroker.connect(group="")
    region = session.create(4096)
    array = numpy.asarray(region)
    gone = weakref.ref(region)
    session.close()
    del session, region
    gc.collect()
    array[:] = 3
    assert int(array.sum()) == 3 * 4096 and gone() is not None
    del array
    gc.collect()
    assert gone() is None


def test_a_region_is_found_by_a_buffer_in_it(session):
    region = session.create(8192)
    array = numpy.asarray(region)
    assert shmbroker.find(array[100:200]) is region
    assert shmbroker.find(bytearray(10)) is None
    del array
    assert shmbroker.find((ctypes.c_char * 10).from_address(region.address + 100)) is region
    region.publish()  # its memory may move
    assert shmbroker.find(numpy.asarray(region)) is region
    by_address = session.attach(region.id)
    assert shmbroker.find((ctypes.c_char * 10).from_address(by_address.address)) is by_address
    by_address.close()
    region.close()


def test_sharing_strategies_have_the_names_of_torch():
    assert shmbroker.sharing_strategies() == ("file_descriptor", "file_system")
    before = shmbroker.sharing_strategy()
    shmbroker.set_sharing_strategy("file_descriptor")
    assert shmbroker.sharing_strategy() == "file_descriptor"
    shmbroker.set_sharing_strategy(before)
    with pytest.raises(ValueError, match="file_system"):
        shmbroker.set_sharing_strategy("cuda")
