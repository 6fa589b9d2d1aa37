# SPDX-License-Identifier: Apache-2.0
"""A process is killed, any one at any moment. No process of the ranks is left."""
import os
import random
import signal
import subprocess
import sys
import time

import psutil
import pytest
import shmbroker
import spawn_functions as functions
from shmbroker import ProcessException, spawn

pytestmark = pytest.mark.usefixtures("broker")
METHODS = ["spawn", "forkserver", "fork"]


def gone(pids):
    """Waits until all have ended; pytest's limit ends a wait without end."""
    def there(pid):
        try:
            return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
        except psutil.NoSuchProcess:
            return False
    while any(there(pid) for pid in pids):
        time.sleep(0.01)
    return True


class Parent:
    """A program that has started ranks."""

    def __init__(self, function, method, folder, ranks=2):
        self.pids = str(folder / "pid")
        program = os.path.join(os.path.dirname(__file__), "spawn_parent.py")
        self.process = subprocess.Popen([sys.executable, program, function, method, self.pids, str(ranks)],
                                        stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "starting\n"
        self.ranks = ranks

    def started(self):
        told = [int(word) for word in self.process.stdout.readline().split()]
        while not all(os.path.exists(f"{self.pids}.{rank}.ready") for rank in range(self.ranks)):
            time.sleep(0.01)
        return told

    def tree(self):
        return [child.pid for child in psutil.Process(self.process.pid).children(recursive=True)]

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("function", ["wait_for_ever", "busy", "ignore_interrupt"])
def test_ranks_end_with_a_parent_that_is_killed(tmp_path, function, method):
    parent = Parent(function, method, tmp_path)
    pids = parent.started()
    tree = parent.tree()
    assert set(pids) <= set(tree)
    parent.kill()
    assert gone(tree)


@pytest.mark.parametrize("method", METHODS)
def test_ranks_that_still_start_end_with_a_parent_that_is_killed(tmp_path, method):
    chance = random.Random(7)
    for number in range(4):
        folder = tmp_path / str(number)
        folder.mkdir()
        parent = Parent("wait_for_ever", method, folder, 4)
        tree = set()
        end = time.monotonic() + chance.uniform(0, 0.15)
        while time.monotonic() < end:
            tree.update(parent.tree())
        parent.kill()
        assert gone(tree)
        ready = [int(path.read_text()) for path in folder.glob("pid.*.ready")]
        assert gone(ready)


@pytest.mark.parametrize("method", METHODS)
def test_what_a_rank_has_started_ends_with_it(tmp_path, method):
    with pytest.raises(shmbroker.ProcessExitedException) as caught:
        spawn(functions.grandchildren, (str(tmp_path / "pids"),), 1, start_method=method, grace=0.2)
    assert caught.value.signal_name == "SIGTERM"
    pids = [int(word) for word in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 2 and not any(psutil.pid_exists(pid) for pid in pids)


@pytest.mark.parametrize("which", ["guard", "supervisor"])
def test_the_death_of_guard_or_supervisor_ends_the_ranks_and_is_told(which):
    before = {child.pid for child in psutil.Process().children()}
    context = spawn(functions.wait_for_ever, (), 2, join=False, start_method="fork")
    guard = next(child for child in psutil.Process().children() if child.pid not in before)
    victim = guard if which == "guard" else guard.children()[0]
    victim.kill()
    with pytest.raises(ProcessException) as caught:
        context.join()
    assert gone(context.pids())
    assert "supervisor_lost" in {one.kind for one in caught.value.failures} or which == "guard"


@pytest.mark.parametrize("method", METHODS)
def test_the_dead_rank_is_named_and_never_its_echo(method):
    for number in range(5):
        with pytest.raises(shmbroker.ProcessExitedException) as caught:
            spawn(functions.meet_a_dead_one, (), 3, start_method=method)
        assert (caught.value.error_index, caught.value.signal_name) == (0, "SIGKILL"), number


def test_ctrl_c_ends_spawn_and_its_ranks(tmp_path):
    text = ("import sys, spawn_functions as f, shmbroker\n"
            "shmbroker.spawn(f.wait_for_ever, (sys.argv[1],), 2, start_method='fork')\n")
    pids = str(tmp_path / "pid")
    process = subprocess.Popen([sys.executable, "-c", text, pids], cwd=os.path.dirname(__file__),
                               stderr=subprocess.PIPE, text=True)
    while not all(os.path.exists(f"{pids}.{rank}.ready") for rank in range(2)):
        time.sleep(0.01)
    tree = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
    process.send_signal(signal.SIGINT)
    _, told = process.communicate()
    assert "KeyboardInterrupt" in told and process.returncode == -signal.SIGINT
    assert gone(tree)
