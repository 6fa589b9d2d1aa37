# SPDX-License-Identifier: Apache-2.0
"""Ranks that shmbroker.torch.spawn starts, by each start method. Numbers are those of docs/conformance.md.

A rank imports torch only where its function needs it, so most cases use the functions of spawn_functions.py.
"""
import contextlib
import importlib
import inspect
import os
import pickle
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings

import psutil
import pytest

torch = pytest.importorskip("torch")
import shmbroker
import spawn_functions as functions
import torch_spawn_functions as torch_functions
from shmbroker.torch.spawn import (ProcessContext, ProcessException, ProcessExitedException, ProcessRaisedException,
                                   SpawnContext, spawn, start_processes)

pytestmark = pytest.mark.usefixtures("broker")
stock = importlib.import_module("torch.multiprocessing.spawn")
METHODS = ["spawn", "forkserver", "fork"]


@pytest.fixture(params=METHODS)
def method(request):
    return request.param


def failure_of(*arguments, **options):
    with pytest.raises(stock.ProcessException) as caught:
        start_processes(*arguments, **options)
    assert isinstance(caught.value, ProcessException) and isinstance(caught.value, shmbroker.ProcessException)
    return caught.value


def stock_failure(function, *arguments):
    with pytest.raises(Exception) as caught:
        stock.start_processes(function, arguments, 2, start_method="fork")
    return caught.value


def await_files(path, count):
    while not all(os.path.exists(f"{path}.{number}.ready") for number in range(count)):
        time.sleep(0.01)
    numbers = range(count)
    pids = []
    for number in numbers:
        with open(f"{path}.{number}.ready") as file:
            pids.append(int(file.read()))
    return pids


def await_gone(pids):
    """pytest's limit ends a wait without end."""
    def there(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
        return False
    while any(there(pid) for pid in pids):
        time.sleep(0.01)


# ------------------------------------------------------------------------------------------ the scenarios of torch

def test_the_functions_take_what_those_of_torch_take():
    for name in ("spawn", "start_processes"):
        ours, theirs = ([(one.name, one.kind, one.default) for one in inspect.signature(of).parameters.values()]
                        for of in (globals()[name], getattr(stock, name)))
        assert ours[:-1] == theirs and ours[-1][0] == "options", name


def test_29_ranks_that_return_are_a_success(method):
    assert start_processes(functions.nothing, (), 2, start_method=method) is None


def test_30_join_is_true_again_and_again(method):
    context = start_processes(functions.nothing, (), 2, join=False, start_method=method)
    assert isinstance(context, stock.ProcessContext) and SpawnContext is ProcessContext
    while not context.join(timeout=0.01):
        pass
    assert context.join() and context.join(-1) and context.join(timeout=None)
    assert context.sentinels == {} and [process.exitcode for process in context.processes] == [0, 0]


def test_31_the_first_argument_is_the_rank(method):
    queue = torch.multiprocessing.get_context("spawn").SimpleQueue()
    start_processes(functions.put_rank, (queue,), 2, start_method=method)
    assert {queue.get(), queue.get()} == {0, 1}


@pytest.mark.parametrize("which", [0, 1])
def test_32_the_text_of_an_exception_is_that_of_torch(method, which):
    error = failure_of(functions.raise_in, ((which,),), 2, start_method=method)
    assert type(error) is ProcessRaisedException and isinstance(error, stock.ProcessRaisedException)
    theirs = str(stock_failure(functions.raise_in, (which,)))
    # torch's traceback begins with two lines of its own, which call the function.
    without_call = re.sub(r'  File ".*torch/multiprocessing/spawn.py", line \d+, in _wrap\n.*\n', "", theirs)
    assert str(error) == without_call != theirs
    assert (error.error_index, error.pid) == (which, error.error_pid)


def test_33_of_two_that_raise_one_is_named(method):
    error = failure_of(functions.raise_in, ((0, 1),), 2, start_method=method)
    assert str(error).rstrip().endswith(("process 0", "process 1"))


@pytest.mark.parametrize("function, argument, code, name", [
    (functions.die_of, signal.SIGABRT, -6, "SIGABRT"), (functions.die_of, signal.SIGKILL, -9, "SIGKILL"),
    (functions.exit_with, 123, 123, None)])
def test_34_35_the_sentence_of_an_end_is_that_of_torch(method, function, argument, code, name):
    context = start_processes(function, (argument,), 2, join=False, start_method=method)
    with pytest.raises(stock.ProcessExitedException) as caught:
        while not context.join():
            pass
    theirs = stock_failure(function, argument)
    assert str(caught.value) == str(theirs)
    for field in ("error_index", "exit_code", "signal_name", "msg"):
        assert getattr(caught.value, field) == getattr(theirs, field), field
    assert (caught.value.exit_code, caught.value.signal_name) == (code, name)
    assert not any(psutil.pid_exists(pid) for pid in context.pids())


def test_36_a_failure_after_the_return_of_another_rank_is_reported(method):
    error = failure_of(functions.raise_late, (), 2, start_method=method)
    assert str(error).endswith("legitimate exception from process 1\n")


def test_37_the_kinds_of_failures_are_those_of_torch(method):
    context = start_processes(functions.wait_for_ever, (), 2, join=False, start_method=method)
    context.processes[0].terminate()
    with pytest.raises(ProcessExitedException, match="process 0 terminated with signal SIGTERM"):
        context.join()
    error = failure_of(functions.exit_with, (12,), 1, start_method=method)
    assert type(error) is ProcessExitedException and error.exit_code == 12


def test_38_both_exceptions_survive_pickling_with_all_fields(method):
    for error in (failure_of(functions.raise_in, ((0,),), 2, start_method=method),
                  failure_of(functions.exit_with, (9,), 2, start_method=method)):
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error) and str(again) == str(error) and again.failures == error.failures
        for field in ("msg", "error_index", "pid", "error_pid", "exit_code", "signal_name"):
            assert getattr(again, field, None) == getattr(error, field, None), field


def test_39_the_ranks_of_a_rank_end_with_it(method, tmp_path):
    path = str(tmp_path / "pid")
    error = failure_of(torch_functions.grandchildren, (path,), 1, start_method=method, grace=0.5)
    assert error.signal_name == "SIGTERM"
    assert not any(psutil.pid_exists(pid) for pid in await_files(path, 2))


def test_40_grace_period_lets_the_others_end_by_themselves(method, tmp_path):
    context = start_processes(functions.exit_at, (str(tmp_path / "go"),), 2, join=False, start_method=method)
    assert not context.join(timeout=0.01, grace_period=60)
    (tmp_path / "go").touch()
    with pytest.raises(ProcessExitedException, match="process 0 terminated with exit code 123") as caught:
        context.join()
    assert [one.rank for one in caught.value.failures] == [0]


def test_41_44_a_rank_that_ignores_sigterm_holds_nobody_and_is_killed(method):
    context = start_processes(functions.ignore_term, (), 2, join=False, start_method=method, grace=0.5)
    assert not context.join(timeout=0)
    with pytest.raises(ProcessRaisedException) as caught:
        context.join()
    assert caught.value.error_index == 0
    assert [(one.rank, one.signal_name) for one in caught.value.failures] == [(0, ""), (1, "SIGKILL")]


@pytest.mark.parametrize("start_method, imports", [("forkserver", 1), ("spawn", 3)])
def test_42_the_fork_server_imports_the_modules_once_for_all_ranks(start_method, imports, tmp_path, monkeypatch):
    (tmp_path / "counted.py").write_text(
        f"open({str(tmp_path / 'imports')!r}, 'a').write('x')\ndef work(rank):\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    counted = importlib.import_module("counted")
    (tmp_path / "imports").write_text("")
    start_processes(counted.work, (), 3, start_method=start_method)
    assert len((tmp_path / "imports").read_text()) == imports
    del sys.modules["counted"]


def test_43_keyboard_interrupt_in_a_rank_is_a_failure(method):
    error = failure_of(functions.interrupt_self, (), 2, start_method=method)
    assert error.error_index == 0 and "KeyboardInterrupt" in str(error)


def test_43_sigint_to_one_rank_is_a_failure(method, tmp_path):
    context = start_processes(functions.wait_for_ever, (str(tmp_path / "pid"),), 1, join=False, start_method=method)
    while not os.path.exists(tmp_path / "pid.0.ready"):
        time.sleep(0.01)
    os.kill(context.pids()[0], signal.SIGINT)
    with pytest.raises(stock.ProcessException):
        context.join()


def test_45_a_text_of_300_kb_arrives_whole(method):
    error = failure_of(functions.raise_long, (300_000,), 1, start_method=method)
    assert str(error).endswith("ValueError: " + "x" * 300_000 + " end\n")


def test_46_a_real_time_signal_is_named(method):
    error = failure_of(functions.die_of, (37,), 1, start_method=method)
    assert error.exit_code == -37 and "37" in str(error) and error.signal_name.startswith("SIGRTMIN")


@pytest.mark.parametrize("method, at", [("spawn", "work"), ("spawn", "start"), ("forkserver", "work"), ("fork", "work")])
def test_47_ranks_end_with_a_parent_that_is_killed(method, at, tmp_path):
    path = str(tmp_path / "pid")
    program = os.path.join(os.path.dirname(__file__), "torch_spawn_parent.py")
    parent = subprocess.Popen([sys.executable, program, "stubborn", method, path, "3", "wait"], stdout=subprocess.PIPE,
                              text=True)
    told = [int(word) for word in parent.stdout.readline().split()]
    assert len(told) == 3
    if at == "work":
        await_files(path, 3)
    tree = [one.pid for one in psutil.Process(parent.pid).children(recursive=True)]
    parent.kill()
    parent.communicate()
    await_gone(tree + told)


def test_48_ranks_outlive_the_thread_that_started_them(method):
    contexts = []
    thread = threading.Thread(target=lambda: contexts.append(start_processes(
        functions.raise_late, (), 2, join=False, start_method=method)))
    thread.start()
    thread.join()
    with pytest.raises(ProcessRaisedException, match="process 1"):  # so it was not ended with the thread
        contexts[0].join()


def test_49_the_earlier_of_two_failures_is_named_and_both_are_listed(method, tmp_path):
    error = failure_of(functions.raise_behind, (str(tmp_path / "pid"),), 2, start_method=method, voluntary=30)
    assert error.error_index == 1 and [one.rank for one in error.failures] == [1, 0]


def test_50_nothing_is_left_after_a_failed_join(method, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)

    def left():
        return sorted(os.listdir("/proc/self/fd")), os.listdir(tmp_path), psutil.Process().children(recursive=True)
    failure_of(functions.exit_with, (3,), 2, start_method=method)
    before = left()
    context = start_processes(functions.raise_in, ((0,),), 3, join=False, start_method=method)
    assert len(context.sentinels) == 3
    for _ in range(2):
        with pytest.raises(ProcessRaisedException, match="process 0"):
            context.join()
    assert left() == before


# ---------------------------------------------------------------------------------- more that torch's ranks can do

def test_exit_code_0_before_the_function_has_returned_is_a_failure(method):
    error = failure_of(functions.exit_with, (0,), 2, start_method=method)
    assert type(error) is ProcessExitedException and (error.error_index, error.exit_code) == (0, 0)
    assert "process 0 exited with code 0 without finishing its function" in str(error)


def test_the_text_of_sys_exit_is_on_stderr_and_its_code_is_1(method, capfd):
    error = failure_of(functions.leave_with, ("there is no data",), 1, start_method=method)
    assert str(error) == "process 0 terminated with exit code 1"
    assert "there is no data" in capfd.readouterr().err


def test_an_exception_that_cannot_be_made_again_arrives(method):
    error = failure_of(functions.raise_stubborn, (), 1, start_method=method)
    assert error.failure.type == "spawn_functions.Stubborn" and "in raise_stubborn" in str(error)


def test_a_result_that_cannot_be_pickled_is_dropped(method):
    assert start_processes(torch_functions.give_lambda, (), 1, start_method=method) is None


@pytest.mark.parametrize("how", ["raise", "exit", "kill"])
@pytest.mark.parametrize("group", ["gloo", "ranks"])
def test_the_rank_that_failed_is_named_and_not_those_that_waited_for_it(group, how, tmp_path):
    for number in range(3):
        path = str(tmp_path / f"{number}")
        error = failure_of(torch_functions.fail_beside_barrier, (how, group, path), 3, start_method="fork")
        assert error.error_index == 1, str(error)
        assert {"raise": "the cause", "exit": "exit code 9", "kill": "SIGKILL"}[how] in str(error)


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_the_rank_that_was_killed_beside_gloo_is_named_by_the_other_methods_too(start_method, tmp_path):
    error = failure_of(torch_functions.fail_beside_barrier, ("kill", "gloo", str(tmp_path / "meet")), 3,
                       start_method=start_method)
    assert (error.error_index, error.signal_name) == (1, "SIGKILL")


@pytest.mark.parametrize("strategy", sorted(torch.multiprocessing.get_all_sharing_strategies()))
def test_tensors_are_arguments_and_keep_their_storage(method, strategy):
    before = torch.multiprocessing.get_sharing_strategy()
    torch.multiprocessing.set_sharing_strategy(strategy)
    try:
        whole, base = torch.zeros(2).share_memory_(), torch.zeros(6).share_memory_()
        start_processes(torch_functions.fill, (whole, [base, base]), 2, start_method=method)
    finally:
        torch.multiprocessing.set_sharing_strategy(before)
    assert whole.tolist() == [1, 2] and base.tolist() == [2, 2, 0, 0, 0, 0]


def test_ranks_have_what_their_parent_has_installed(method):
    code = """if True:
        import shmbroker.torch, sys
        shmbroker.torch.install()
        import torch, torch_spawn_functions as functions
        from shmbroker.mp import place
        if __name__ == "__main__":
            whole, base = torch.zeros(2).share_memory_(), torch.zeros(4).share_memory_()
            queue = torch.multiprocessing.get_context("spawn").SimpleQueue()
            torch.multiprocessing.start_processes(functions.use_installed, (whole, base, queue), 2,
                                                  start_method=sys.argv[1])
            print(whole.tolist(), base.tolist(), [queue.get() for _ in range(2)] == [(True, place.address(), 8.0)] * 2)
            print(type(torch.multiprocessing.start_processes(functions.use_installed, nprocs=0, join=False)).__module__)
    """
    done = subprocess.run([sys.executable, "-c", code, method], cwd=os.path.dirname(__file__), timeout=120, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert done.stdout == "[1.0, 2.0] [0.0, 1.0, 1.0, 0.0] True\nshmbroker.torch.spawn\n", done.stderr


def test_many_tensors_take_one_descriptor_each_for_all_ranks(method):
    tensors = [torch.zeros(2).share_memory_() for _ in range(100)]
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 180, limit[1]))
    try:
        start_processes(torch_functions.add_to_all, (tensors,), 2, start_method=method)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    assert all(tensor.tolist() == [1, 1] for tensor in tensors)


def test_ranks_talk_by_gloo(method, tmp_path):
    out = torch.zeros(2, 4).share_memory_()
    start_processes(torch_functions.reduce_all, (2, str(tmp_path / "meet"), out), 2, start_method=method)
    assert out.eq(1).all()


def test_a_rank_has_children_and_ranks_of_its_own_and_loads_data(method):
    out = torch.zeros(3).share_memory_()
    start_processes(torch_functions.start_children, (out,), 1, start_method=method)
    assert out.tolist() == [3, 3 + 4, 140]


@pytest.mark.parametrize("method", ["forkserver", "fork"])
def test_random_numbers_differ_between_ranks_of_the_fork_server(method):
    out = torch.zeros(2, 3, dtype=torch.float64).share_memory_()
    start_processes(torch_functions.draw, (out,), 2, start_method=method)
    same = (out[0] == out[1]).tolist()
    assert same == ([True, True, False] if method == "fork" else [False, False, False])  # as torch's and Python's fork


def test_what_a_module_seeds_when_it_is_imported_stays_seeded(tmp_path, monkeypatch):
    (tmp_path / "seeded.py").write_text(
        "import random, numpy, torch\nrandom.seed(1), numpy.random.seed(1), torch.manual_seed(1)\n"
        "from torch_spawn_functions import draw\ndef work(rank, out):\n    draw(rank, out)\n")
    monkeypatch.syspath_prepend(tmp_path)
    seeded = importlib.import_module("seeded")
    out = torch.zeros(3, 3, dtype=torch.float64).share_memory_()
    start_processes(seeded.work, (out,), 2, start_method="forkserver")
    importlib.reload(seeded)
    seeded.work(2, out)  # what a fresh import draws
    assert out[0].equal(out[2]) and out[1].equal(out[2])
    del sys.modules["seeded"]


def test_the_environment_is_that_of_the_parent_and_multiprocessing_knows_it(method, monkeypatch):
    monkeypatch.setenv("MASTER_PORT", "29501")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.delenv("RANK", raising=False)
    queue = torch.multiprocessing.get_context("spawn").SimpleQueue()
    start_processes(functions.describe, (queue,), 2, start_method=method, env={"EXTRA": "1"})
    mine = {name: value for name, value in os.environ.items() if not name.startswith("SHMBROKER_")}
    for rank, environment, parent, alive, name, identity in sorted(queue.get() for _ in range(2)):
        assert environment == {**mine, "EXTRA": "1"}
        assert (parent, alive, name, identity) == (os.getpid(), True, f"rank-{rank}", (rank + 1,))


def test_a_sentinel_tells_of_its_rank_alone(method):
    context = start_processes(functions.raise_late, (), 2, join=False, start_method=method)
    from multiprocessing.connection import wait
    assert [context.sentinels[one] for one in wait(list(context.sentinels))][0] in (0, 1)
    context.processes[0].join()
    assert not context.processes[0].is_alive()
    with pytest.raises(ProcessRaisedException):
        context.join()


def test_error_queues_and_files_are_there(method):
    context = start_processes(functions.raise_in, ((1,),), 2, join=False, start_method=method)
    with pytest.raises(ProcessRaisedException) as caught:
        context.join()
    assert [one.empty() for one in context.error_queues] == [True, False]
    assert str(caught.value).endswith(context.error_queues[1].get())
    assert context.error_files == [None, None]


def test_a_daemon_rank_ends_with_the_normal_exit_of_its_parent(method, tmp_path):
    path = str(tmp_path / "pid")
    program = os.path.join(os.path.dirname(__file__), "torch_spawn_parent.py")
    done = subprocess.run([sys.executable, program, "sleep_with_pid", method, path, "2", "leave"], timeout=120,
                          stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0
    await_gone([int(word) for word in done.stdout.split()])


def test_a_daemon_rank_may_load_data():
    out = torch.zeros(1).share_memory_()
    context = start_processes(torch_functions.daemon_loads, (out,), 1, join=False, daemon=True, start_method="fork")
    assert context.processes[0].daemon
    while out[0] != 140:
        time.sleep(0.01)
    context.terminate()
    with pytest.raises(ProcessExitedException):
        context.join()


def test_no_ranks_are_a_success():
    assert spawn(functions.nothing, (), 0) is None
    context = start_processes(functions.nothing, (), 0, join=False)
    assert context.join() and context.pids() == []


def test_spawn_always_spawns_and_warns_in_the_words_of_torch():
    def words(function):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert function(functions.nothing, (), 0, start_method="fork") is None
        return [(one.category, str(one.message)) for one in caught]
    assert words(spawn) == words(stock.spawn) != []
