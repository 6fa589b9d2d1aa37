# SPDX-License-Identifier: Apache-2.0
"""Calls that spawn refuses, and failures before the function of a rank runs: a clear exception for each."""
import os
import subprocess
import sys
import textwrap

import pytest
import shmbroker
import spawn_functions as functions
from shmbroker import Invalid, ProcessException, ProcessRaisedException, spawn

pytestmark = pytest.mark.usefixtures("broker")
BY_PROGRAM = ["spawn", "forkserver"]


def run(tmp_path, text, *arguments):
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(text))
    done = subprocess.run([sys.executable, str(program), *arguments], capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("method", BY_PROGRAM)
def test_a_call_outside_the_guard_says_what_to_write(tmp_path, method):
    status, told = run(tmp_path, """
        import sys, shmbroker
        def f(rank): pass
        shmbroker.spawn(f, (), 2, start_method=sys.argv[1])
        """, method)
    assert status == 1 and "if __name__ == '__main__':" in told and "RuntimeError" in told
    assert told.count("program.py") < 20  # no rank has started ranks again


@pytest.mark.parametrize("method", BY_PROGRAM)
def test_functions_and_classes_of_the_main_module_travel_both_ways(tmp_path, method):
    status, told = run(tmp_path, """
        import sys, shmbroker
        class Point:
            def __init__(self, x): self.x = x
        def f(rank, point): return Point(point.x + rank)
        if __name__ == "__main__":
            context = shmbroker.spawn(f, (Point(5),), 2, join=False, start_method=sys.argv[1])
            print(context.join(), [one.x for one in context.results()])
        """, method)
    assert (status, told) == (0, "True [5, 6]\n")


@pytest.mark.parametrize("method", BY_PROGRAM)
def test_a_function_that_the_rank_does_not_have_is_named(tmp_path, method):
    status, told = run(tmp_path, """
        import sys, shmbroker
        if __name__ == "__main__":
            def f(rank): pass
            shmbroker.spawn(f, (), 2, start_method=sys.argv[1])
        """, method)
    assert status == 1 and "cannot load its function or arguments" in told and "attribute 'f'" in told


@pytest.mark.parametrize("method", BY_PROGRAM)
def test_a_main_module_that_fails_in_the_rank_is_its_failure(tmp_path, method):
    status, told = run(tmp_path, """
        import sys, shmbroker
        if __name__ != "__main__": raise OSError("only once")
        def f(rank): pass
        shmbroker.spawn(f, (), 2, start_method=sys.argv[1])
        """, method)
    assert status == 1 and "OSError: only once" in told


def test_the_fork_server_refuses_modules_that_start_threads(tmp_path):
    status, told = run(tmp_path, """
        import threading, time, shmbroker
        def f(rank): pass
        if __name__ == "__main__":
            shmbroker.spawn(f, (), 2, start_method="forkserver")
        else:
            threading.Thread(target=time.sleep, args=(60,), daemon=True, name="at-import").start()
        """)
    assert status == 1 and "started a thread (at-import)" in told


@pytest.mark.parametrize("daemon, told_last", [("True", "exit"), ("False", "exit of 0")])
def test_the_exit_of_the_parent_waits_for_ranks_or_ends_daemons(tmp_path, daemon, told_last):
    status, told = run(tmp_path, """
        import sys, time, shmbroker
        def f(rank, daemon):
            shmbroker.ranks.store.set("begun", b"")
            time.sleep(600 if daemon else 0.3)
            print("exit of", rank, flush=True)
        if __name__ == "__main__":
            daemon = sys.argv[1] == "True"
            shmbroker.spawn(f, (daemon,), 1, join=False, daemon=daemon, start_method="fork")
            print("exit", flush=True)
        """, daemon)
    assert status == 0 and told.splitlines()[-1] == told_last


@pytest.mark.parametrize("method", BY_PROGRAM)
def test_what_cannot_be_pickled_is_named(method):
    with pytest.raises(Invalid, match=r"function '.*<lambda>' cannot be pickled: .*top level of a module"):
        spawn(lambda rank: None, start_method=method)
    with pytest.raises(Invalid, match="argument of the ranks cannot be pickled: .*lock"):
        import threading
        spawn(functions.give_back, (threading.Lock(),), start_method=method)
    with pytest.raises(Invalid, match="argument of the ranks cannot be pickled"):
        spawn(functions.give_back, (shmbroker.connect(),), start_method=method)


@pytest.mark.parametrize("method", BY_PROGRAM)
def test_an_argument_that_the_broker_refuses_is_the_brokers_error(method):
    class Refused:
        def __reduce__(self):
            raise shmbroker.SessionLost("send a clone")
    with pytest.raises(shmbroker.SessionLost, match="^send a clone$"):
        spawn(functions.give_back, (Refused(),), start_method=method)


def test_a_lambda_and_a_local_object_reach_forked_ranks():
    lock = __import__("threading").Lock()
    context = spawn(lambda rank, held: held.locked(), (lock,), 2, join=False, start_method="fork")
    assert context.join() and context.results() == [False, False]


def test_a_result_that_cannot_be_pickled_is_the_ranks_exception():
    with pytest.raises(ProcessRaisedException, match="result of the function cannot be pickled"):
        spawn(functions.give_lambda, start_method="fork")


def test_a_result_of_more_than_16_mib_is_refused_with_advice():
    with pytest.raises(ProcessRaisedException, match="at most 16 MiB.*return large things as regions"):
        spawn(functions.give_bytes, (17 << 20,), start_method="fork")


def test_a_result_that_cannot_be_unpickled_here_is_named_and_the_others_are_there():
    context = spawn(functions.give_only_here, (), 1, join=False, start_method="fork")
    assert context.join()
    with pytest.raises(Invalid, match="result of rank 0 cannot be unpickled here: AttributeError: this class is not"):
        context.results()


@pytest.mark.parametrize("method", BY_PROGRAM)
def test_an_argument_that_cannot_be_unpickled_is_the_ranks_exception(method):
    with pytest.raises(ProcessRaisedException, match="cannot load its function or arguments: AttributeError"):
        spawn(functions.give_back, (functions.OnlyHere(),), 2, start_method=method)


@pytest.mark.parametrize("options, sentence", [
    ({"nprocs": 0}, "nprocs is 0"), ({"nprocs": -1}, "nprocs is -1"), ({"nprocs": 5000}, "nprocs is 5000"),
    ({"start_method": "thread"}, "start_method is 'thread'"), ({"output": "paper"}, "output is 'paper'"),
    ({"output": "files"}, "output to files needs a path"), ({"grace": -1}, "grace is -1"),
    ({"voluntary": float("nan")}, "voluntary is nan"), ({"timeout": -3}, "timeout is -3"),
    ({"timeout": 3, "join": False}, "timeout is for join=True"), ({"group": "a/b"}, "a/b"),
    ({"nnodes": 2, "node_rank": 2, "master_port": 29500}, "node_rank is 2 and nnodes 2"),
    ({"node_rank": -1}, "node_rank is -1 and nnodes 1: .* node_rank the number of this one, from 0 to nnodes - 1"),
    ({"nnodes": 2}, "nnodes is 2: .* Give the same master_addr and master_port"), ({"env": {"": "x"}}, "variable"),
    ({"limit_bytes": -1}, "limit_bytes is -1"), ({"master_port": 70000}, "master_port is 70000"),
])
def test_arguments_out_of_range_are_refused(options, sentence):
    with pytest.raises(Invalid, match=sentence):
        spawn(functions.nothing, **options)


@pytest.mark.parametrize("options, sentence", [
    ({"env": 5}, "env is a mapping of names to values, such as a dict, or None, not 'int'"),
    ({"env": {"A": 5}}, "the value of 'A' in env is a str, not 'int'"), ({"env": {5: "A"}}, "a name in env is a str"),
    ({"args": 5}, "args is a tuple or list of what the function gets"), ({"args": "x"}, "args is a tuple or list"),
    ({"nprocs": "2"}, "nprocs is an int, not 'str'"), ({"grace": "1"}, "grace is a number of seconds, not 'str'"),
    ({"group": b"g"}, "group is a str or None, not 'bytes'"), ({"directory": 5}, "directory is a path"),
    ({"limit_bytes": 1.5}, "limit_bytes is an int, not 'float'"), ({"master_port": "29500"}, "master_port is an int"),
])
def test_arguments_of_a_wrong_type_are_named(options, sentence):
    with pytest.raises(TypeError, match=sentence):
        spawn(functions.nothing, **options)


def test_what_is_no_function_and_a_rank_that_is_not_there_are_refused():
    with pytest.raises(TypeError, match="calls a function"):
        spawn("nothing")
    context = spawn(functions.nothing, (), 2, join=False, start_method="fork")
    context.join()
    with pytest.raises(Invalid, match="no local rank 2"):
        context.result(2)
    with pytest.raises(shmbroker.Closed):
        context.fileno()
    with pytest.raises(Invalid, match="timeout is -1"):
        context.join(timeout=-1)
    with pytest.raises(TypeError, match="timeout is a number of seconds, not 'str'"):
        context.join(timeout="1")
    with pytest.raises(TypeError, match="local_rank is an int, not 'NoneType'"):
        context.result(None)


def test_results_before_the_end_are_not_there():
    context = spawn(functions.wait_for_ever, (), 1, join=False, start_method="fork")
    with pytest.raises(shmbroker.NotFound, match="still run"):
        context.results()
    context.kill()
    with pytest.raises(ProcessException):
        context.join()


def test_without_a_broker_and_without_a_program_to_start_it_spawn_says_so(tmp_path):
    environment = {**os.environ, "SHMBROKER_SOCKET": str(tmp_path / "none"), "SHMBROKER_DAEMON": "/none"}
    text = "import shmbroker, spawn_functions as f; shmbroker.spawn(f.nothing, start_method='fork')"
    done = subprocess.run([sys.executable, "-c", text], cwd=os.path.dirname(__file__), capture_output=True, text=True,
                          env=environment, timeout=120)
    assert done.returncode == 1 and "shmbroker.errors.NoBroker" in done.stderr
    text = text.replace("start_method='fork'", "start_method='fork', no_group=True")
    done = subprocess.run([sys.executable, "-c", text], cwd=os.path.dirname(__file__), capture_output=True, text=True,
                          env=environment, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
