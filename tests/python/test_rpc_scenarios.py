# SPDX-License-Identifier: Apache-2.0
"""Scenarios 70 to 101 of docs/conformance.md with plain values of Python, for each start method of the workers. The numbers
are those of that page. With tensors, and with workers that are programs of their own, they are in test_torch_rpc*.py.

This process is worker "w0". The scenarios of a method share one world of three, but for those that end a world.
"""
import gc
import operator
import os
import pickle
import signal
import threading
import time

import pytest
from mp_world import METHODS, ended
from torch_rpc_world import free_port, functions, join, rpc, stop, torch, until

from shmbroker import mp


class Worlds:
    """One world at a time."""

    def __init__(self, method):
        self.context, self.processes, self.is_shared = mp.get_context(method), [], False
        if method == "forkserver":
            self.context.set_forkserver_preload(["torch_rpc_functions"])

    def start(self, size, target=functions.serve, *more):
        self.end()
        port = free_port()
        self.processes = [self.context.Process(target=target, args=(f"w{rank}", rank, size, port, *more))
                          for rank in range(1, size)]
        for process in self.processes:
            process.start()
        join(port, size)

    def shared(self):
        if not self.is_shared:
            self.start(3)
            self.is_shared = True

    def end(self):
        """Ends the world, if there is one, and its processes."""
        if rpc.state.current_or_none() is not None:
            gc.collect()
            rpc.shutdown(timeout=60)
        for process in self.processes:
            process.join(60)
            assert process.exitcode in (0, -signal.SIGKILL)
        self.processes, self.is_shared = [], False


@pytest.fixture(scope="module", params=METHODS)
def worlds(broker, request):
    it = Worlds(request.param)
    yield it
    it.end()


@pytest.fixture
def world(worlds):
    worlds.shared()
    yield worlds
    until(lambda: rpc.rpc_sync("w1", functions.values_here) == 0 or gc.collect() < 0)  # else garbage is collected, and asked again


# ---------------------------------------------------------------------------------------------- calls and values

def test_70_functions_and_classes_are_called_there_and_here(world):
    assert rpc.remote("w1", operator.add, args=(1, 2)).to_here() == 3
    assert rpc.remote("w1", functions.combine, args=(1,), kwargs={"scale": 5}).to_here() == 10
    assert rpc.remote("w1", functions.Counter, args=(40,)).rpc_sync().add(2) == 42
    ten = [rpc.remote("w1", functions.give_back, args=(number,)) for number in range(10)]
    assert [one.to_here() for one in ten] == list(range(10))
    own = rpc.remote("w0", operator.add, args=(3, 4))
    assert own.is_owner() and own.local_value() == 7 and own.to_here() == 7


def test_71_references_are_arguments_for_their_owner_and_for_a_third_worker(world):
    one, two = functions.make_at("w1", 1), functions.make_at("w1", 2)
    assert rpc.remote("w1", functions.sum_of, args=(one, two)).to_here() == 3
    assert rpc.remote("w2", functions.sum_of, args=(one, two)).to_here() == 3
    assert rpc.rpc_sync("w2", functions.sum_of, args=(one, two)) == 3
    nested = [rpc.remote("w1", functions.list_of_references, args=("w2",)) for _ in range(20)]
    assert [sum(inner.to_here() for inner in one.to_here()) for one in nested] == [3] * 20


def test_72_a_reference_to_a_third_workers_value_is_a_result(world):
    returned = rpc.rpc_sync("w1", functions.make_at, args=("w2", 7))
    assert returned.owner_name() == "w2" and returned.to_here() == 7


def test_73_a_reference_that_went_around_a_ring_has_its_value(world):
    assert functions.around(functions.make_at("w1", "value"), ["w0", "w1", "w2"], 8) == "value"


def test_74_an_own_value_needs_nobody_until_it_is_passed_on(world):
    own = rpc.RRef(50)
    assert own.is_owner() and own.local_value() == 50 and own.to_here() == 50
    assert rpc.rpc_sync("w1", functions.add_to_local, args=(own,)) == 90
    assert rpc.rpc_async("w1", functions.add_to_local, args=(own,)).wait() == 90
    assert rpc.remote("w2", functions.add_to_local, args=(own,)).to_here() == 90


def test_75_the_value_at_a_user_is_refused_with_all_names(world):
    with pytest.raises(RuntimeError, match=r"UserRRef\(rref_id=.*fork_id=.*can't call localValue\(\) on user "
                                           r"WorkerInfo\(id=0, name=w0\)\. Call it on owner WorkerInfo\(id=1, name=w1\)"):
        functions.make_at("w1", 1).local_value()


def test_76_methods_at_the_owner_add_up(world):
    counter = rpc.remote("w1", functions.Counter, args=(10,))
    assert counter.rpc_sync().add(1) == 11
    assert counter.rpc_async().add(by=2).wait() == 13
    assert counter.remote().add(3).to_here() == 16
    assert rpc.rpc_sync(counter.owner(), functions.fetch, args=(counter,)).value == 16
    assert [one.to_here() for one in rpc.rpc_sync("w1", functions.own, args=("x",))] == [["x", 0], ["x", 1], ["x", 2]]


def test_77_owners_compare_equal_and_are_keys(world):
    one, two, other = functions.make_at("w1", 1), functions.make_at("w1", 2), functions.make_at("w2", 1)
    assert one.owner() == two.owner() == rpc.get_worker_info("w1") != other.owner()
    assert {one.owner(): 1, two.owner(): 2, other.owner(): 3} == {one.owner(): 2, other.owner(): 3}


def test_78_the_exception_of_the_callee_is_raised(world):
    for worker in "w1", "w0":
        for kind in ValueError, TypeError:
            with pytest.raises(kind, match="a text of its own"):
                rpc.remote(worker, functions.fail, args=(kind, "a text of its own")).to_here()


def test_79_a_reference_is_confirmed_before_the_function_starts(world):
    reference = functions.make_at("w1", 5)
    assert rpc.rpc_sync("w2", functions.was_confirmed, args=(reference,)) == (True, 5)
    assert rpc.remote("w2", functions.was_confirmed, args=(reference,)).to_here() == (True, 5)


def test_81_the_future_of_a_creation_completes(world):
    reference = rpc.remote("w1", functions.sleep, args=(0.1,))
    assert reference._get_future().wait() is None
    assert reference.to_here() == 0.1


def test_83_pickling_outside_of_a_call_fails(world):
    reference = functions.make_at("w1", 1)
    reference.to_here()
    with pytest.raises(RuntimeError, match="Can not pickle rref in python pickler"):
        pickle.dumps(reference)


def test_84_the_type_is_asked_once_waits_for_a_slow_value_and_tells_an_error(world):
    slow = rpc.remote("w1", functions.sleep, args=(1.0,))
    assert slow._get_type() is float
    again = slow._get_type(blocking=False)
    assert again.done() and again.wait() is float
    assert rpc.remote("w1", functions.Counter, args=(1,))._get_type() is functions.Counter
    with pytest.raises(ValueError, match="no type"):
        rpc.remote("w1", functions.fail, args=(ValueError, "no type"))._get_type()


def test_a_failure_keeps_nothing_of_the_function_that_met_it(world):
    def fail(how, match):
        held = functions.make_at("w1", 1)
        assert held.to_here() == 1
        with pytest.raises((ValueError, RuntimeError), match=match):
            how()

    arguments = {"args": (ValueError, "no value")}
    fail(lambda: rpc.rpc_sync("w1", functions.fail, **arguments), "no value")
    fail(lambda: rpc.rpc_async("w1", functions.fail, **arguments).wait(), "no value")
    fail(lambda: rpc.rpc_async("w1", functions.sleep, args=(0.2,), timeout=0.05).wait(), "set timeout")
    fail(lambda: rpc.remote("w1", functions.fail, **arguments)._get_future().wait(), "no value")
    fail(lambda: rpc.remote("w1", functions.fail, **arguments)._get_type(), "no value")
    fail(lambda: rpc.remote("w1", functions.fail, **arguments)._get_type(blocking=False).wait(), "no value")


# ---------------------------------------------------------------------------------------------- time

LATE = r"RPC ran for more than set timeout \(100 ms\)"


def test_90_timeouts_are_of_the_call_the_default_or_none(world):
    with pytest.raises(RuntimeError, match=LATE):
        rpc.rpc_sync("w1", functions.sleep, args=(1,), timeout=0.1)
    with pytest.raises(RuntimeError, match=LATE):
        rpc.rpc_async("w1", functions.sleep, args=(1,), timeout=0.1).wait()
    before = rpc.get_rpc_timeout()
    earlier = rpc.rpc_async("w1", functions.sleep, args=(0.3,))
    rpc._set_rpc_timeout(0.1)
    try:
        with pytest.raises(RuntimeError, match=LATE):
            rpc.rpc_sync("w1", functions.sleep, args=(1,))
        assert earlier.wait() == 0.3  # a new default affects only later calls
        assert rpc.rpc_sync("w1", functions.sleep, args=(0.3,), timeout=0) == 0.3
        assert rpc.rpc_sync("w1", functions.sleep, args=(0.3,), timeout=30) == 0.3
    finally:
        rpc._set_rpc_timeout(before)


def test_91_a_fetch_that_was_too_short_is_followed_by_one_that_waits(world):
    reference = rpc.remote("w1", functions.sleep, args=(1.0,))
    with pytest.raises(RuntimeError, match="RPC ran for more than set timeout"):
        reference.to_here(0.01)
    assert reference.to_here() == 1.0


@pytest.mark.parametrize("timeout", [0.001, 0.5], ids=["92", "100"])
def test_92_100_a_creation_that_was_too_slow_has_failed_for_good(world, timeout):
    reference = rpc.remote("w1", functions.sleep, args=(1.0 if timeout < 0.1 else 3.0,), timeout=timeout)
    if timeout < 0.1:
        with pytest.raises(RuntimeError, match="RRef creation|more than set timeout"):
            reference._get_future().wait()
    for _ in range(3):
        with pytest.raises(RuntimeError, match="RRef creation"):
            reference.to_here()


def test_93_95_a_lost_creation_has_failed_and_a_late_one_arrives(world):
    stopped = world.processes[0]
    rpc.rpc_sync("w1", operator.add, args=(1, 2))
    stop(stopped.pid)
    try:
        lost = rpc.remote("w1", functions.give_back, args=(5,), timeout=0.3)
        delayed = rpc.remote("w1", functions.give_back, args=(6,), timeout=0)
        with pytest.raises(RuntimeError, match="RPC ran for more than set timeout"):
            delayed.to_here(0.001)
        with pytest.raises(RuntimeError, match="RRef creation"):
            lost._get_future().wait()
        with pytest.raises(RuntimeError, match="RRef creation"):
            lost.to_here()
        with pytest.raises(RuntimeError, match="RRef creation"):
            rpc.rpc_sync("w2", functions.fetch, args=(lost,))
        time.sleep(2)
    finally:
        os.kill(stopped.pid, signal.SIGCONT)
    assert delayed.to_here() == 6
    with pytest.raises(RuntimeError, match="RRef creation"):
        lost.to_here()


def test_94_a_broker_that_answers_late_loses_no_reference(world, broker):
    for number in range(3):
        broker.process.send_signal(signal.SIGSTOP)
        back = threading.Timer(0.3, broker.process.send_signal, [signal.SIGCONT])
        back.start()
        assert rpc.rpc_sync("w2", functions.fetch, args=(functions.make_at("w1", number),)) == number
        back.join()


def test_97_futures_chain_and_fail_and_the_first_error_is_raised_for_all(world):
    future = rpc.rpc_async("w1", functions.give_back, args=(0,))
    for _ in range(20):
        future = future.then(lambda done: done.wait() + 1)
    assert future.wait() == 20
    with pytest.raises(Exception, match="division by zero"):
        rpc.rpc_async("w1", functions.give_back, args=(0,)).then(lambda done: 1 / done.wait()).wait()
    with pytest.raises(ValueError, match="as asked"):
        torch.futures.wait_all([rpc.rpc_async("w2", functions.give_back, args=(1,)),
                                rpc.rpc_async("w1", functions.fail, args=(ValueError, "as asked"))])


# ---------------------------------------------------------------------------------------------- ends of worlds

def test_80_82_86_87_101_numbers_counts_cycles_and_the_end(worlds):
    worlds.start(2)

    def counts():
        return rpc.world._debug_info()["num_owner_rrefs"], rpc.rpc_sync("w1", functions.values_here)

    first = functions.make_at("w1", 1)
    assert first.to_here() == 1
    assert str(first) == ("UserRRef(RRefId = GloballyUniqueId(created_on=0, local_id=1), "
                          "ForkId = GloballyUniqueId(created_on=0, local_id=2))")
    second = functions.make_at("w1", 2)
    assert second.to_here() == 2 and counts() == (0, 2)
    del second
    own = rpc.RRef([])
    until(lambda: counts() == (0, 1))
    rpc.rpc_sync("w1", functions.keep, args=("it", own))
    assert counts() == (1, 1)
    rpc.rpc_sync("w1", functions.forget, args=("it",))
    until(lambda: counts() == (0, 1))
    own.local_value().append(rpc.remote("w1", functions.give_back, args=([own],)))  # 101: of two owners
    own.local_value()[0].to_here()
    cycle = [functions.make_at("w1", 3)]  # 86: of this process alone
    cycle.append(cycle)
    cycle[0].to_here()
    del own, cycle
    assert counts() == (1, 3)
    worlds.end()
    with pytest.raises(RuntimeError, match=r"Cannot call to_here\(\) on it after deletion"):
        first.to_here()
    rpc.init_rpc("w0", rank=0, world_size=1)
    with pytest.raises(RuntimeError, match="Cannot call fork an UserRRef after deletion"):
        rpc.rpc_sync("w0", functions.give_back, args=(first,))
    worlds.end()


def test_85_a_reference_that_is_left_at_shutdown_is_reported(worlds):
    told = worlds.context.Queue()
    worlds.start(2, functions.serve_to_the_last_reference, told)
    held = functions.make_at("w1", 1)
    assert held.to_here() == 1
    world = rpc.state.current()
    try:
        world.core.shutdown(False, True, True, 60 * 10**9)
    finally:
        rpc.state.leave(world)
        world.core.close()
    assert "Leaking RRef" in told.get(timeout=60)
    worlds.end()
    told.close()


def test_88_a_local_shutdown_is_over_at_once_and_a_new_world_may_begin(worlds):
    worlds.end()
    for traffic in False, True:
        join(free_port(), 1)
        if traffic:
            assert rpc.rpc_sync("w0", operator.add, args=(1, 2)) == 3
        rpc.shutdown(graceful=False)
        with pytest.raises(RuntimeError, match="RPC has not been initialized"):
            rpc.rpc_sync("w0", operator.add, args=(1, 2))
    worlds.start(2)
    assert rpc.rpc_sync("w1", operator.add, args=(1, 2)) == 3
    rpc.shutdown(graceful=False)
    worlds.processes[0].kill()  # it waits for this one to come to the end, too
    worlds.end()


def test_96_a_shutdown_waits_for_calls_that_nobody_waits_for(worlds, tmp_path):
    worlds.start(3)
    mark = tmp_path / "mark"
    for number in range(1000):
        rpc.rpc_async(f"w{1 + number % 2}", functions.count, args=("light",))
    for number in range(20):
        rpc.rpc_async(f"w{1 + number % 2}", functions.sleep_and_count, args=("heavy", 0.02))
    rpc.rpc_sync("w1", functions.hop, args=(str(mark), "w0", 20))
    counted = [rpc.rpc_async(worker, functions.counted_later, args=(name, most))
               for worker in ("w1", "w2") for name, most in (("light", 500), ("heavy", 10))]
    worlds.end()
    assert mark.read_text() == "arrived"
    assert [one.wait() for one in counted] == [500, 10, 500, 10]


def test_89_98_99_the_death_of_a_worker_ends_calls_with_its_name_and_frees_what_it_held(worlds):
    worlds.start(3)
    rpc.rpc_sync("w2", functions.hold_numbers, args=("w1", 50))
    assert rpc.rpc_sync("w1", functions.values_here) == 50
    owned = functions.make_at("w2", 1)
    assert owned.to_here() == 1
    waiting = rpc.rpc_async("w2", functions.sleep, args=(60,))
    worlds.processes[1].kill()
    for use in (waiting.wait, owned.to_here, lambda: rpc.rpc_sync("w2", operator.add, args=(1, 2)),
                lambda: rpc.remote("w2", operator.add, args=(1, 2)).to_here()):
        with pytest.raises(rpc.RpcWorkerGone, match="w2"):
            use()
    until(lambda: rpc.rpc_sync("w1", functions.values_here) == 0)
    worlds.end()
