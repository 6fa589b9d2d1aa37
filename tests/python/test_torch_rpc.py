# SPDX-License-Identifier: Apache-2.0
"""shmbroker.torch.rpc between processes that are started one by one, as users start them. This process is worker "w0";
"w1" and "w2" are programs of their own, and "cpp" is one of C++."""
import gc
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

torch = pytest.importorskip("torch")
torch_rpc_functions = pytest.importorskip("torch_rpc_functions")
functions = torch_rpc_functions
rpc = functions.rpc

HERE = os.path.dirname(os.path.abspath(__file__))
CPP = os.environ.get("SHMBROKER_RPC_WORKER", "")
LARGE = 1 << 20  # elements: 4 MiB


def free_port():
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def start(arguments, port, **more):
    variables = dict(os.environ, MASTER_ADDR="localhost", MASTER_PORT=str(port), PYTHONPATH=os.pathsep.join(
        [HERE, os.environ.get("PYTHONPATH", "")]), **more)
    return subprocess.Popen(arguments, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def start_worker(name, rank, size, port):
    return start([sys.executable, os.path.join(HERE, "torch_rpc_functions.py"), name, str(rank), str(size)], port)


def ended(process):
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, (out, err)
    return out


def until(condition, limit=20):
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.02)


def join(port, size, rank=0, **options):
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port))
    rpc.init_rpc("w0", rank=rank, world_size=size, **options)


@pytest.fixture(scope="module")
def world(broker):
    port = free_port()
    others = [start_worker("w1", 1, 4 if CPP else 3, port), start_worker("w2", 2, 4 if CPP else 3, port)]
    if CPP:
        others.append(start([CPP, "cpp", "3", "4"], port))
    join(port, 1 + len(others))
    yield others
    rpc.shutdown()
    for one in others:
        ended(one)


# ---------------------------------------------------------------------------------------------- the page on `remote`

ADD = '''
import torch
import shmbroker.torch.rpc as rpc
rpc.init_rpc("worker0", rank=0, world_size=2)
rref1 = rpc.remote("worker1", torch.add, args=(torch.ones(2), 3))
rref2 = rpc.remote("worker1", torch.add, args=(torch.ones(2), 1))
x = rref1.to_here() + rref2.to_here()
print(x.tolist())
rpc.shutdown()
'''
SERVE = '''
import shmbroker.torch.rpc as rpc
rpc.init_rpc("worker1", rank=1, world_size=2)
rpc.shutdown()
'''
SCRIPT = '''
import torch
@torch.jit.script
def my_script_add(tensor: torch.Tensor, scalar: int):
    return torch.add(tensor, scalar)
'''


@pytest.mark.parametrize("program", ["add", "script"])
def test_both_programs_of_the_page_on_remote_run_with_only_the_import_changed(broker, tmp_path, program):
    texts = [ADD, SERVE]
    if program == "script":
        texts = [SCRIPT + ADD.replace("torch.add, args=(torch.ones(2), 3)", "my_script_add, args=(torch.ones(2), 3)"),
                 SCRIPT + SERVE]
    port = free_port()
    processes = []
    for number, text in enumerate(texts):
        path = tmp_path / f"worker{number}.py"
        path.write_text(text)
        processes.append(start([sys.executable, str(path)], port))
    assert ended(processes[0]) == "[6.0, 6.0]\n"
    ended(processes[1])


# ---------------------------------------------------------------------------------------------- death and the end (before the world of all others begins)

def test_82_85_101_values_are_counted_and_cycles_are_listed_and_end_with_the_world(broker):
    port = free_port()
    other = start_worker("w1", 1, 2, port)
    join(port, 2)

    def counts():
        return rpc.world._debug_info()["num_owner_rrefs"], rpc.rpc_sync("w1", functions.values_here)

    own = rpc.RRef([])
    assert counts() == (0, 0)
    rpc.rpc_sync("w1", functions.keep, args=("it", own))
    assert counts() == (1, 0)
    rpc.rpc_sync("w1", functions.forget, args=("it",))
    until(lambda: counts() == (0, 0))
    two = [functions.make_at("w1", number) for number in range(2)]
    assert [one.to_here() for one in two] == [0, 1] and counts() == (0, 2)
    del two
    until(lambda: counts() == (0, 0))
    own.local_value().append(rpc.remote("w1", functions.give_back, args=([own],)))
    own.local_value()[0].to_here()
    del own
    gc.collect()
    assert counts() == (1, 1)
    rpc.shutdown(timeout=60)
    ended(other)


LEAKING = """
import sys, torch, shmbroker
import shmbroker.torch.rpc as rpc
from shmbroker.torch.rpc import state
name, rank = sys.argv[1], int(sys.argv[2])
rpc.init_rpc(name, rank=rank, world_size=2)
held = rpc.remote("b", torch.add, args=(1, 2)) if rank == 0 else None
if held is not None:
    held.to_here()
try:
    print(state.current().core.shutdown(False, True, True, 60 * 10**9))
except shmbroker.Error as error:
    print(error)
"""


def test_85_a_reference_that_is_left_at_shutdown_is_reported(broker, tmp_path):
    path, port = tmp_path / "leaking.py", free_port()
    path.write_text(LEAKING)
    workers = [start([sys.executable, str(path), name, str(rank)], port) for rank, name in enumerate("ab")]
    holder, owner = [ended(one) for one in workers]
    assert "Leaking RRef" in owner and "Leaking" not in holder, (holder, owner)


def test_93_95_a_creation_that_comes_too_late_has_failed_and_one_without_a_limit_arrives(broker):
    port = free_port()
    stopped, third = start_worker("w1", 1, 3, port), start_worker("w2", 2, 3, port)
    join(port, 3)
    try:
        rpc.rpc_sync("w1", torch.add, args=(1, 2))
        stopped.send_signal(signal.SIGSTOP)
        lost = rpc.remote("w1", functions.give_back, args=(5,), timeout=0.3)
        delayed = rpc.remote("w1", functions.give_back, args=(6,), timeout=0)
        with pytest.raises(RuntimeError, match="RPC ran for more than set timeout"):
            delayed.to_here(0.001)
        with pytest.raises(RuntimeError, match="RRef creation"):
            lost._get_future().wait()
        for use in (lost.to_here, lambda: rpc.rpc_sync("w2", functions.fetch, args=(lost,))):
            with pytest.raises(RuntimeError, match="RRef creation"):
                use()
        stopped.send_signal(signal.SIGCONT)
        assert delayed.to_here() == 6
        with pytest.raises(RuntimeError, match="RRef creation"):
            lost.to_here()
        del lost, delayed, use
        gc.collect()
        until(lambda: rpc.rpc_sync("w1", functions.values_here) == 0)
    finally:
        stopped.send_signal(signal.SIGCONT)
        rpc.shutdown(timeout=60)
    ended(stopped)
    ended(third)


def test_the_death_of_a_worker_ends_calls_with_its_name_and_frees_what_it_held(broker):
    port = free_port()
    one, two = start_worker("w1", 1, 3, port), start_worker("w2", 2, 3, port)
    join(port, 3)
    try:
        rpc.rpc_sync("w2", functions.hold_references, args=("w1", 50))
        assert rpc.rpc_sync("w1", functions.values_here) == 50
        owned = functions.make_at("w2", 1)
        owned.to_here()
        waiting = rpc.rpc_async("w2", functions.sleep, args=(60,))
        two.kill()
        with pytest.raises(rpc.RpcWorkerGone, match="w2"):
            waiting.wait()
        with pytest.raises(rpc.RpcWorkerGone, match="w2"):
            owned.to_here()
        with pytest.raises(rpc.RpcWorkerGone, match="w2"):
            rpc.rpc_sync("w2", functions.give_back, args=(1,))
        with pytest.raises(rpc.RpcWorkerGone, match="w2"):
            rpc.remote("w2", functions.give_back, args=(1,)).to_here()
        until(lambda: rpc.rpc_sync("w1", functions.values_here) == 0)
    finally:
        rpc.shutdown()
    two.communicate()
    ended(one)


def test_after_shutdown_everything_says_so_and_a_new_world_may_begin(broker, tmp_path):
    with pytest.raises(RuntimeError, match="RPC has not been initialized"):
        rpc.rpc_sync("w1", torch.add, args=(1, 2))
    printed = set()
    for round in range(2):
        port = free_port()
        other = start_worker("w1", 1, 2, port)
        options = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://localhost:{port}", rpc_timeout=30,
                                                  num_worker_threads=3)
        rpc.init_rpc("w0", backend=rpc.BackendType.TENSORPIPE, rank=0, world_size=2, rpc_backend_options=options)
        assert rpc.get_rpc_timeout() == 30
        assert rpc.get_worker_info() == rpc.WorkerInfo("w0", 0)
        reference = functions.make_at("w1", 1)
        assert reference.to_here() == 1
        cycle = [functions.make_at("w1", 2)]
        cycle.append(cycle)
        printed.add(str(reference))
        mark = tmp_path / f"mark{round}"
        rpc.rpc_sync("w1", functions.hop, args=(str(mark), "w0", 20))
        rpc.shutdown(graceful=True, timeout=30)
        assert mark.read_text() == "arrived"
        ended(other)
        with pytest.raises(RuntimeError, match=r"Cannot call to_here\(\) on it after deletion"):
            reference.to_here()
    # 80: the numbers count in the same way each time
    assert printed == {"UserRRef(RRefId = GloballyUniqueId(created_on=0, local_id=1), "
                       "ForkId = GloballyUniqueId(created_on=0, local_id=2))"}
    rpc.init_rpc("alone", rank=0, world_size=1, rpc_backend_options=rpc.RpcBackendOptions(init_method=f"file:///tmp/{port}"))
    rpc.shutdown(graceful=False)


def test_what_init_is_given_wrongly_is_refused(broker, monkeypatch):
    monkeypatch.delenv("MASTER_PORT", raising=False)
    with pytest.raises(ValueError, match="environment variable MASTER_PORT expected, but not set"):
        rpc.init_rpc("w0", rank=0, world_size=1)
    with pytest.raises(RuntimeError, match="No rendezvous handler for pigeon://"):
        rpc.init_rpc("w0", rank=0, world_size=1, rpc_backend_options=rpc.RpcBackendOptions(init_method="pigeon://x"))
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    with pytest.raises(ValueError, match="name"):
        rpc.init_rpc("a name with blanks", rank=0, world_size=1)


# ---------------------------------------------------------------------------------------------- calls and values

def test_a_builtin_a_function_with_keywords_and_a_class_are_called_here_and_there(world):
    for to in ("w1", 1, rpc.get_worker_info("w1"), "w0"):
        assert rpc.rpc_sync(to, torch.add, args=(torch.ones(2), 3)).tolist() == [4, 4]
        assert rpc.rpc_sync(to, functions.combine, args=(1,), kwargs={"scale": 5}) == 10
        assert rpc.rpc_async(to, functions.combine, args=(2,), kwargs={"scale": 5}).wait() == 15
        counter = rpc.remote(to, functions.Counter, args=(40,))
        assert counter.rpc_sync().add(2) == 42
        assert counter.rpc_async().add(by=1).wait() == 43
        assert counter.remote().add().to_here() == 44
        assert counter.rpc_sync().add_later(6) == 50


def test_results_of_many_calls_keep_their_order(world):
    references = [rpc.remote("w1", functions.give_back, args=(i,)) for i in range(100)]
    assert [one.to_here() for one in references] == list(range(100))
    futures = [rpc.rpc_async("w2", functions.give_back, args=(i,)) for i in range(1000)]
    assert torch.futures.wait_all(futures) == list(range(1000))


def test_workers_that_call_each_other_back_do_not_wait_for_each_other(world):
    assert rpc.rpc_sync("w1", functions.call_back, args=("w2", 12))[:3] == ["w1", "w2", "w1"]


TENSORS = {
    "float": torch.arange(6.0).reshape(2, 3), "bool": torch.tensor([True, False]), "empty": torch.empty(0, 3),
    "scalar": torch.tensor(3), "half": torch.ones(5, dtype=torch.bfloat16), "complex": torch.ones(3, dtype=torch.cfloat),
    "transposed": torch.arange(6.0).reshape(2, 3).t(), "gaps": torch.arange(20.0)[::3],
    "channels": torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last), "expanded": torch.ones(1).expand(4),
    "large": torch.arange(float(LARGE)), "sparse": torch.eye(3).to_sparse(),
    "quantised": torch.quantize_per_tensor(torch.ones(4), 0.1, 10, torch.quint8), "conjugate": torch.ones(2, dtype=torch.cfloat).conj(),
}


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_comes_back_equal(world, name):
    sent = TENSORS[name]
    came = rpc.rpc_sync("w1", functions.give_back, args=(sent,))
    assert came.dtype == sent.dtype and came.shape == sent.shape and came.layout == sent.layout
    if name == "sparse":
        assert torch.equal(came.to_dense(), sent.to_dense())
    elif name == "quantised":
        assert torch.equal(came.dequantize(), sent.dequantize())
    else:
        assert torch.equal(came, sent)
    if name in ("transposed", "channels"):
        assert came.stride() == sent.stride()


def test_parameters_and_gradients_wanted_arrive_as_such(world):
    came = rpc.rpc_sync("w1", functions.give_back,
                        args=([torch.nn.Parameter(torch.ones(3)), torch.ones(3, requires_grad=True)],))
    assert type(came[0]) is torch.nn.Parameter and came[0].requires_grad
    assert came[1].requires_grad and came[1].is_leaf
    model = rpc.rpc_sync("w1", functions.give_back, args=(torch.nn.Linear(300, 300),))
    assert model(torch.ones(300)).shape == (300,)


@pytest.mark.parametrize("count", [4, LARGE])
def test_a_tensor_that_arrived_is_the_receivers_own(world, count):
    mine = torch.ones(count)
    assert rpc.rpc_sync("w1", functions.write_four, args=(mine,)) == 4 * count
    assert mine.sum() == count
    reference = rpc.remote("w1", functions.ones, args=(count,))
    first = reference.to_here()
    first.fill_(9)
    second = reference.to_here()
    assert second.sum() == count
    second[0] = 5
    assert first[0] == 9 and reference.to_here().sum() == count


def test_a_fetch_sees_what_the_owner_has_written_since(world):
    reference = rpc.remote("w1", functions.ones, args=(LARGE,))
    before = reference.to_here()
    rpc.rpc_sync("w1", functions.fill_value, args=(reference, 2))
    assert reference.to_here().sum() == 2 * LARGE
    assert before.sum() == LARGE
    reference.rpc_sync().fill_(3)
    assert reference.to_here().sum() == 3 * LARGE
    for keep in functions.keep_ones, functions.keep_data, functions.keep_array:
        held = rpc.remote("w1", keep, args=("held", LARGE))
        assert held.to_here().sum() == LARGE
        rpc.rpc_sync("w1", functions.fill_kept, args=("held", 6))  # past the counter of versions
        assert held.to_here().sum() == 6 * LARGE
    rpc.rpc_sync("w1", functions.forget, args=("held",))


def test_a_large_value_that_nobody_else_has_is_copied_once(world):
    from shmbroker.torch.rpc import references, tensors
    for make in (lambda: torch.ones(LARGE), lambda: rpc.rpc_sync("w1", functions.ones, args=(LARGE,))):
        kept = references.Value(make())
        kept._lent = False
        first = kept.snapshot()
        assert first is not None and kept.snapshot() is first
        other = kept.value.data
        assert kept.snapshot() is None
        del other
        assert kept.snapshot() is not None


# ---------------------------------------------------------------------------------------------- references

def test_references_travel_as_arguments_and_results_and_between_third_workers(world):
    one, two = functions.make_at("w1", 1), functions.make_at("w1", 2)
    assert rpc.rpc_sync("w1", functions.sum_of, args=(one, two)) == 3
    assert rpc.rpc_sync("w2", functions.sum_of, args=(one, two)) == 3
    assert rpc.rpc_sync("w2", functions.was_confirmed, args=(one,)) == (True, 1)
    returned = rpc.rpc_sync("w1", functions.make_at, args=("w2", 7))
    assert returned.owner_name() == "w2" and returned.to_here() == 7
    nested = rpc.remote("w1", functions.list_of_references, args=("w2",))
    assert sum(inner.to_here() for inner in nested.to_here()) == 3
    own = rpc.RRef(50)
    assert own.local_value() == 50 and own.to_here() == 50 and own.is_owner() and str(own) == "OwnerRRef(local)"
    assert rpc.rpc_sync("w1", functions.add_to_local, args=(own,)) == 90
    assert rpc.remote("w2", functions.add_to_local, args=(own,)).to_here() == 90


def test_a_reference_that_goes_around_a_ring_still_has_its_value(world):
    reference = rpc.remote("w1", torch.add, args=(torch.ones(2), 1))
    assert functions.around(reference, ["w0", "w1", "w2"], 8).tolist() == [2, 2]


def test_a_reference_tells_what_it_is(world):
    reference = functions.make_at("w1", 1)
    reference.to_here()
    assert reference.owner() == rpc.get_worker_info("w1") and hash(reference.owner()) == hash(rpc.get_worker_info("w1"))
    assert (reference.owner_name(), reference.is_owner(), reference.confirmed_by_owner()) == ("w1", False, True)
    assert str(reference).startswith("UserRRef(RRefId = GloballyUniqueId(created_on=0, local_id=")
    assert reference._get_type() is int and reference._get_future().wait() is None
    with pytest.raises(RuntimeError, match=r"can't call localValue\(\) on user WorkerInfo\(id=0, name=w0\)\. "
                                           r"Call it on owner WorkerInfo\(id=1, name=w1\)"):
        reference.local_value()
    with pytest.raises(RuntimeError, match="Can not pickle rref in python pickler"):
        pickle.dumps(reference)
    assert functions.make_at("w0", [5]).local_value() == [5]


def test_values_go_when_their_last_reference_goes(world):
    until(lambda: rpc.rpc_sync("w1", functions.values_here) == 0)
    held = [functions.make_at("w1", i) for i in range(20)]
    assert held[19].to_here() == 19
    assert rpc.rpc_sync("w1", functions.values_here) == 20
    del held
    until(lambda: rpc.rpc_sync("w1", functions.values_here) == 0)


# ---------------------------------------------------------------------------------------------- failures

def test_an_exception_arrives_with_its_type_its_text_and_its_traceback(world):
    for call in (lambda: rpc.rpc_sync("w1", functions.fail, args=(ValueError, "as asked")),
                 lambda: rpc.rpc_async("w1", functions.fail, args=(ValueError, "as asked")).wait(),
                 lambda: rpc.remote("w1", functions.fail, args=(ValueError, "as asked")).to_here()):
        with pytest.raises(ValueError) as raised:
            call()
        text = str(raised.value)
        assert text.startswith("On WorkerInfo(id=1, name=w1):\nValueError('as asked')\n")
        assert "torch_rpc_functions.py" in text and "raise kind(text)" in text
    with pytest.raises(ValueError, match="KeyError: 'the cause'"):
        rpc.rpc_sync("w2", functions.fail_from, args=("text",))
    with pytest.raises(TypeError, match="as asked"):
        rpc.rpc_sync("w0", functions.fail, args=(TypeError, "as asked"))
    with pytest.raises(rpc.RemoteException, match="Odd"):
        rpc.rpc_sync("w1", functions.fail_odd)
    with pytest.raises(TypeError, match="cannot pickle '_thread.lock' object"):
        rpc.rpc_sync("w1", functions.give_unpicklable)
    with pytest.raises(TypeError, match="cannot pickle"):
        rpc.rpc_sync("w1", functions.give_back, args=(threading.Lock(),))
    assert issubclass(rpc.RemoteException, RuntimeError)


def test_a_function_that_the_other_side_lacks_says_so(world):
    there = sys.modules["torch_rpc_functions"]
    there.only_here = lambda: None
    there.only_here.__qualname__ = there.only_here.__name__ = "only_here"
    there.only_here.__module__ = "torch_rpc_functions"
    with pytest.raises(AttributeError, match="Ensure that UDFs are defined on both caller and callee modules"):
        rpc.rpc_sync("w1", there.only_here)


def test_timeouts_are_of_the_call_the_default_or_none(world):
    text = "RPC ran for more than set timeout"
    with pytest.raises(RuntimeError, match=r"RPC ran for more than set timeout \(100 ms\)"):
        rpc.rpc_sync("w1", functions.sleep, args=(0.5,), timeout=0.1)
    with pytest.raises(RuntimeError, match=text):
        rpc.rpc_async("w1", functions.sleep, args=(0.5,), timeout=0.1).wait()
    assert rpc.get_rpc_timeout() == 60
    rpc._set_rpc_timeout(0.1)
    try:
        with pytest.raises(RuntimeError, match=text):
            rpc.rpc_sync("w1", functions.sleep, args=(0.5,))
        assert rpc.rpc_sync("w1", functions.sleep, args=(0.3,), timeout=0) == 0.3
        assert rpc.rpc_sync("w1", functions.sleep, args=(0.3,), timeout=30) == 0.3
    finally:
        rpc._set_rpc_timeout(60)
    reference = rpc.remote("w1", functions.sleep, args=(0.5,))
    with pytest.raises(RuntimeError, match=text):
        reference.to_here(0.01)
    assert reference.to_here() == 0.5
    late = rpc.remote("w1", functions.sleep, args=(0.5,), timeout=0.1)  # 92 and 100: one outcome, also later
    for _ in range(3):
        with pytest.raises(RuntimeError, match="RRef creation"):
            late.to_here()
    with pytest.raises(ValueError, match="-1 for the default"):
        rpc.rpc_sync("w1", functions.sleep, args=(0,), timeout=-3)


def test_workers_and_functions_that_do_not_exist_are_refused(world):
    with pytest.raises(RuntimeError, match="Unknown destination worker w9. The workers of this world are"):
        rpc.rpc_sync("w9", torch.add, args=(1, 2))
    with pytest.raises(RuntimeError, match="Unknown destination worker 64"):
        rpc.remote(64, torch.add, args=(1, 2))
    with pytest.raises(ValueError, match="Cannot get WorkerInfo"):
        rpc.rpc_sync(None, torch.add, args=(1, 2))
    with pytest.raises(TypeError, match="function should be callable"):
        rpc.rpc_sync("w1", 3)
    with pytest.raises(RuntimeError, match='no function "unheard" is registered there'):
        rpc.rpc_sync("w1", "unheard")
    with pytest.raises(RuntimeError, match="already initialized"):
        rpc.init_rpc("again", rank=0, world_size=1)


def test_an_async_function_is_answered_when_its_future_is_done(world):
    x = torch.ones(2)
    assert rpc.rpc_sync("w1", functions.add_in_chain, args=("w2", x, 1, 2)).tolist() == [4, 4]
    assert rpc.remote("w1", functions.add_in_chain, args=("w0", x, 1, 2)).to_here().tolist() == [4, 4]
    with pytest.raises(RuntimeError, match="must return a torch.futures.Future object"):
        rpc.rpc_sync("w1", functions.no_future)


def test_94_a_broker_that_answers_late_loses_no_reference(world, broker):
    before = rpc.rpc_sync("w1", functions.values_here)
    for number in range(3):
        broker.process.send_signal(signal.SIGSTOP)
        back = threading.Timer(0.3, broker.process.send_signal, [signal.SIGCONT])
        back.start()
        reference = functions.make_at("w1", number)
        assert rpc.rpc_sync("w2", functions.fetch, args=(reference,)) == number
        back.join()
    del reference
    until(lambda: rpc.rpc_sync("w1", functions.values_here) <= before)


def test_97_futures_chain_and_fail_and_the_first_error_is_raised_for_all(world):
    future = rpc.rpc_async("w1", functions.give_back, args=(0,))
    for _ in range(20):
        future = future.then(lambda done: done.wait() + 1)
    assert future.wait() == 20
    seen = []
    failing = rpc.rpc_async("w1", functions.fail, args=(ValueError, "as asked"))
    failing.add_done_callback(seen.append)
    chained = failing.then(lambda done: done.wait())
    with pytest.raises(ValueError, match="as asked"):
        failing.wait()
    with pytest.raises(RuntimeError, match="ValueError"):  # torch's words for an error of a callback
        chained.wait()
    assert len(seen) == 1
    with pytest.raises(Exception, match="division by zero"):
        rpc.rpc_async("w1", functions.give_back, args=(0,)).then(lambda done: 1 / done.wait()).wait()
    with pytest.raises(ValueError, match="as asked"):
        torch.futures.wait_all([rpc.rpc_async("w2", functions.give_back, args=(1,)),
                                rpc.rpc_async("w1", functions.fail, args=(ValueError, "as asked")),
                                rpc.rpc_async("w1", functions.fail, args=(TypeError, "too"))])


# ---------------------------------------------------------------------------------------------- with workers of C++

needs_cpp = pytest.mark.skipif(not CPP, reason="SHMBROKER_RPC_WORKER names no worker of C++")


@needs_cpp
def test_python_calls_functions_of_cpp_with_plain_values_and_buffers(world):
    assert rpc.rpc_sync("cpp", "add", args=(1, 2)) == 3
    assert rpc.rpc_sync("cpp", "turn", args=({"a": [1.0, -2.5], "b": []},)) == {"a": [-1.0, 2.5], "b": []}
    for size in (10, 300_000):
        grown = rpc.rpc_sync("cpp", "grow", args=(bytes([3]) * size,))
        assert bytes(grown) == bytes([3]) * size + bytes([7])
    assert bytes(rpc.rpc_sync("cpp", "grow", args=(torch.arange(3, dtype=torch.uint8).numpy(),))) == bytes([0, 1, 2, 7])
    counter = rpc.remote("cpp", "Counter", args=(40,))
    assert rpc.rpc_sync("cpp", "Counter.add", args=(counter, 2)) == 42
    assert rpc.remote("cpp", "add", args=(4, 5)).to_here() == 9
    with pytest.raises(ValueError, match="as asked"):
        rpc.rpc_sync("cpp", "refuse", args=("as asked",))
    with pytest.raises(ValueError, match="takes 2 arguments"):
        rpc.rpc_sync("cpp", "add", args=(1,))
    with pytest.raises(RuntimeError, match="unheard"):
        rpc.rpc_sync("cpp", "unheard")
    with pytest.raises(TypeError, match="is no plain value"):
        rpc.rpc_sync("cpp", "add", args=(1, object()))


@needs_cpp
def test_cpp_calls_functions_of_python_with_plain_values_and_buffers(world):
    for worker in ("w1", "w0"):
        assert rpc.rpc_sync("cpp", "call_python", args=(worker,)) == [
            "xx", "200000", "100000", "ValueError: as asked", "no function", "reference"]


def test_plain_values_come_back_as_they_were():
    from shmbroker.torch.rpc import plain

    values = [None, True, False, 0, 127, 128, -1, -32, -33, 2**63 - 1, 2**64 - 1, -(2**63), 1.5, "", "x" * 31, "x" * 32,
              "x" * 300, "ü" * 40000, b"", b"x" * 255, b"x" * 256, [], list(range(15)), list(range(16)), [1] * 70000,
              {}, {str(i): i for i in range(15)}, {i: [i] for i in range(16)}, {i: i for i in range(70000)}]
    packed = plain.Packer(None, lambda value: None).pack(values).payload()[0]
    assert plain.Unpacker((bytearray(packed), (), ()), None).value() == values
    for cut in range(1, 200):
        with pytest.raises((plain.Malformed, UnicodeDecodeError)):
            plain.Unpacker((bytearray(packed[:cut]), (), ()), None).value()
    for wrong in (2**64, -(2**63) - 1):
        with pytest.raises(OverflowError):
            plain.Packer(None, lambda value: None).pack(wrong)
    deep = []
    for _ in range(600):
        deep = [deep]
    with pytest.raises(ValueError, match="nested"):
        plain.Packer(None, lambda value: None).pack(deep)
