# SPDX-License-Identifier: Apache-2.0
"""shmbroker.torch.rpc from the beginning of a world to its end: each case has a world of its own. The programs of torch's
page on `remote` are among them."""
import gc
import os
import re
import signal
import sys
import types

import pytest
from torch_rpc_world import ended, free_port, functions, join, rpc, start, start_worker, stop, torch, until

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


def test_the_program_of_our_page_runs_in_two_shells(broker, tmp_path):
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    with open(os.path.join(root, "docs", "torch.md"), encoding="utf-8") as file:
        [text] = re.findall(r"^```python\n(.*?)^```", file.read().partition("\n## rpc\n")[2], flags=re.M | re.S)
    path = tmp_path / "program.py"
    path.write_text(text)
    port = free_port()
    processes = [start([sys.executable, str(path), str(rank)], port) for rank in range(2)]
    assert [ended(process) for process in processes] == ["tensor([4., 4.])\n", ""]


def test_82_88_101_values_are_counted_and_cycles_are_listed_and_end_with_the_world(broker):
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
    rpc.shutdown(graceful=False)  # 88: behind traffic, and nobody is asked
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


def test_84_93_95_a_creation_that_comes_too_late_has_failed_and_one_without_a_limit_arrives(broker):
    port = free_port()
    stopped, third = start_worker("w1", 1, 3, port), start_worker("w2", 2, 3, port)
    join(port, 3)
    try:
        rpc.rpc_sync("w1", torch.add, args=(1, 2))
        known = functions.make_at("w1", 1)
        assert known._get_type() is int
        stop(stopped.pid)
        assert known._get_type(timeout=5) is int  # 84: nobody is asked a second time
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
        del lost, delayed, use, known
        gc.collect()
        until(lambda: rpc.rpc_sync("w1", functions.values_here) == 0)
    finally:
        stopped.send_signal(signal.SIGCONT)
        rpc.shutdown(timeout=60)
    ended(stopped)
    ended(third)


def test_89_98_99_the_death_of_a_worker_ends_calls_with_its_name_and_frees_what_it_held(broker):
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


def test_80_86_87_88_96_after_shutdown_everything_says_so_and_a_new_world_may_begin(broker, tmp_path):
    with pytest.raises(RuntimeError, match="RPC has not been initialized"):
        rpc.rpc_sync("w1", torch.add, args=(1, 2))
    printed, before = set(), None
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
        if before is not None:
            with pytest.raises(RuntimeError, match="Cannot call fork an UserRRef after deletion"):
                rpc.rpc_sync("w1", functions.fetch, args=(before,))
        before = reference
        heavy = [rpc.rpc_async("w1", functions.multiply, args=(300,)) for _ in range(20)]
        light = [rpc.rpc_async("w1", functions.give_back, args=(number,)) for number in range(1000)]
        mark = tmp_path / f"mark{round}"
        rpc.rpc_sync("w1", functions.hop, args=(str(mark), "w0", 20))
        rpc.shutdown(graceful=True, timeout=30)
        assert mark.read_text() == "arrived" and all(one.done() for one in heavy + light)
        assert [one.value() for one in light] == list(range(1000)) and heavy[0].value() == 300 ** 3
        ended(other)
        with pytest.raises(RuntimeError, match=r"Cannot call to_here\(\) on it after deletion"):
            reference.to_here()
    # 80: the numbers count in the same way each time
    assert printed == {"UserRRef(RRefId = GloballyUniqueId(created_on=0, local_id=1), "
                       "ForkId = GloballyUniqueId(created_on=0, local_id=2))"}
    rpc.init_rpc("alone", rank=0, world_size=1, rpc_backend_options=rpc.RpcBackendOptions(init_method=f"file:///tmp/{port}"))
    rpc.shutdown(graceful=False)


def test_what_init_is_given_wrongly_is_refused(broker, monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.delenv("MASTER_PORT", raising=False)
    with pytest.raises(ValueError, match="environment variable MASTER_PORT expected, but not set"):
        rpc.init_rpc("w0", rank=0, world_size=1)
    with pytest.raises(RuntimeError, match="No rendezvous handler for pigeon://"):
        rpc.init_rpc("w0", rank=0, world_size=1, rpc_backend_options=rpc.RpcBackendOptions(init_method="pigeon://x"))
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    for wrong, sentence in (({"name": 5}, "name is a str, the name of this worker, not 'int'"),
                            ({"rank": "0"}, "rank is an int, not 'str'"), ({"world_size": 1.5}, "world_size is an int or"),
                            ({"rpc_backend_options": 5}, "rpc_backend_options is a TensorPipeRpcBackendOptions or")):
        with pytest.raises(TypeError, match=sentence):
            rpc.init_rpc(**{"name": "w", "rank": 0, "world_size": 1, **wrong})
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ValueError, match="the rank of this worker is neither given nor in the variable RANK: ranks count"):
        rpc.init_rpc("w", rank=-1, world_size=2)
    with pytest.raises(ValueError, match="name"):
        rpc.init_rpc("a name with blanks", rank=0, world_size=1)


AGAIN = '''
import os, signal, time, torch, shmbroker
import shmbroker.torch.rpc as rpc
rank = int(os.environ["RANK"])
def told(call):
    try:
        call()
    except RuntimeError as error:
        assert error.status == "session_lost" and "init_rpc()" in str(error), error
    else:
        raise AssertionError("nothing was raised")
rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
if rank == 0:
    held = rpc.remote("worker1", torch.ones, args=(300000,))
    print(held.to_here().sum().item())
    pending = rpc.rpc_async("worker1", time.sleep, args=(2,), timeout=0)  # perhaps under way in worker1's only thread
    os.kill(shmbroker.status().pid, signal.SIGKILL)
    told(pending.wait)
    for size in 2, 300000:
        told(lambda: rpc.rpc_sync("worker1", torch.sum, args=(torch.ones(size),)))
        told(lambda: rpc.remote("worker1", torch.sum, args=(torch.ones(size),)).to_here())
    told(held.to_here)
told(rpc.shutdown)
rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
if rank == 0:
    print(rpc.rpc_sync("worker1", torch.sum, args=(torch.ones(300000),)).item())
rpc.shutdown()
'''


def test_a_world_whose_broker_has_gone_says_so_and_the_next_one_works(private, tmp_path):
    path, port = tmp_path / "again.py", free_port()
    path.write_text(AGAIN)
    workers = [start([sys.executable, str(path)], port, RANK=str(rank)) for rank in range(2)]
    assert ended(workers[0]) == "300000.0\n300000.0\n"
    ended(workers[1])


def test_a_call_that_ends_after_its_world_has_been_left_has_nobody_to_tell():
    """As when the broker has died meanwhile, and the program has called shutdown()."""
    from shmbroker import _core
    from shmbroker.torch.rpc import service
    kept = types.SimpleNamespace(value=1, plain=False, snapshot=lambda: None)
    told = []
    request = types.SimpleNamespace(kind=_core.REQUEST_FETCH, object=kept, fail=lambda *words: told.append(words))
    service.serve(request)
    assert not told
    kept.snapshot = lambda: 1 // 0  # any other failure is told
    service.serve(request)
    assert len(told) == 1
