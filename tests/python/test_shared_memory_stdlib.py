# SPDX-License-Identifier: Apache-2.0
"""The standard library's own tests of shared_memory, with shmbroker's classes in place of its own, in every child too."""
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
# docs/python.md gives the reason of each.
EXCEPTED = ["test_shared_memory_cleaned_after_process_termination"]


@pytest.mark.usefixtures("broker")
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_the_tests_of_the_standard_library_pass(method):
    module = f"test.test_multiprocessing_{method}"
    if importlib.util.find_spec("test") is None or importlib.util.find_spec(module) is None:
        pytest.skip("this Python has no tests of its own (Debian: libpython3.11-testsuite)")
    environment = dict(os.environ, PYTHONPATH=f"{HERE / 'in_place'}:{os.environ.get('PYTHONPATH', '')}")
    listed = subprocess.run([sys.executable, "-c", f"""if 1:
        import unittest, {module} as tests
        def walk(suite):
            for one in suite:
                if isinstance(one, unittest.TestSuite): yield from walk(one)
                else: yield one.id()
        print(*walk(unittest.defaultTestLoader.loadTestsFromModule(tests)), sep='\\n')"""],
        env=environment, capture_output=True, text=True, timeout=60, check=True).stdout.split()
    wanted = [one for one in listed if "TestSharedMemory" in one and one.rsplit(".", 1)[1] not in EXCEPTED]
    assert len(wanted) >= 12
    in_use = subprocess.run([sys.executable, "-c", f"""if 1:
        import {module}, test._test_multiprocessing as tests
        print(tests.shared_memory.SharedMemory.__module__, tests.shared_memory.ShareableList.__module__)"""],
        env=environment, capture_output=True, text=True, timeout=60, check=True).stdout.split()
    assert in_use == ["shmbroker.shared_memory", "shmbroker.shareable_list"]
    done = subprocess.run([sys.executable, "-m", "unittest", "-v", *wanted], env=environment, capture_output=True,
                          text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-6000:]
    ran = re.search(r"^Ran (\d+) tests", done.stderr, re.MULTILINE)
    assert ran and int(ran[1]) == len(wanted) and "skipped" not in done.stderr, done.stderr[-3000:]


def test_the_document_names_each_exception():
    text = (HERE.parent.parent / "docs" / "python.md").read_text(encoding="utf-8")
    assert [one for one in EXCEPTED if one not in text] == []
