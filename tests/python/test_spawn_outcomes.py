# SPDX-License-Identifier: Apache-2.0
"""How ranks of Python functions end, by each start method: results, exceptions, exits and signals."""
import contextlib
import glob
import os
import pickle
import signal
import tempfile
import threading
import time

import psutil
import pytest
import shmbroker
import spawn_functions as functions
from shmbroker import ProcessException, ProcessExitedException, ProcessRaisedException, spawn

pytestmark = pytest.mark.usefixtures("broker")
METHODS = ["spawn", "forkserver", "fork"]


@pytest.fixture(params=METHODS)
def method(request):
    return request.param


def failure_of(*arguments, **options):
    with pytest.raises(ProcessException) as caught:
        spawn(*arguments, **options)
    return caught.value


def test_ranks_that_return_are_a_success(method):
    assert spawn(functions.nothing, (), 2, start_method=method) is None


def test_join_is_true_again_and_again_after_the_end(method):
    context = spawn(functions.number, (10,), 2, join=False, start_method=method)
    while not context.join(timeout=0.01):
        pass
    assert context.join() and context.join(0) and context.join(grace_period=1)
    assert context.results() == [0, 10]
    assert [process.exitcode for process in context.processes] == [0, 0]
    assert not any(process.is_alive() for process in context.processes)
    assert context.failures == ()


def test_the_first_argument_is_the_rank(method):
    import multiprocessing
    queue = multiprocessing.get_context("spawn").SimpleQueue()
    spawn(functions.put_rank, (queue,), 2, start_method=method)
    assert {queue.get(), queue.get()} == {0, 1}


@pytest.mark.parametrize("which", [0, 1])
def test_the_text_of_an_exception_ends_with_its_line(method, which):
    error = failure_of(functions.raise_in, ((which,),), 2, start_method=method)
    assert type(error) is ProcessRaisedException
    assert str(error).endswith(f"ValueError: legitimate exception from process {which}")
    assert f"-- Process {which} terminated with the following error:" in str(error)
    assert "in raise_in" in error.remote_traceback and error.remote_traceback.startswith("Traceback")
    assert (error.error_index, error.failure.type) == (which, "ValueError")
    assert error.failure.text == f"legitimate exception from process {which}"
    assert error.pid == error.error_pid == error.failure.pid > 0


def test_of_two_that_raise_one_is_named_and_the_others_are_listed(method):
    error = failure_of(functions.raise_in, ((0, 1),), 2, start_method=method)
    assert str(error).endswith(("process 0", "process 1"))
    assert {one.rank for one in error.failures} <= {0, 1}


def test_the_earlier_of_two_failures_is_named_and_both_are_listed(method):
    error = failure_of(functions.raise_after, ([0.3, 0],), 2, start_method=method, voluntary=30)
    assert [one.rank for one in error.failures] == [1, 0]
    assert not any(one.ended_by_us for one in error.failures)
    assert error.failures[0].time_ns < error.failures[1].time_ns


def test_a_rank_that_dies_of_a_signal_is_named_with_it(method):
    error = failure_of(functions.die_of, (signal.SIGABRT,), 2, start_method=method)
    assert "process 0 terminated with signal SIGABRT" in str(error)
    assert (error.exit_code, error.signal_name, error.failure.kind) == (-6, "SIGABRT", "signalled")


def test_a_real_time_signal_is_named(method):
    error = failure_of(functions.die_of, (37,), 1, start_method=method)
    assert (error.exit_code, error.failure.signal) == (-37, 37)
    assert error.signal_name.startswith("SIGRTMIN")


def test_an_exit_code_is_named_and_no_process_is_left(method):
    context = spawn(functions.exit_with, (123,), 2, join=False, start_method=method)
    with pytest.raises(ProcessExitedException, match="process 0 terminated with exit code 123") as caught:
        context.join()
    assert (caught.value.exit_code, caught.value.signal_name, caught.value.error_index) == (123, None, 0)
    assert not any(psutil.pid_exists(pid) for pid in context.pids())
    assert context.processes[0].exitcode == 123
    assert [one.ended_by_us for one in caught.value.failures] == [False, True]


def test_a_failure_after_the_return_of_another_rank_is_reported(method):
    error = failure_of(functions.raise_late, (), 2, start_method=method)
    assert str(error).endswith("legitimate exception from process 1")
    assert len(error.failures) == 1


def test_a_rank_that_is_terminated_from_outside_has_exited(method):
    context = spawn(functions.wait_for_ever, (), 2, join=False, start_method=method)
    os.kill(context.pids()[0], signal.SIGTERM)
    with pytest.raises(ProcessExitedException, match="process 0 terminated with signal SIGTERM"):
        context.join()


def test_exit_12_is_exit_code_12(method):
    assert failure_of(functions.exit_with, (12,), 1, start_method=method).exit_code == 12


@pytest.mark.parametrize("code, told", [(7, 7), ("a text", 1)])
def test_sys_exit_ends_a_rank_with_its_code(method, code, told):
    error = failure_of(functions.leave_with, (code,), 2, start_method=method)
    assert (type(error), error.exit_code, error.error_index) == (ProcessExitedException, told, 0)


@pytest.mark.parametrize("function", [functions.exit_with, functions.leave_with])
def test_exit_code_0_before_the_function_has_returned_is_a_failure(method, function):
    error = failure_of(function, (0,), 2, start_method=method)
    assert (type(error), error.failure.kind, error.error_index) == (ProcessExitedException, "unfinished", 0)


def test_keyboard_interrupt_in_a_rank_is_a_failure(method):
    error = failure_of(functions.interrupt_self, (), 2, start_method=method)
    assert (error.error_index, error.failure.type) == (0, "KeyboardInterrupt")


def test_sigint_to_one_rank_is_a_failure(method, tmp_path):
    context = spawn(functions.wait_for_ever, (str(tmp_path / "pid"),), 1, join=False, start_method=method)
    while not os.path.exists(tmp_path / "pid.0.ready"):
        time.sleep(0.01)
    os.kill(context.pids()[0], signal.SIGINT)
    with pytest.raises(ProcessException) as caught:
        context.join()
    assert caught.value.error_index == 0


def test_both_exceptions_survive_pickling_with_all_fields(method):
    for error in (failure_of(functions.raise_in, ((0,),), 2, start_method=method),
                  failure_of(functions.exit_with, (9,), 2, start_method=method)):
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error) and str(again) == str(error)
        assert vars(again) == vars(error) and again.failures == error.failures


def test_every_join_after_a_failure_raises_the_same(method):
    context = spawn(functions.die_of, (signal.SIGKILL,), 3, join=False, start_method=method)
    texts = set()
    for _ in range(3):
        with pytest.raises(ProcessExitedException) as caught:
            context.join()
        texts.add((str(caught.value), caught.value.failures))
    assert len(texts) == 1
    with pytest.raises(ProcessExitedException):
        context.results()


def test_grace_period_lets_the_others_end_by_themselves(method, tmp_path):
    context = spawn(functions.exit_at, (str(tmp_path / "go"),), 2, join=False, start_method=method)
    assert not context.join(timeout=0.01, grace_period=60)  # before the failure, which counts from then on
    (tmp_path / "go").touch()
    with pytest.raises(ProcessExitedException) as caught:
        context.join()
    assert [one.rank for one in caught.value.failures] == [0]


def test_a_rank_that_ignores_sigterm_is_killed_after_the_grace(method):
    error = failure_of(functions.ignore_term, (), 2, start_method=method, grace=0.2)
    assert [(one.rank, one.signal_name, one.ended_by_us) for one in error.failures] == [
        (0, "", False), (1, "SIGKILL", True)]


def test_a_rank_that_ignores_sigterm_does_not_hold_join_beyond_its_deadline(method):
    context = spawn(functions.ignore_term, (), 2, join=False, start_method=method, grace=60)
    assert not context.join(timeout=0.2)
    assert not context.join(timeout=0)
    context.kill()
    with pytest.raises(ProcessException):
        context.join()


def test_a_text_of_300_kb_arrives_whole(method):
    error = failure_of(functions.raise_long, (300_000,), 1, start_method=method)
    assert error.failure.text == "x" * 300_000 + " end"
    assert str(error).endswith("x end") and not error.failure.cut


def test_causes_arrive_with_type_and_text(method):
    error = failure_of(functions.raise_chain, (), 1, start_method=method)
    assert (error.failure.type, error.failure.text) == ("RuntimeError", "outer")
    assert error.failure.causes == (("OSError", "[Errno 5] middle"), ("KeyError", "'inner'"))
    assert "The above exception was the direct cause" in str(error)


def test_an_exception_that_cannot_be_made_again_or_printed_arrives(method):
    error = failure_of(functions.raise_stubborn, (), 1, start_method=method)
    assert error.failure.type == "spawn_functions.Stubborn"
    assert "str() of this exception raised RuntimeError" in error.failure.text
    assert "in raise_stubborn" in str(error)


def test_a_text_that_is_no_utf_8_arrives_readable(method):
    error = failure_of(functions.raise_odd_text, (), 1, start_method=method)
    assert error.failure.text == r"a NUL \x00, half a pair \udc80, and " + "\N{SNOWMAN}"


def test_ranks_that_a_thread_started_survive_its_end(method):
    contexts = []
    thread = threading.Thread(target=lambda: contexts.append(
        spawn(functions.number, (5,), 2, join=False, start_method=method)))
    thread.start()
    thread.join()
    assert contexts[0].join() and contexts[0].results() == [0, 5]


def files_of_nobody():
    """The files of /dev/shm that no process maps. Programs beside this one may make and unlink their own at any time."""
    names = set(os.listdir("/dev/shm"))
    for maps in glob.glob("/proc/[0-9]*/maps"):
        with contextlib.suppress(OSError), open(maps, errors="replace") as lines:
            names -= {line.rsplit("/", 1)[1].strip() for line in lines if " /dev/shm/" in line}
    return names


def test_nothing_is_left_after_a_failed_join(method, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)

    def left():
        return sorted(os.listdir("/proc/self/fd")), os.listdir(tmp_path), psutil.Process().children(recursive=True)
    failure_of(functions.die_of, (signal.SIGABRT,), 2, start_method=method)
    before, files_before = left(), files_of_nobody()
    error = failure_of(functions.raise_in, ((0,),), 4, start_method=method)
    assert error.failures and left() == before
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and (new := files_of_nobody() - files_before):
        time.sleep(0.05)  # a program beside this one unlinks what it has unmapped
    assert not new


def test_a_timeout_ends_the_ranks_and_raises(method):
    before = psutil.Process().children(recursive=True)
    with pytest.raises(shmbroker.Timeout, match="did not end within 0.2 s"):
        spawn(functions.wait_for_ever, (), 2, start_method=method, timeout=0.2)
    assert psutil.Process().children(recursive=True) == before


def test_rank_order_is_start_order(method):
    context = spawn(functions.number, (), 8, join=False, start_method=method)
    assert context.join() and context.results() == list(range(8))
    assert [process.rank for process in context.processes] == list(range(8))


def test_the_descriptor_is_readable_once_the_ranks_have_ended(method):
    import multiprocessing.connection
    context = spawn(functions.nothing, (), 2, join=False, start_method=method)
    assert multiprocessing.connection.wait([context.sentinel]) == [context.fileno()]
    assert context.join(timeout=60)


def test_a_signal_handler_that_raises_ends_join_and_not_the_ranks(method):
    class Rung(Exception):
        pass

    def ring(*_):
        raise Rung
    context = spawn(functions.wait_for_ever, (), 2, join=False, start_method=method)
    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(Rung):
            context.join()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert all(process.is_alive() for process in context.processes)
    assert [process.exitcode for process in context.processes] == [None, None]
    context.terminate()
    with pytest.raises(ProcessException):
        context.join()
