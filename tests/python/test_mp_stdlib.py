# SPDX-License-Identifier: Apache-2.0
"""The standard library's own tests of queues, connections, processes and pools, with shmbroker.mp in the place of
multiprocessing (Debian's libpython3.11-testsuite). EXPECTED says which differ, and why; docs/python.md says so too.

A copy of the tests is made that imports shmbroker.mp. Each start method runs in a Python of its own.
"""
import os
import re
import subprocess
import sys

import pytest

EXPECTED = {
    "test_queue_feeder_donot_stop_onexc": "put pickles, so what cannot be pickled is an exception of put",
    "test_queue_feeder_on_queue_feeder_error": "there is no feeder thread and no hook of it",
}
CLASSES = ("WithProcessesTestQueue", "WithProcessesTestConnection", "WithProcessesTestPoll",
           "WithProcessesTestPicklingConnections", "WithProcessesTestProcess", "WithProcessesTestSubclassingProcess",
           "WithProcessesTestPool", "WithProcessesTestPoolWorkerErrors", "WithProcessesTestPoolWorkerLifetime",
           "TestSimpleQueue", "TestWait", "TestInitializers", "TestPoolNotLeakOnFailure", "TestStartMethod",
           "TestTimeouts", "TestIgnoreEINTR", "TestCloseFds", "MiscTestCase", "OtherTest", "TestFlags",
           "WithProcessesTestListener", "WithProcessesTestListenerClient", "WithProcessesTestFinalize")
METHODS = ("fork", "spawn", "forkserver")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    test = pytest.importorskip("test")
    path = os.path.join(os.path.dirname(test.__file__), "_test_multiprocessing.py")
    if not os.path.exists(path):
        pytest.skip("the standard library's tests are not installed (libpython3.11-testsuite)")
    made = tmp_path_factory.mktemp("stdlib")
    with open(path) as file:
        text = file.read()
    with open(os.path.join(os.path.dirname(path), "mp_preload.py")) as file:  # a program that one of them runs
        (made / "mp_preload.py").write_text(file.read())
    text = re.sub(r"^(\s*)import multiprocessing((?:\.\w+)*)\s*$",
                  r"\1import multiprocessing\2; import shmbroker.mp as multiprocessing", text, flags=re.M)
    text = text.replace("from multiprocessing.connection import wait", "from shmbroker.mp.connection import wait")
    (made / "shm_test_multiprocessing.py").write_text(text)
    for method in METHODS:
        (made / f"test_{method}.py").write_text(
            f"import shm_test_multiprocessing\n"
            f"shm_test_multiprocessing.install_tests_in_module_dict(globals(), {method!r})\n")
    return made


@pytest.mark.parametrize("method", METHODS)
def test_the_standard_librarys_tests_pass_but_those_that_are_listed(broker, folder, method):
    names = [f"test_{method}.{name}" for name in CLASSES]
    paths = os.pathsep.join([str(folder), os.environ["PYTHONPATH"]])
    done = subprocess.run([sys.executable, "-X", "faulthandler", "-m", "unittest", "-v", *names], cwd=folder,
                          env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=280)
    failed = set(re.findall(r"^(?:ERROR|FAIL): (\w+)", done.stderr, re.M))
    count = re.search(r"^Ran (\d+) tests", done.stderr, re.M)
    assert count is not None and int(count[1]) >= 80, done.stderr[-3000:]
    assert failed == set(EXPECTED), done.stderr[-8000:]
