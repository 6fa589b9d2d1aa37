# SPDX-License-Identifier: Apache-2.0
"""The fixtures of every test of the package: a broker of its own for each file, found by the variables that users have.

The tests run in meson (`meson test --suite python`), or by hand:

    PYTHONPATH=BUILD/python SHMBROKER_DAEMON=$PWD/BUILD/daemon/shmbrokerd /usr/bin/python3 -m pytest tests/python
"""
import multiprocessing.forkserver
import os
import signal
import subprocess
import sys
import tempfile

import pytest

# A shell starts a program in the background with SIGINT ignored, and children inherit that: no interrupt would end them.
signal.signal(signal.SIGINT, signal.default_int_handler)
# A fork server of Python 3.11 does not know sys.path: it finds the modules that tests preload by this alone.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), os.path.dirname(__file__)]))


class Broker:
    """A private broker in a directory of its own."""

    def __init__(self):
        self.directory = tempfile.mkdtemp(prefix="shmb-python-")
        self.socket = os.path.join(self.directory, "socket")
        self.process = None
        self.start()

    def start(self):
        ready, told = os.pipe()
        daemon = os.environ["SHMBROKER_DAEMON"]
        # A sanitizer that is loaded into Python makes system calls that the broker does without.
        environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        self.process = subprocess.Popen([daemon, "--private", "--directory", self.directory, "--ready-fd", str(told),
                                         "--idle-exit", "forever", "--log-level", "warning"], pass_fds=[told],
                                        env=environment, stderr=subprocess.DEVNULL)
        os.close(told)
        assert os.read(ready, 1) == b"\n"
        os.close(ready)

    def kill(self):
        """With the helpers that would start it again."""
        self.process.kill()
        self.process.wait()

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=30)
        subprocess.run(["rm", "-rf", self.directory], check=True)


@pytest.fixture(scope="module")
def broker():
    it = Broker()
    before = os.environ.get("SHMBROKER_SOCKET")
    os.environ["SHMBROKER_SOCKET"] = it.socket
    os.environ.pop("SHMBROKER_GROUP", None)
    yield it
    if before is None:
        del os.environ["SHMBROKER_SOCKET"]
    else:
        os.environ["SHMBROKER_SOCKET"] = before
    multiprocessing.forkserver._forkserver._stop()  # its children would look for this broker in the next file, too
    it.end()


@pytest.fixture
def private(monkeypatch):
    """No broker is named: programs find the private one of this directory, and start one where there is none."""
    import shmbroker
    directory = tempfile.mkdtemp(prefix="shmb-private-")
    monkeypatch.setenv("XDG_RUNTIME_DIR", directory)
    for name in ("SHMBROKER_SOCKET", "SHMBROKER_GROUP"):
        monkeypatch.delenv(name, raising=False)
    yield directory
    try:
        os.kill(shmbroker.status().pid, signal.SIGTERM)
    except shmbroker.NoBroker:
        pass
    subprocess.run(["rm", "-rf", directory], check=True)


@pytest.fixture
def session(broker):
    import shmbroker
    with shmbroker.connect(group="", program="pytest") as it:
        yield it


@pytest.fixture
def python(broker):
    """Runs a program in a Python of its own, and gives what it printed. Its exit status is 0, or `status`."""

    def run(code, *arguments, status=0, timeout=180, **environment):
        done = subprocess.run([sys.executable, "-X", "faulthandler", "-W", "error", "-c", code, *arguments],
                              env={**os.environ, **environment}, capture_output=True, text=True, timeout=timeout)
        assert done.returncode == status, f"exit status {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    return run
