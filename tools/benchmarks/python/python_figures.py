#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The family `python` of tools/bench: the package beside Python's standard library and the C functions, in one run.

Both sides of a figure are measured in turn, so that a slow second affects both. `floor` is the other side's value.

usage: python_figures.py [--quick] [--json FILE] [--calls LIBRARY] [PART...]
"""
import argparse
import json
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import time
from multiprocessing import shared_memory

import python_calls
import python_queues as queues
import shmbroker
from shmbroker import mp

SIZE = 1 << 20


class Bench:
    def __init__(self, times, quick):
        self.times, self.quick, self.records = times, quick, []

    def pairs(self, ours, theirs, count, turns=1):
        """Both sides' values, measured in turn after one measurement that does not count."""
        ours(1), theirs(1)
        count = min(count, 3) if self.quick else count
        return [(ours(count), theirs(count)) for _ in range(self.times * (1 if self.quick else turns))]

    def record(self, name, unit, pairs, target="-", better="<", **peers):
        """target: "<= 0.5 x floor", ">= 2 x floor", or "<= 15" of the value; better: which way a figure without one is read."""
        value, floor = (statistics.median(side) for side in zip(*pairs))
        mine = [pair[0] for pair in pairs]
        sign, bound, *of_floor = target.split() if target != "-" else ("", "inf")
        compared = value / floor if of_floor else value
        met = target == "-" or (compared <= float(bound) if sign == "<=" else compared >= float(bound))
        record = {"name": name, "value": value, "unit": unit, "floor": floor, "ratio": value / floor, "target": target,
                  "met": met, "n": len(pairs), "min": min(mine), "max": max(mine), "engine": "", "peers": peers}
        print(f"{name:<38} {value:>10.4g} {floor:>10.4g} {unit:<6} {value / floor:>8.3f} {target:<15} "
              f"{'yes' if met else 'NO':<4} {min(mine):>10.4g} {max(mine):>10.4g} {len(pairs):>4}", flush=True)
        self.records.append(record)


def nothing(rank):
    pass


def ours_ranks(count):
    begin = time.perf_counter()
    shmbroker.spawn(nothing, nprocs=8, start_method="forkserver")
    return (time.perf_counter() - begin) * 1e3


def theirs_ranks(count):
    begin = time.perf_counter()
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=nothing, args=(rank,)) for rank in range(8)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return (time.perf_counter() - begin) * 1e3


def ranks(bench):
    bench.record("python.ranks.8", "ms", bench.pairs(ours_ranks, theirs_ranks, 1), "<= 0.5 x floor")


def memory(kind, touched):
    page = b"\1" * (SIZE // 4096)

    def measure(count):
        begin = time.perf_counter()
        for _ in range(count):
            made = kind(create=True, size=SIZE)
            if touched:
                made.buf[::4096] = page
            there = kind(made.name)
            there.close()
            made.close()
            made.unlink()
        return (time.perf_counter() - begin) * 1e6 / count
    return measure


def shared(bench):
    for name, touched, target in ("touched", True, "<= 0.5 x floor"), ("untouched", False, "-"):
        pairs = bench.pairs(memory(shmbroker.SharedMemory, touched), memory(shared_memory.SharedMemory, touched), 100)
        bench.record(f"python.shared_memory.1MiB.{name}", "us", pairs, target)


def calls(bench, library):
    if library is None:
        return
    for name, ours, theirs, count, turns in python_calls.Calls(library).figures():
        pairs = bench.pairs(ours, theirs, count, turns)
        added = statistics.median(pair[0] - pair[1] for pair in pairs)
        bench.record(f"python.core.{name}", "us", pairs, added=added)
        # The difference of each pair, beside the C function's own time.
        differences = [(pair[0] - pair[1], pair[1]) for pair in pairs]
        bench.record(f"python.core.{name}.added", "us", differences, "<= 0.15")


def pair_of(bench, name, unit, ours, theirs, count, target, peers=()):
    """peers: (name, line) measured in turn with the two."""
    values = {key: [] for key, _ in peers}

    def mine(number):
        for key, line in peers:
            values[key].append(line.measure(number))
        return ours.measure(number)
    pairs = bench.pairs(mine, theirs.measure, count)
    beside = {key: statistics.median(found[1:]) for key, found in values.items()}
    bench.record(name, unit, pairs, target, **beside)
    return pairs, {key: found[1:] for key, found in values.items()}


def small(bench):
    ours, theirs, simple = queues.Echo(mp), queues.Echo(multiprocessing), queues.Echo(multiprocessing, "SimpleQueue")
    pair_of(bench, "python.queue.latency.100B", "us", ours, theirs, 1000, "<= 0.333 x floor", [("SimpleQueue", simple)])
    for line in ours, theirs, simple:
        line.close()
    ours, theirs, simple = (queues.Stream(mp), queues.Stream(multiprocessing),
                            queues.Stream(multiprocessing, "SimpleQueue"))
    pairs, beside = pair_of(bench, "python.queue.throughput.100B", "k/s", ours, theirs, 20000, ">= 2 x floor",
                            [("SimpleQueue", simple)])
    bench.record("python.queue.throughput.100B.simple", "k/s",
                 [(pair[0], other) for pair, other in zip(pairs, beside["SimpleQueue"])], ">= 1 x floor")
    for line in ours, theirs, simple:
        line.close()


def arrays(bench):
    ours, theirs = queues.Arrays(mp), queues.Arrays(multiprocessing)
    pair_of(bench, "python.array.64MiB.put", "GB/s", ours, theirs, 12, ">= 5 x floor")
    ours.close(), theirs.close()
    ours, theirs = queues.HandedOver(mp), queues.Refilled()
    pair_of(bench, "python.array.64MiB.empty", "GB/s", ours, theirs, 24, ">= 0.9 x floor")
    ours.close(), theirs.close()


def imported(module):
    """Processor time, because an import waits for nothing, and what else runs here must not count."""
    code = f"import time; begin = time.process_time(); import {module}; print((time.process_time() - begin) * 1e3)"

    def measure(count):
        return float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    return measure


def import_time(bench):
    pairs = bench.pairs(imported("shmbroker"), imported("multiprocessing.shared_memory"), 1)
    bench.record("python.import", "ms", pairs, "<= 15")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = {"ranks": ranks, "shared_memory": shared, "core": None, "queue": small, "array": arrays, "import": import_time}
    parser.add_argument("PART", nargs="*", help=f"of {', '.join(parts)}; none: all")
    parser.add_argument("--quick", action="store_true", help="each figure once: a smoke test, not a measurement")
    parser.add_argument("--json")
    parser.add_argument("--calls", help="the library of python_calls.c, the C side of python.core")
    options = parser.parse_args()
    unknown = [part for part in options.PART if part not in parts]
    if unknown:
        parser.error(f"no part {unknown[0]!r}: there are {', '.join(parts)}")
    parts["core"] = lambda bench: calls(bench, options.calls)
    load = os.getloadavg()[0]
    bench = Bench(1 if options.quick else 11, options.quick)
    for part in options.PART or parts:
        parts[part](bench)
    if options.json:
        with open("/proc/cpuinfo", encoding="utf-8") as text:
            cpu = next((line.split(": ", 1)[1].strip() for line in text if line.startswith("model name")), "")
        document = {"schema": "shmbroker-bench-1", "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                    "cpu": cpu or platform.machine(), "cores": os.cpu_count(),
                    "kernel": f"{platform.system()} {platform.release()}", "build": f"Python {platform.python_version()}",
                    "load_before": load, "quick": options.quick, "figures": bench.records}
        with open(options.json, "w", encoding="utf-8") as out:
            json.dump(document, out, indent=2)
            out.write("\n")


if __name__ == "__main__":
    sys.exit(main())
