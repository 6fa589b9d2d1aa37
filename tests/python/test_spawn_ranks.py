# SPDX-License-Identifier: Apache-2.0
"""The things that ranks get and give: variables, arguments, results, primitives, regions, output."""
import asyncio
import multiprocessing.util
import os

import numpy
import pytest
import shmbroker
import spawn_functions as functions
from shmbroker import PeerGone, ProcessExitedException, mp, ranks, spawn

pytestmark = pytest.mark.usefixtures("broker")
METHODS = ["spawn", "forkserver", "fork"]


@pytest.fixture(params=METHODS)
def method(request):
    return request.param


def results(*arguments, **options):
    context = spawn(*arguments, join=False, **options)
    assert context.join(timeout=120)
    return context.results()


def test_ranks_have_the_variables_of_torchrun_and_those_of_env(method):
    told = results(functions.facts, (), 2, start_method=method, env={"OWN": "a=b"})
    for rank, (variables, port, number, world, control) in enumerate(told):
        assert variables == {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
                             "MASTER_ADDR": "127.0.0.1", "OWN": "a=b"}
        assert (number, world, control) == (rank, 2, []) and port > 0
    assert "RANK" not in os.environ


def test_the_second_host_has_the_ranks_that_follow(method):
    context = spawn(functions.facts, (), 2, join=False, start_method=method, nnodes=2, node_rank=1,
                    master_addr="127.0.0.2", master_port=29500)
    assert context.join()
    assert [one[2:4] for one in context.results()] == [(2, 4), (3, 4)]
    assert context.results()[0][0]["MASTER_ADDR"] == "127.0.0.2"


def test_ranks_meet(method):
    told = results(functions.meet, (), 3, start_method=method)
    assert [one[0] for one in told] == [[{"rank": 0}, {"rank": 1}, {"rank": 2}]] * 3
    assert [one[1] for one in told] == [[1, "value"]] * 3
    assert max(one[2] for one in told) == 6 and {one[3] for one in told} == {6}
    assert {one[4] for one in told} == {b"value"} and len({one[5] for one in told}) == 1
    assert [one[6] for one in told] == [True, None, None]


def test_a_rank_that_waits_for_a_dead_one_is_told_and_is_not_the_cause(method):
    with pytest.raises(ProcessExitedException, match="process 0 terminated with signal SIGKILL") as caught:
        spawn(functions.meet_a_dead_one, (), 3, start_method=method, voluntary=30)
    assert {one.type for one in caught.value.failures[1:]} == {"shmbroker.errors.PeerGone"}


def test_a_wait_for_others_ends_at_its_deadline(method):
    assert results(functions.wait_too_short, (), 2, start_method=method)[0] == "Timeout"


def test_the_primitives_refuse_a_process_that_is_no_rank():
    for call in (ranks.rank, ranks.barrier, lambda: ranks.store.get("key")):
        with pytest.raises(shmbroker.NotFound, match="no rank"):
            call()
    with pytest.raises(shmbroker.Invalid, match="limit"):
        ranks.barrier(timeout=None)


@pytest.mark.parametrize("what", ["barrier", "broadcast", "all_gather", "store"])
def test_an_interrupt_ends_a_wait_for_other_ranks(what):
    context = spawn(functions.interrupted, (what,), 2, join=False, start_method="fork")
    assert context.join()
    assert context.result(0) == "interrupted"


def test_queues_of_mp_travel_to_ranks(broker, method):
    tasks, results = mp.Queue(), mp.Queue()
    for number in range(2):
        tasks.put(numpy.full(100000, number))
    spawn(functions.add_one_to_arrays, (tasks, results), 2, start_method=method)
    assert sorted(results.get(timeout=20)[0] for _ in range(2)) == [1, 2]


def test_a_reader_that_waits_for_a_rank_is_told_of_its_failure(session):
    async def consume():
        async for _ in session.queue("of-ranks", kind="mpmc", role="reader"):
            pass

    async def main():
        context = spawn(functions.fail_of, (1,), 2, join=False, start_method="fork")
        async with asyncio.TaskGroup() as group:
            group.create_task(consume())  # no rank opens it
            group.create_task(context.join_async())

    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(main())
    assert isinstance(caught.value.exceptions[0], shmbroker.ProcessRaisedException)


def test_join_async_returns_as_join_does():
    async def main():
        context = spawn(functions.wait_for, (1.0,), 2, join=False, start_method="fork")
        told = [await context.join_async(0.01), await context.join_async(), await context.join_async(0)]
        return told

    assert asyncio.run(main()) == [False, True, True]


def test_locks_values_and_connections_of_multiprocessing_travel(method):
    context = multiprocessing.get_context("spawn")
    value = context.Value("i", 0, lock=False)
    spawn(functions.count_with_lock, (context.Lock(), value), 2, start_method=method)
    assert value.value == 200
    reader, writer = context.Pipe(False)
    spawn(functions.send_rank, (writer,), 1, start_method=method)
    writer.close()
    assert reader.recv() == 0
    with pytest.raises(EOFError):
        reader.recv()  # no process has a copy of the end for writing


def test_a_region_travels_to_ranks_as_an_argument(method):
    region = shmbroker.connect().create(4096)
    spawn(functions.write_region, (region,), 3, start_method=method)
    assert bytes(memoryview(region)[:4]) == b"\1\2\3\0"


def test_a_read_only_region_stays_read_only(method):
    session = shmbroker.connect()
    made = session.create(4096)
    memoryview(made)[:4] = b"data"
    region = session.attach(made.id, share=True)
    assert region.readonly
    assert results(functions.read_region, (region,), 2, start_method=method) == [(True, b"data")] * 2


def test_a_region_comes_back_as_a_result(method):
    told = results(functions.make_region, (), 2, start_method=method)
    assert [bytes(memoryview(one["region"])[:3]) for one in told] == [b"\0\7\x08", b"\1\7\x08"]


def test_ranks_gather_each_others_regions(method):
    assert results(functions.share_regions, (), 2, start_method=method) == [[10, 11], [10, 11]]


def test_exit_functions_and_threads_of_a_rank_run_to_their_end(method, tmp_path):
    spawn(functions.exit_functions, (str(tmp_path / "at"),), 2, start_method=method)
    assert sorted(os.listdir(tmp_path)) == ["at.0.atexit", "at.0.thread", "at.1.atexit", "at.1.thread"]


def test_output_goes_where_it_is_sent_and_nothing_is_printed_twice(method, tmp_path, python):
    told = python(f"""
import sys; sys.path.insert(0, {os.path.dirname(__file__)!r})
import spawn_functions as functions
from shmbroker import spawn
print("printed before", end=" ")
spawn(functions.print_lines, (), 2, start_method={method!r}, output="files", output_path={str(tmp_path / "log")!r})
spawn(functions.print_lines, (), 1, start_method={method!r}, output="null")
spawn(functions.print_lines, (), 2, start_method={method!r}, output="prefix")
""", PYTHONUNBUFFERED="")  # else nothing waits in a buffer that a copy of the process would print again
    assert (tmp_path / "log.1.out").read_text() == "out of 1\n"
    assert (tmp_path / "log.0.err").read_text() == "err of 0\n"
    assert told.count("printed before") == 1 and "out of" in told
    assert "[rank 1] out of 1\n" in told and "[rank 0] err of 0\n" in told


def test_a_rank_that_is_a_copy_does_what_multiprocessing_was_told_to_do_after_a_fork():
    class Noted:
        forked = False

    noted = Noted()
    multiprocessing.util.register_after_fork(noted, lambda it: setattr(it, "forked", True))
    assert results(lambda rank: noted.forked, (), 2, start_method="fork") == [True, True]
    assert not noted.forked


def test_ranks_spawn_ranks_of_their_own(method):
    assert results(functions.nested, (), 2, start_method=method) == [True, True]


def test_a_failure_of_ranks_of_a_rank_is_that_ranks_exception(method):
    with pytest.raises(shmbroker.ProcessRaisedException, match="legitimate exception from process 1") as caught:
        spawn(functions.nested_with_failure, (), 1, start_method=method)
    assert caught.value.failure.type == "shmbroker.process_errors.ProcessRaisedException"


def test_the_fork_server_has_imported_the_modules_of_the_arguments():
    numpy = pytest.importorskip("numpy")
    told = results(functions.give_back, (numpy.arange(4),), 2, start_method="forkserver")
    assert [one.tolist() for one in told] == [[0, 1, 2, 3]] * 2


def test_peer_gone_is_a_connection_error():
    assert issubclass(PeerGone, ConnectionError)
