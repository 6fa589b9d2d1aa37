#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The family `python` of tools/bench: the package beside Python's standard library, in turn, in one run.

usage: python_figures.py [--quick] [--json FILE]
"""
import argparse
import json
import multiprocessing
import os
import platform
import statistics
import sys
import time
from multiprocessing import shared_memory

import shmbroker


def nothing(rank):
    pass


def ours_ranks():
    shmbroker.spawn(nothing, nprocs=8, start_method="forkserver")


def theirs_ranks():
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=nothing, args=(rank,)) for rank in range(8)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


def memory(kind):
    def once():
        made = kind(create=True, size=1 << 20)
        there = kind(made.name)
        there.close()
        made.close()
        made.unlink()
    return once


def timed(call, count):
    begin = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - begin) * 1e6 / count


def compared(name, ours, theirs, bound, repetitions, count, warm=True):
    """A record as those of the other families: `floor` is the time of the other side."""
    if warm:
        timed(ours, 1), timed(theirs, 1)
    pairs = [(timed(ours, count), timed(theirs, count)) for _ in range(repetitions)]
    value, floor = (statistics.median(side) for side in zip(*pairs))
    mine = [pair[0] for pair in pairs]
    record = {"name": name, "value": value, "unit": "us", "floor": floor, "ratio": value / floor,
              "target": f"<= {bound:g} x floor", "met": value <= bound * floor, "n": repetitions, "min": min(mine),
              "max": max(mine), "engine": "", "peers": {}}
    print(f"{name:<30} {value:>10.1f} {floor:>10.1f} us     {record['ratio']:>7.2f} {record['target']:<15} "
          f"{'yes' if record['met'] else 'NO':<6} {min(mine):>10.1f} {max(mine):>10.1f} {repetitions:>4}", flush=True)
    return record


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="each figure once: a smoke test, not a measurement")
    parser.add_argument("--json")
    options = parser.parse_args()
    load, times = os.getloadavg()[0], 1 if options.quick else 11
    figures = [
        compared("python.ranks.8", ours_ranks, theirs_ranks, 0.5, times, 1),
        compared("python.shared_memory.1MiB", memory(shmbroker.SharedMemory), memory(shared_memory.SharedMemory), 0.5,
                 times, 3 if options.quick else 200),
    ]
    if options.json:
        with open("/proc/cpuinfo", encoding="utf-8") as text:
            cpu = next((line.split(": ", 1)[1].strip() for line in text if line.startswith("model name")), "")
        document = {"schema": "shmbroker-bench-1", "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                    "cpu": cpu or platform.machine(), "cores": os.cpu_count(),
                    "kernel": f"{platform.system()} {platform.release()}", "build": f"Python {platform.python_version()}",
                    "load_before": load, "quick": options.quick, "figures": figures}
        with open(options.json, "w", encoding="utf-8") as out:
            json.dump(document, out, indent=2)
            out.write("\n")


if __name__ == "__main__":
    sys.exit(main())
