#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Regions, lent memory, timelines, pins and events with real tensors, through the library and a broker: T20 to T26,
what of T27, T28 and of sleeping regions is ours, P3 and P4, and 51 to 69 of docs/conformance.md. One case a process, with a
broker of its own, so that a broken one costs one answer. A case is one to three processes that talk over this one, which
never touches the driver. With --plain memory of the driver stands for torch's tensors; with --fake it is that of the fake
driver. The answer is lines for asking.py.
usage: regions.py --library FILE --broker FILE [--fake] [--plain] CASE
"""

import argparse
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time

import conformance
from asking import die_with_parent
from library import (ACCESS_WRITE, DEADLINE, MANY_WRITERS, NOT_SUPPORTED, PRODUCER_DEAD, REPLACE, WRITING, Failure,
                     PlainTensor, Session, drive, driver_version, hold_up, let_go)  # fmt: skip
from talk import N, Skip, Talk

LIMIT_S = 120


# ---------------------------------------------------------------------------------------------- the cases


def t20_a(t):
    tensor, region = t.publish(t.count_up(), flags=WRITING | MANY_WRITERS)
    t.say("b", region.id())
    t.hear()
    tensor.set(t.count_up(5000))
    t.tensors.sync()
    t.say("b")
    t.hear()
    t.need(tensor.values() == t.count_up(7000), "what B wrote is not in A's tensor")
    t.fact("tensors", t.tensors.name)


def t20_b(t):
    region, view = t.take(t.hear(), ACCESS_WRITE)
    t.need(view.values() == t.count_up(), "B does not see A's tensor")
    t.say("a")
    t.hear()
    t.need(view.values() == t.count_up(5000), "B does not see what A wrote later")
    view.set(t.count_up(7000))
    t.tensors.sync()
    t.say("a")


def t21_a(t):
    tensor = t.tensors.make(t.count_up())
    before, freed = t.tensors.allocated(), []

    def free():
        freed.append(True)
        t.tensors.drop(tensor)

    lease = t.session.lend(tensor.pointer, 8 * N, free, [("x", 0, N, 64)])
    t.say("b", lease.id())
    t.hear()
    lease.retire()
    t.session.dispatch()
    t.need(not freed and t.tensors.allocated() == before, "freed while B holds it")
    t.say("b")
    t.until(lambda: t.session.dispatch()[0] or freed, "never freed after B let go")
    t.need(t.tensors.allocated() < before, "the memory did not come back")
    t.fact("allocated", f"{before} bytes before, {t.tensors.allocated()} after B's release")


def t21_b(t):
    region, view = t.take(t.hear())
    t.need(view.values() == t.count_up(), "B does not see the lent tensor")
    t.say("a")
    t.hear()
    view.end()
    region.release()


def foreign_a(t, make, only_adopted=False):
    """Memory of another library's allocator: adopted where it can be shared by descriptor, else lent."""
    pointer, size, keep = make()
    try:
        region = t.session.adopt(pointer, size)
        region.publish(tensors=[("x", 0, N, 64)])
        t.fact("way", "adopted")
        what = region.id()
    except Failure as refused:
        t.need(not only_adopted, f"it cannot be adopted: {refused}")
        t.fact("adopt", str(refused)[:200])
        lease = t.session.lend(pointer, size, lambda: None, [("x", 0, N, 64)])
        t.fact("way", "lent")
        what = lease.id()
    t.say("b", what)
    t.hear()
    del keep


def foreign_b(t):
    region, view = t.take(t.hear())
    t.need(view.values() == t.count_up(), "B reads something else")
    view.end()
    t.say("a")


def t22_a(t):
    def make():
        if t.tensors.name != "torch":
            raise Skip("needs torch's expandable segments")
        tensor = t.tensors.make(t.count_up())
        t.tensors.sync()
        return tensor.pointer, 8 * N, tensor

    foreign_a(t, make, only_adopted=True)


def t23_a(t):
    def make():
        os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
        try:
            import jax
        except ImportError as missing:
            raise Skip(str(missing)) from None
        jax.config.update("jax_enable_x64", True)
        array = jax.device_put(jax.numpy.arange(N, dtype="int64"))
        array.block_until_ready()
        return array.unsafe_buffer_pointer(), 8 * N, array

    foreign_a(t, make)


def t24_a(t):
    def make():
        try:
            import cupy
        except ImportError as missing:
            raise Skip(str(missing)) from None
        array = cupy.arange(N, dtype="int64")
        cupy.cuda.Device().synchronize()
        return array.__cuda_array_interface__["data"][0], 8 * N, array

    foreign_a(t, make)


def t25_a(t):
    tensor, region = t.publish(t.count_up(3))
    t.say("b", region.id())
    t.hear()


def t25_b(t):
    region, view = t.take(t.hear())
    t.say("a")  # A ends
    t.say("c", region.ticket())
    t.hear()
    t.need(view.values() == t.count_up(3), "B lost it")


def t25_c(t):
    region, view = t.take(t.hear())
    t.need(view.values() == t.count_up(3), "C, who got it from B, reads something else")
    t.say("b")


def t26_a(t):
    count = 20_000
    tensor = t.tensors.make(list(range(count)), in_region=True)
    region, offset = t.session.of_torch(tensor.pointer)
    start = time.monotonic()
    region.publish(tensors=[(f"layer.{i}", offset + 8 * i, 1, 64) for i in range(count)])
    t.fact("publish", f"{count} tensors in {1000 * (time.monotonic() - start):.1f} ms")
    t.say("b", region.id())
    t.hear()


def t26_b(t):
    what = t.hear()
    start = time.monotonic()
    region = t.session.take(what)
    t.fact("import", f"{1000 * (time.monotonic() - start):.1f} ms")
    for i in range(0, 20_000, 997):
        view = t.tensors.view(region, f"layer.{i}")
        t.need(view.values() == [i], f"layer.{i} is something else")
        view.end()
    t.say("a")


def t27_a(t):
    """A timeline of ours: the page is mapped and registered read-only in B, and the broker releases B's stream."""
    tensor, region = t.publish([0] * N, "x", WRITING | MANY_WRITERS)
    line, stream = t.session.make_timeline("line"), t.tensors.stream()
    t.tensors.set_on(stream, tensor, 1)
    line.signal(1, stream)
    t.say("b")
    t.hear()
    hold_up(stream)
    line.signal(2, stream)
    t.say("b")
    t.hear()
    t.die()


def t27_b(t):
    t.hear()
    line, stream = t.session.open_timeline("line"), t.tensors.stream()
    region, view = t.take("x", ACCESS_WRITE)
    line.wait(1, stream)
    t.tensors.finish(stream)
    t.need(view.values() == [0x0101010101010101] * N, "the stream passed before the producer's work was done")
    line.wait_host(1)
    t.say("a")
    t.hear()
    line.wait(2, stream)
    t.tensors.set_on(stream, view, 3)
    t.need(line.status() == 0, "the producer lives, and the timeline says otherwise")
    t.say("a")  # which is killed
    start = time.monotonic()
    t.tensors.finish(stream)
    t.fact("released", f"{1000 * (time.monotonic() - start):.1f} ms after the producer was killed")
    t.need(line.status() == PRODUCER_DEAD, f"the status of the dead producer's word is {line.status()}")
    try:
        line.wait_host(2)
        t.need(False, "what was never reached is said to be")
    except Failure as refused:
        t.need(refused.status == PRODUCER_DEAD, str(refused))
    line.close()


def t28_a(t):
    region = t.session.create("host", 8 * N)
    ctypes.memmove(region.data(), bytes([7]) * (8 * N), 8 * N)
    pinned, stream, tensor = region.register(), t.tensors.stream(), t.tensors.make([0] * N)
    drive("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(tensor.pointer), ctypes.c_void_p(region.data()),
          ctypes.c_size_t(8 * N), ctypes.c_void_p(stream))  # fmt: skip
    t.tensors.finish(stream)
    t.need(tensor.values() == [0x0707070707070707] * N, "a copy from the pinned region brought something else")
    drive("cuMemsetD8Async", ctypes.c_uint64(pinned), ctypes.c_ubyte(9), ctypes.c_size_t(8 * N),
          ctypes.c_void_p(stream))  # fmt: skip
    t.tensors.finish(stream)
    t.need(ctypes.string_at(region.data(), 8 * N) == bytes([9]) * (8 * N), "the device's store is not in the region")
    t.say("b")
    t.hear()
    region.end()


def t28_b(t):
    t.hear()
    region = t.session.attach("host")
    t.need(ctypes.string_at(region.data(), 8 * N) == bytes([9]) * (8 * N), "another process sees something else")
    try:
        pinned, tensor = region.register(), t.tensors.make([0] * N)
        drive("cuMemcpyDtoDAsync_v2", ctypes.c_uint64(tensor.pointer), ctypes.c_uint64(pinned), ctypes.c_size_t(8 * N),
              ctypes.c_void_p(0))  # fmt: skip
        t.tensors.sync()
        t.need(tensor.values() == [0x0909090909090909] * N, "a device reads something else through the read-only pin")
        t.fact("read-only registration", "yes")
    except Failure as refused:
        t.need(refused.status == NOT_SUPPORTED, str(refused))
        t.fact("read-only registration", str(refused)[:200])
    region.end()
    t.say("a")


def sleep_a(t):
    tensor, region = t.publish(t.count_up(4))
    t.say("b", region.id())
    t.hear()


def sleep_b(t):
    region, view = t.take(t.hear())
    view.end()
    pointer, before = region.pointer(), t.used()
    for _ in range(3):
        region.sleep()
        t.need(region.pointer() == 0, "asleep, and mapped")
        region.wake()
        t.need(region.pointer() == pointer, "awake at another address")
    view = t.tensors.view(region, "x")
    t.need(view.values() == t.count_up(4), "the contents went with the mapping")
    t.need(t.used() <= before + (64 << 20), "sleeping and waking costs memory")
    view.end()
    t.say("a")


def set_a(t):
    """Three blocks of an allocator as one model, and then the next generation of it under the same name."""
    for generation in (1, 2):
        tensors = [t.tensors.make(t.count_up(1000 * generation + i), in_region=True) for i in range(3)]
        regions, offsets = zip(*[t.session.of_torch(tensor.pointer) for tensor in tensors])
        listed = [(i, f"w{i}", offsets[i], N, 64) for i in range(3)]
        t.session.publish_set("model", regions, listed, REPLACE if generation > 1 else 0)
        t.say("b", generation)
        t.hear()


def set_b(t):
    held = []
    for _ in range(2):
        generation = t.hear()
        region = t.session.take("model")
        held.append((generation, region, [t.tensors.view(region, f"w{i}") for i in range(3)]))
        for seen, _, views in held:  # the one before stays whole
            for i, view in enumerate(views):
                t.need(view.values() == t.count_up(1000 * seen + i), f"w{i} of generation {seen} is something else")
        t.say("a")


def waits_a(t):
    """The library asks how far a context has come, and that must see a stream that waits for no other."""
    if driver_version() < 12050:
        raise Skip("the driver is older than 12.5, and has no deadline")
    region, stream = t.session.allocate(2 << 20), t.tensors.stream()
    word, tensor = hold_up(stream), PlainTensor(region.pointer(), N)
    t.tensors.set_on(stream, t.tensors.make([0] * N), 1)
    start = time.monotonic()
    try:
        region.sleep(300_000_000)
        t.need(False, "it sleeps under a stream that is not through")
    except Failure as refused:
        t.need(refused.status == DEADLINE, str(refused))
    t.fact("gave up", f"after {1000 * (time.monotonic() - start):.0f} ms of 300")
    tensor.set(t.count_up())
    t.need(tensor.values() == t.count_up(), "the mapping went all the same")
    let_go(word)
    region.sleep()
    region.wake()
    t.need(tensor.values() == t.count_up(), "the contents went with the mapping")


def sizes(t):
    return [2 << 20, 8 << 20] if os.environ.get("REGIONS_FAKE") else [2 << 20, 64 << 20, 1 << 30, 16 << 30, 64 << 30]


def spread(samples):
    ordered = sorted(samples)
    return f"median {ordered[len(ordered) // 2]:.1f} us, p99 {ordered[-1]:.1f} us, n {len(ordered)}"


def p4_a(t):
    """P4 here, P3 in B: from the request to a usable pointer."""
    for size in sizes(t):
        times = []
        for _ in range(30):
            region = t.session.allocate(size)
            start = time.monotonic_ns()
            what = region.publish()
            times.append((time.monotonic_ns() - start) / 1000)
            if len(times) < 30:
                region.release()
        t.fact(f"P4 publish {size >> 20} MiB", spread(times))
        t.say("b", what)
        t.hear()
        region.release()
    t.say("b")


def p4_b(t):
    for size in sizes(t):
        what, times = t.hear(), []
        for _ in range(33):
            start = time.monotonic_ns()
            region = t.session.take(what)
            t.need(region.pointer() != 0, "no pointer")
            times.append((time.monotonic_ns() - start) / 1000)
            region.release()
        t.fact(f"P3 open {size >> 20} MiB", spread(times[3:]))
        t.say("a")


CASES = {
    "T20": ("a tensor born in a region, read and written in another process", t20_a, t20_b),
    "T21": ("a default tensor, lent; its memory comes back with the other's release", t21_a, t21_b),
    "T22": ("an expandable segment of torch, adopted", t22_a, foreign_b),
    "T23": ("a JAX array", t23_a, foreign_b),
    "T24": ("a CuPy array", t24_a, foreign_b),
    "T25": ("B shares on to C, A has ended", t25_a, t25_b, t25_c),
    "T26": ("20,000 tensors in one region", t26_a, t26_b),
    "T27": ("a timeline of the broker's: streams of two processes, and a killed producer", t27_a, t27_b),
    "T28": ("a pinned region of the broker's: copies, a device's stores, read-only in another process", t28_a, t28_b),
    "sleep": ("a region asleep, and awake at the same address", sleep_a, sleep_b),
    "set": ("many regions published as one, and the next generation of them", set_a, set_b),
    "waits": ("a deadline under a stream that is not through", waits_a),
    "P3,P4": ("publish, and open to a usable pointer, by size", p4_a, p4_b),
    **conformance.CASES,
}

ABOUT_TORCH = {"T20", "T21", "T22"}


# ---------------------------------------------------------------------------------------------- the runner


def tell(key, value):
    """A line for asking.py."""
    print(f"+{key}\t{value}".replace("\n", " "), flush=True)


def be_actor(case, role, token):
    try:
        try:
            talk = Talk(token)
        except ImportError as missing:
            raise Skip(str(missing)) from None
        CASES[case][1 + "abc".index(role)](talk)
    except Skip as why:
        print(json.dumps({"skip": str(why)}), flush=True)
    except (AssertionError, Failure) as why:
        print(json.dumps({"fail": f"{role}: {why}"}), flush=True)
    else:
        if talk.ends_as_programs_do:
            sys.exit(0)
    sys.stdout.flush()
    os._exit(0)  # as a process ends that cleans nothing up


class Case:
    """The actors of one case, their words for each other, and how it went."""

    def __init__(self, name, token):
        self.name, self.verdict, self.reason = name, "pass", ""
        self.actors, self.waiting = {}, {}
        self.endings = {}  # of whom, since when, and how long it may take
        environment = dict(os.environ)
        if name == "T22":
            environment["PYTORCH_CUDA_ALLOC_CONF"] = environment["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
        for role in "abc"[: len(CASES[name]) - 1]:
            command = [sys.executable, "-B", __file__, "--actor", name, role, token]
            self.actors[role] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment,
                                                 bufsize=0, preexec_fn=die_with_parent)  # fmt: skip
            self.waiting[role] = b""
        self.living = set(self.actors)

    def end(self, verdict, reason):
        if self.verdict == "pass":
            self.verdict, self.reason = verdict, reason

    def pass_on(self, role, value):
        try:
            self.actors[role].stdin.write(json.dumps(value).encode() + b"\n")
        except (BrokenPipeError, ValueError):
            pass  # it ended with a reason of its own

    def take(self, role, words):
        if "to" in words:
            self.pass_on(words["to"], words["value"])
        elif "fact" in words:
            tell(words["fact"], words["value"])
        elif "ending" in words:
            self.endings[words["ending"]] = time.monotonic(), words["limit"]
        elif "kill" in words:
            self.actors[role].kill()
            self.actors[role].wait()
            if self.name == "66" and "b" in self.living - {role}:
                self.pass_on("b", "killed")
        elif "skip" in words:
            self.end("skip", words["skip"])
        else:
            self.end("fail", words["fail"])

    def take_end(self, role):
        self.living.discard(role)
        status = self.actors[role].wait()
        if status not in (0, -signal.SIGKILL):
            self.end("fail", f"{role} ended with status {status}")
        if role in self.endings:
            since, limit = self.endings.pop(role)
            seconds = time.monotonic() - since
            tell(f"{role} ended", f"after {seconds:.2f} s of {limit}")
            if seconds > limit and not os.environ.get("REGIONS_FAKE"):
                self.end("fail", f"{role} ended after {seconds:.2f} s")

    def run(self):
        end = time.monotonic() + LIMIT_S - 5  # before the runner's own limit, to say who is still there
        while self.living and self.verdict == "pass":
            left = end - time.monotonic()
            if left <= 0:
                self.end("fail", f"not done after {LIMIT_S - 5} s; still there: {' '.join(sorted(self.living))}")
                break
            by_pipe = {self.actors[role].stdout: role for role in self.living}
            for pipe in select.select(list(by_pipe), [], [], left)[0]:
                role, part = by_pipe[pipe], os.read(pipe.fileno(), 65536)
                if not part:
                    self.take_end(role)
                    continue
                *lines, self.waiting[role] = (self.waiting[role] + part).split(b"\n")
                for line in lines:
                    self.take(role, json.loads(line))
        for actor in self.actors.values():
            actor.kill()
            actor.wait()


def start_broker(program, folder, fake):
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    command = [program, "--private", "--directory", folder, "--ready-fd", str(writing), "--idle-exit", "forever"]
    # In some sandboxes nobody can tell which node is whose.
    if not fake and not os.path.isdir("/proc/driver/nvidia/gpus"):
        tell("gpu_hold", "trust: the broker holds no device; whether another one does is not known")
        with open(os.path.join(folder, "broker.toml"), "w") as file:
            file.write('gpu_hold = "trust"\n')
        command += ["--config", file.name]
    if fake:
        command += ["--seam", f"gpu={folder}/nodes"]
    log = open(os.path.join(folder, "broker.log"), "wb")
    broker = subprocess.Popen(command, pass_fds=[writing], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                              preexec_fn=die_with_parent)  # fmt: skip
    os.close(writing)
    ready = select.select([reading], [], [], 30)[0] and os.read(reading, 1) == b"\n"
    os.close(reading)
    if not ready:
        broker.kill()
        broker.wait()
        raise AssertionError(f"the broker did not start: {open(log.name).read()[-600:]}")
    return broker


def ask(given):
    folder = tempfile.mkdtemp(prefix="case-")
    nodes = os.path.join(folder, "nodes")
    os.mkdir(nodes)
    os.environ["REGIONS_LIBRARY"] = os.path.abspath(given.library)
    os.environ["REGIONS_SOCKET"] = os.path.join(folder, "socket")
    if given.fake:
        os.environ.update(REGIONS_FAKE="1", FAKECUDA_NODES=nodes, FAKECUDA_DEVICES="2")
    if given.fake or given.plain:
        os.environ["REGIONS_PLAIN"] = "1"
    try:
        broker = start_broker(os.path.abspath(given.broker), folder, given.fake)
    except AssertionError as why:
        return "fail", str(why)
    try:
        case = Case(given.case, Session().make_group())
        case.run()
        return case.verdict, case.reason
    except Failure as why:
        return "fail", f"the runner's own session: {why}"
    finally:
        broker.terminate()
        broker.wait()


def main():
    if sys.argv[1:2] == ["--actor"]:
        be_actor(*sys.argv[2:5])
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", required=True)
    parser.add_argument("--broker", required=True)
    parser.add_argument("--fake", action="store_true")
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("case", choices=CASES)
    verdict, reason = ask(parser.parse_args())
    if verdict != "pass":
        print(f"{'-skip' if verdict == 'skip' else '!fail'}\t{reason}".replace("\n", " "), flush=True)
    return 1 if verdict == "fail" else 0


if __name__ == "__main__":
    sys.exit(main())
