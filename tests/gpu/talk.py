# SPDX-License-Identifier: Apache-2.0
"""The means of an actor of regions.py and conformance.py: its session, tensors, and words for the other actors, which go
over the runner."""

import ctypes
import json
import os
import signal
import sys
import time

from library import ACCESS_READ, PlainTensors, Session, TorchTensors, drive

N = 1024


def end_of(managed):
    managed.contents.deleter(ctypes.cast(managed, ctypes.c_void_p))


class Skip(Exception):
    pass


class Talk:
    """An actor's side: lines of JSON to the runner, which hands `say` to the actor that is named."""

    def __init__(self, token):
        self.token = token
        self.tensors = PlainTensors() if os.environ.get("REGIONS_PLAIN") else TorchTensors()
        self.session = Session(token)
        self.ends_as_programs_do = False

    def send(self, **words):
        print(json.dumps(words), flush=True)

    def say(self, to, value=None):
        self.send(to=to, value=value)

    def hear(self):
        line = sys.stdin.readline()
        if not line:
            sys.exit(3)
        return json.loads(line)

    def within(self, start, limit_s, what):
        """A duration that a scenario promises. On the fake it is told, and proves nothing."""
        seconds = time.monotonic() - start
        self.fact(what, f"after {seconds:.2f} s of {limit_s}")
        self.need(seconds < limit_s or os.environ.get("REGIONS_FAKE"), f"{what} after {seconds:.2f} s")

    def ends_within(self, role, limit_s):
        """The runner looks how long that actor takes from now to its end, which is then that of any program."""
        self.send(ending=role, limit=limit_s)

    def fact(self, key, value):
        self.send(fact=key, value=value)

    def need(self, truth, text):
        if not truth:
            raise AssertionError(text)

    def die(self):
        self.send(kill=True)
        while True:
            signal.pause()

    def count_up(self, start=0):
        return [start + i for i in range(N)]

    def publish(self, values, name=None, flags=0):
        """A tensor that is born in a region, published."""
        tensor = self.tensors.make(values, in_region=True)
        region, offset = self.session.of_torch(tensor.pointer)
        region.publish(name, flags, [("x", offset, len(values), 64)])
        return tensor, region

    def take(self, what, access=ACCESS_READ):
        region = self.session.take(what, access)
        return region, self.tensors.view(region, "x")

    def used(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        drive("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return total.value - free.value

    def until(self, truth, text):
        end = time.monotonic() + 60
        while not truth():
            self.need(time.monotonic() < end, text)
            time.sleep(0.01)
