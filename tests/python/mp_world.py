# SPDX-License-Identifier: Apache-2.0
"""Fixtures of test_mp_*.py: the contexts, and what a process and its group hold."""
import gc
import os
import time

import psutil
import pytest
from shmbroker import mp

METHODS = ("fork", "spawn", "forkserver")


@pytest.fixture(params=METHODS)
def ctx(broker, request):
    context = mp.get_context(request.param)
    if request.param == "forkserver":
        context.set_forkserver_preload(["mp_children"])
    return context


@pytest.fixture
def fork(broker):
    return mp.get_context("fork")


def until(condition, seconds=20):
    """Whether it comes true, looked at again and again."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return bool(condition())


def descriptors():
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def maps():
    with open("/proc/self/maps") as file:
        return sum(1 for _ in file)


def memory():
    """Bytes that this process has for itself."""
    return psutil.Process().memory_full_info().uss


def ended(process, seconds=20):
    process.join(seconds)
    return process.exitcode is not None


def end(*processes):
    for process in processes:
        if process.is_alive():
            process.kill()
        process.join(20)
