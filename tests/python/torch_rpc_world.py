# SPDX-License-Identifier: Apache-2.0
"""Shared by the test_torch_rpc*.py: workers that are started one by one, as users start them."""
import atexit
import os
import signal
import socket
import subprocess
import sys
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


def stop(pid):
    """One thread takes SIGSTOP and stops the others. Until it has a processor they run on, and serve."""
    os.kill(pid, signal.SIGSTOP)

    def states():
        tasks = f"/proc/{pid}/task"
        return [open(f"{tasks}/{task}/stat").read().rpartition(")")[2].split()[0] for task in os.listdir(tasks)]

    until(lambda: set(states()) == {"T"})


_started = []


@atexit.register
def _end_all():
    """A test that fails leaves workers that wait for each other."""
    for process in _started:
        if process.poll() is None:
            process.kill()


def start(arguments, port, **more):
    variables = dict(os.environ, MASTER_ADDR="localhost", MASTER_PORT=str(port), PYTHONPATH=os.pathsep.join(
        [HERE, os.environ.get("PYTHONPATH", "")]), **more)
    _started.append(subprocess.Popen(arguments, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    return _started[-1]


def start_worker(name, rank, size, port):
    return start([sys.executable, os.path.join(HERE, "torch_rpc_functions.py"), name, str(rank), str(size)], port)


def ended(process):
    out, err = process.communicate(timeout=180)
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
