# SPDX-License-Identifier: Apache-2.0
"""Shared by the test_torch_*.py: a broker with install() in force, and programs of their own."""
import atexit
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: tools/install-packages test")

import torch.multiprocessing  # noqa: E402

import shmbroker  # noqa: E402
import shmbroker.torch  # noqa: E402

METHODS = ("fork", "spawn", "forkserver")


@pytest.fixture(scope="module")
def installed(broker):
    assert shmbroker.torch.install()
    yield
    shmbroker.torch.uninstall()


@pytest.fixture
def fork(installed):
    return torch.multiprocessing.get_context("fork")


@pytest.fixture(params=METHODS)
def ctx(installed, request):
    context = torch.multiprocessing.get_context(request.param)
    if request.param == "forkserver":
        context.set_forkserver_preload(["torch_children"])
    return context


def start(ctx, target, *args):
    process = ctx.Process(target=target, args=args)
    process.start()
    return process


def end(process, seconds=60):
    process.join(seconds)
    assert process.exitcode == 0


def until(condition, seconds=20):
    """Whether it comes true, looked at again and again."""
    stop = time.monotonic() + seconds
    while time.monotonic() < stop:
        if condition():
            return True
        time.sleep(0.02)
    return bool(condition())


def used():
    """Bytes that the group of this program holds in regions, and how many regions those are. Pools are not counted, nor
    what the broker keeps to be used again."""
    from shmbroker import views
    regions = [one for one in views.list().regions if not one.pool and one.state != "cached"]
    return sum(one.bytes for one in regions), len(regions)


class Server:
    """torch_server.py, as one process for all programs of a file of tests."""

    def __init__(self):
        path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_server.py")
        self._process = subprocess.Popen([sys.executable, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)

    def run(self, path, arguments, environment, timeout):
        with tempfile.TemporaryDirectory() as folder:
            told = {"path": path, "arguments": arguments, "directory": os.getcwd(), "environment": environment,
                    "out": os.path.join(folder, "out"), "err": os.path.join(folder, "err")}
            self._process.stdin.write(json.dumps(told).encode() + b"\n")
            pid = int(self._process.stdout.readline())
            late = not select.select([self._process.stdout], [], [], timeout)[0]
            if late:
                os.kill(pid, signal.SIGKILL)
            status = int(self._process.stdout.readline())
            with open(told["out"], encoding="utf-8") as out, open(told["err"], encoding="utf-8") as err:
                done = subprocess.CompletedProcess([path, *arguments], status, out.read(), err.read())
        if late:
            raise subprocess.TimeoutExpired(done.args, timeout, done.stdout, done.stderr)
        return done

    def end(self):
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


_server = None


def run_file(path, *arguments, timeout=240, **environment):
    """Runs a program of a file, as users do."""
    global _server
    if _server is None:
        _server = Server()
        atexit.register(_server.end)
    return _server.run(path, [str(one) for one in arguments], dict(os.environ | environment), timeout)


def program(text, *, before=(), timeout=120, **environment):
    """Runs a script of its own, from a file. `before`: a command that runs it, in a new Python."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "train.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        if before:
            return subprocess.run([*before, sys.executable, path], capture_output=True, text=True, timeout=timeout,
                                  env=os.environ | environment)
        return run_file(path, timeout=timeout, **environment)


def run_beside(text, **environment):
    """A program that is spoken with while it runs."""
    return subprocess.Popen([sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                            env=os.environ | environment)
