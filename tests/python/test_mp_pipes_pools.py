# SPDX-License-Identifier: Apache-2.0
"""Pipes, pools, executors and processes of shmbroker.mp."""
import concurrent.futures
import gc
import os
import signal
import subprocess
import sys
import time

import mp_children as children
import numpy
import pytest
import shmbroker
from mp_world import ctx, end, ended, fork, until  # noqa: F401
from shmbroker import mp


def test_a_pipe_carries_arrays_and_ends_with_its_writer(ctx):
    reader, writer = ctx.Pipe(duplex=False)
    child = ctx.Process(target=children.send_arrays, args=(writer, 5))
    child.start()
    writer.close()
    for number in range(5):
        assert reader.poll(30)
        array = reader.recv()
        assert array.flags.writeable and array.sum() == 100000 * number
        array += 1
    assert mp.connection.wait([reader], 30) == [reader]
    with pytest.raises(EOFError):
        reader.recv()
    assert ended(child)


def test_a_pipe_carries_bytes_and_small_objects_as_the_standard_library_does(fork):
    one, other = fork.Pipe()
    with one, other:
        one.send_bytes(b"abc")
        assert other.recv_bytes() == b"abc"
        other.send(["x", 1])
        assert one.recv() == ["x", 1]
        other.send({"all": os.urandom(70000), "array": numpy.arange(100)})
        received = one.recv()
        assert len(received["all"]) == 70000 and received["array"].sum() == 4950
        with pytest.raises(RuntimeError, match="this cannot be pickled"):
            one.send([numpy.zeros(100000), children.NotPicklable()])
        one.send(1)
        assert other.recv() == 1
    with pytest.raises(OSError):
        one.send(1)


def test_what_went_through_a_pipe_arrives_when_its_sender_was_killed(fork):
    reader, writer = fork.Pipe(duplex=False)
    pid = os.fork()
    if pid == 0:
        writer.send(numpy.ones(1 << 18))
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    time.sleep(0.2)
    assert reader.recv().sum() == 1 << 18


def test_what_a_child_has_sent_arrives_after_its_end_also_in_a_program_that_made_no_queue(broker, python):
    assert python("""
import numpy
from shmbroker import mp
ctx = mp.get_context("fork")
one, other = ctx.Pipe()
child = ctx.Process(target=lambda: other.send(numpy.ones(100000)))
child.start()
child.join()
print(one.recv().sum())
""") == "100000.0\n"


def test_what_nobody_reads_from_a_pipe_is_freed_when_its_reader_has_gone(fork):
    from shmbroker.mp import place
    reader, writer = fork.Pipe(duplex=False)
    array = mp.empty(1 << 18)
    identity = mp.find(array).id
    writer.send(array)
    del array
    session, _ = place.home()
    assert session.stat(identity).tickets == 1
    reader.close()
    writer.close()
    with pytest.raises(FileNotFoundError):
        session.stat(identity)


def test_memory_of_empty_goes_through_a_pipe_without_a_copy(fork):
    one, other = fork.Pipe()
    array = mp.empty((512, 512))
    array[...] = 1
    one.send(array)
    received = other.recv()
    assert mp.find(received).id == mp.find(array).id
    assert received.sum() == 512 * 512


def test_a_connection_goes_to_a_child_and_large_arguments_too(ctx):
    one, other = ctx.Pipe()
    results = ctx.Queue()
    array = numpy.arange(1 << 18)
    child = ctx.Process(target=children.send_arrays, args=(other, 2))
    child.start()
    other.close()
    assert [one.recv().sum(), one.recv().sum()] == [0, 100000]
    assert ended(child)
    child = ctx.Process(target=children.put_and_end, args=(results, [array, {"again": array}]))
    child.start()
    assert (results.get(timeout=30) == array).all()
    assert (results.get(timeout=30)["again"] == array).all()
    assert ended(child)


def test_a_pool_gives_results_in_order_and_arrays_both_ways(ctx):
    with ctx.Pool(2) as pool:
        assert pool.map(children.square, range(50)) == [number * number for number in range(50)]
        assert pool.map(children.sum_of, [numpy.ones(10), numpy.ones(100000), numpy.ones(1 << 19)]) == [10, 100000, 1 << 19]
        assert [array.sum() for array in pool.imap(children.large, range(4))] == [0, 50000, 100000, 150000]
        assert pool.apply(children.add_one, (numpy.zeros(100000),)).sum() == 100000
        assert sorted(pool.imap_unordered(children.square, range(20))) == sorted(number * number for number in range(20))


def test_a_pool_fails_the_task_whose_worker_was_killed_and_goes_on(ctx):
    with ctx.Pool(2) as pool:
        waiting = [pool.apply_async(children.die, (number,)) for number in range(6)]
        for number, result in enumerate(waiting):
            if number == 3:
                with pytest.raises(mp.WorkerDied, match="killed by signal 9"):
                    result.get(timeout=60)
            else:
                assert result.get(timeout=60) == number
        with pytest.raises(mp.WorkerDied):
            pool.map(children.die, range(6))
        assert pool.map(children.square, range(5)) == [0, 1, 4, 9, 16]


def test_a_pool_tells_of_what_cannot_be_pickled_either_way(fork):
    with fork.Pool(1) as pool:
        with pytest.raises(RuntimeError, match="this cannot be pickled"):
            pool.apply_async(children.sum_of, (children.NotPicklable(),)).get(timeout=60)
        with pytest.raises(RuntimeError, match="this cannot be unpickled"):
            pool.apply_async(children.sum_of, (children.NotUnpicklable(),)).get(timeout=60)
        with pytest.raises(mp.pool.MaybeEncodingError):
            pool.apply_async(children.cannot_return, (1,)).get(timeout=60)
        assert pool.apply(children.square, (3,)) == 9


def test_a_result_that_cannot_be_unpickled_is_the_outcome_of_its_task(fork):
    with fork.Pool(2) as pool:
        with pytest.raises(RuntimeError, match="this cannot be unpickled"):
            pool.apply_async(children.NotUnpicklable).get(timeout=60)
        with pytest.raises(ModuleNotFoundError, match="only_in_the_worker"):
            pool.map_async(children.only_here, range(3)).get(timeout=60)
        with pytest.raises(TypeError, match="number"):
            pool.apply_async(children.raise_odd, (1,)).get(timeout=60)
        assert pool.apply(children.square, (3,)) == 9


def test_a_pool_of_more_workers_than_a_queue_serves_is_refused_by_a_sentence(fork):
    with pytest.raises(ValueError, match="at most 60 workers"):
        fork.Pool(61)


def test_workers_end_when_their_parent_is_killed(python):
    out = python("""
import os, signal, sys
from shmbroker import mp
pool = mp.Pool(2)
print(*[process.pid for process in pool._pool], flush=True)
pool.map(abs, range(10))
os.kill(os.getpid(), signal.SIGKILL)
""", status=-9)
    pids = [int(word) for word in out.split()]
    assert len(pids) == 2

    def gone(pid):
        try:
            with open(f"/proc/{pid}/stat") as file:
                return file.read().split(") ")[1][0] in "ZX"
        except FileNotFoundError:
            return True

    assert until(lambda: all(gone(pid) for pid in pids), 30)


def test_a_pool_that_is_dropped_ends_its_workers(fork):
    pool = fork.Pool(2)
    workers = list(pool._pool)
    assert pool.apply(children.square, (2,)) == 4
    with pytest.warns(ResourceWarning):
        del pool
        gc.collect()
    assert until(lambda: not any(worker.is_alive() for worker in workers), 30)


def test_an_executor_works_and_tells_of_a_broken_pool(ctx):
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=ctx) as executor:
        assert list(executor.map(children.square, range(20))) == [number * number for number in range(20)]
        assert [array.sum() for array in executor.map(children.large, range(3))] == [0, 50000, 100000]
        assert executor.submit(children.sum_of, numpy.ones(100000)).result(60) == 100000
        with pytest.raises(concurrent.futures.process.BrokenProcessPool):
            executor.submit(children.die, 3).result(60)


def test_arguments_of_an_executor_travel_in_shared_memory(ctx):
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=ctx) as executor:
        assert executor.submit(children.sum_if_shared, numpy.ones(100000)).result(60) == 100000
        own = mp.empty(200000)
        own[...] = 2
        assert executor.submit(children.sum_if_shared, array=own).result(60) == 400000
        with pytest.raises(RuntimeError, match="this cannot be pickled"):
            executor.submit(children.sum_of, [numpy.ones(100000), children.NotPicklable()]).result(60)
        assert executor.submit(children.square, 3).result(60) == 9


def test_a_received_array_stays_whole_in_a_forked_child_when_its_parent_drops_it(fork):
    tasks, results, go = fork.Queue(), fork.Queue(), fork.Event()
    tasks.put(numpy.full(100000, 7.0))
    array = tasks.get()

    def look():
        go.wait(30)
        results.put(float(array.sum()))

    child = fork.Process(target=look)
    child.start()
    del array, look
    for _ in range(80):
        tasks.put(numpy.zeros(100000))
    go.set()
    assert results.get(timeout=30) == 700000
    assert ended(child)


def test_a_child_by_the_fork_server_finds_the_broker_by_the_variables_that_its_parent_has_now(python):
    python("""
import os
from shmbroker import mp
context = mp.get_context("forkserver")

def seen_by_a_child():
    with context.Pool(1) as pool:
        return pool.apply(os.getenv, ("SHMBROKER_ODD",))

os.environ["SHMBROKER_ODD"] = "when the server starts"
assert seen_by_a_child() == "when the server starts"
os.environ["SHMBROKER_ODD"] = "now"
assert seen_by_a_child() == "now"
del os.environ["SHMBROKER_ODD"]
assert seen_by_a_child() is None
""")


UNGUARDED = """
import sys
from shmbroker import mp

context = mp.get_context(sys.argv[1])
queue = context.Queue()
child = context.Process(target=queue.put, args=(1,))
child.start()
child.join(60)
print("ended with", child.exitcode)
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_process_that_the_main_module_starts_without_a_guard_says_what_to_write(broker, tmp_path, method):
    before = {one.id for one in shmbroker.list().regions}
    program = tmp_path / "unguarded.py"
    program.write_text(UNGUARDED)
    done = subprocess.run([sys.executable, str(program), method], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout == "ended with 1\n", done.stdout + done.stderr
    assert "if __name__ == '__main__':" in done.stderr
    assert until(lambda: {one.id for one in shmbroker.list().regions} <= before)
