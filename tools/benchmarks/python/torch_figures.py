#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The family `torch` of tools/bench: tensors with shmbroker.torch.install() beside stock torch, in turn, in one run.

Each side is a process of its own, which stays: ours, and stock torch with each of its strategies. Each has a consumer,
started by spawn. This program asks one side after the other for one measurement, again and again, so all sides see the
same machine. Each figure is the median of its rounds.

usage: torch_figures.py [--quick] [--json FILE]
"""
import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time

SIDES = ("shmbroker", "file_descriptor", "file_system")
SMALL, LARGE = 4096, 64 << 20


# ------------------------------------------------------------------------------------------------------- one side

def consume(tasks, back, strategy):
    import torch.multiprocessing
    if strategy is not None:
        torch.multiprocessing.set_sharing_strategy(strategy)
    kept = None
    while True:
        how, tensor = tasks.get()
        if how == "end":
            return
        tensor[0].item(), tensor[-1].item()
        if how == "keep":
            kept = tensor
        elif how == "drop":
            kept = None
        del tensor
        back.put(time.perf_counter())
    del kept


class Side:
    def __init__(self, name):
        import torch
        import torch.multiprocessing as multiprocessing
        if name == "shmbroker":
            import shmbroker.torch
            assert shmbroker.torch.install()
        else:
            multiprocessing.set_sharing_strategy(name)
        self.torch = torch
        context = multiprocessing.get_context("spawn")
        self.tasks, self.back = context.Queue(), context.Queue()
        self.consumer = context.Process(target=consume,
                                        args=(self.tasks, self.back, None if name == "shmbroker" else name))
        self.consumer.start()
        self.small = torch.zeros(SMALL, dtype=torch.uint8).share_memory_()
        self.data = None

    def resend(self, how, count):
        """Median microseconds from put until the consumer has looked at it."""
        times = []
        for _ in range(count):
            begin = time.perf_counter()
            self.tasks.put((how, self.small))
            times.append(self.back.get() - begin)
        return statistics.median(times) * 1e6

    def fill(self, how, count):
        """GB/s of tensors that are filled and sent, four in flight: new ones, or four in turn."""
        torch, waiting = self.torch, 0
        ring = [torch.empty(LARGE, dtype=torch.uint8).share_memory_() for _ in range(4)] if how == "ring" else None
        for number in range(count + 8):
            if number == 8:
                begin = time.perf_counter()
            if waiting == 4:
                self.back.get()
                waiting -= 1
            if ring is not None:
                tensor = ring[number % 4]
            else:
                tensor = torch.empty(0, dtype=torch.uint8).set_(torch.UntypedStorage._new_shared(LARGE))
            tensor.fill_(number)
            self.tasks.put(("drop", tensor))
            del tensor
            waiting += 1
        while waiting:
            self.back.get()
            waiting -= 1
        return count * LARGE / (time.perf_counter() - begin) / 1e9

    def loader(self, workers, count):
        """Batches of 64 x 3 x 224 x 224 per second, of workers that only copy."""
        from torch.utils.data import DataLoader
        if self.data is None:
            self.data = Images(self.torch)
        batches = iter(DataLoader(self.data, batch_size=64, num_workers=workers, multiprocessing_context="fork" if workers
                                  else None, sampler=range(64 * (count + 4))))
        for _ in range(4):
            next(batches)
        begin = time.perf_counter()
        for _ in range(count):
            next(batches)
        return count / (time.perf_counter() - begin)

    def end(self):
        self.tasks.put(("end", None))
        self.consumer.join()


class Images:
    def __init__(self, torch):
        self.images = torch.ones(64, 3, 224, 224)

    def __getitem__(self, index):
        return self.images[index % 64]


def serve(name):
    side = Side(name)
    print("ready", flush=True)
    for line in sys.stdin:
        method, how, count = line.split()
        print(getattr(side, method)(int(how) if how.isdigit() else how, int(count)), flush=True)
    side.end()


# ----------------------------------------------------------------------------------------------------- all of them

class Asked:
    def __init__(self, name):
        self.process = subprocess.Popen([sys.executable, os.path.abspath(__file__), "--side", name], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if self.process.stdout.readline() != "ready\n":
            raise SystemExit(f"torch_figures: the side {name} did not start: {self.process.wait()}")

    def ask(self, *what):
        print(*what, file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline())

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def record(name, unit, sides, bounds, peers):
    """bounds: side -> factor. Smaller is better for us, larger for the others."""
    values = {side: statistics.median(numbers) for side, numbers in sides.items()}
    mine = values["shmbroker"]
    smaller = unit == "us"
    met = all(mine <= bound * values[side] if smaller else mine >= bound * values[side] for side, bound in bounds.items())
    first = next(iter(bounds))
    made = {"name": name, "value": mine, "unit": unit, "floor": values[first], "ratio": mine / values[first],
            "target": ", ".join(f"{'<=' if smaller else '>='} {bound:g} x {side}" for side, bound in bounds.items()),
            "met": met, "n": len(sides["shmbroker"]), "min": min(sides["shmbroker"]), "max": max(sides["shmbroker"]),
            "engine": "", "peers": {**{side: value for side, value in values.items() if side != "shmbroker"}, **peers}}
    beside = ", ".join(f"{side} {value:.4g} ({mine / value:.2f})" for side, value in made["peers"].items())
    print(f"{name:<26} {mine:>9.4g} {unit:<9} {beside}; {made['target']}: {'yes' if met else 'NO'}", flush=True)
    return made


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="each figure once: a smoke test, not a measurement")
    parser.add_argument("--json")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        return serve(options.side)
    load, rounds = os.getloadavg()[0], 1 if options.quick else 7
    asked = {name: Asked(name) for name in SIDES}
    figures = []

    def turn(method, how, count, sides=SIDES):
        times = {side: [] for side in sides}
        for number in range(rounds + 1):
            for side in sides:
                value = asked[side].ask(method, how, count)
                if number:  # the first round warms up
                    times[side].append(value)
        return times

    few = 20 if options.quick else 300
    figures.append(record("torch.resend.drop.4KiB", "us", turn("resend", "drop", few),
                          {"file_descriptor": 1 / 5, "file_system": 1 / 4}, {}))
    figures.append(record("torch.resend.keep.4KiB", "us", turn("resend", "keep", few),
                          {"file_descriptor": 1 / 2, "file_system": 1 / 2}, {}))
    fast, slow = (8, 4) if options.quick else (60, 12)
    new = {"shmbroker": [], "file_descriptor": [], "ring": []}
    for _ in range(rounds):
        new["shmbroker"].append(asked["shmbroker"].ask("fill", "new", fast))
        new["file_descriptor"].append(asked["file_descriptor"].ask("fill", "new", slow))
        new["ring"].append(asked["file_descriptor"].ask("fill", "ring", fast))
    figures.append(record("torch.new.64MiB", "GB/s", new, {"file_descriptor": 5, "ring": 0.9}, {}))
    sides = ("shmbroker", "file_descriptor")
    none = statistics.median(asked["file_descriptor"].ask("loader", 0, 10) for _ in range(3))
    for workers in (1, 2):
        figures.append(record(f"torch.loader.{workers}", "batches/s", turn("loader", workers, 4 if options.quick else 30, sides),
                              {"file_descriptor": 2}, {"num_workers=0": none}))
    for one in asked.values():
        one.end()
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
    return None


if __name__ == "__main__":
    sys.exit(main())
