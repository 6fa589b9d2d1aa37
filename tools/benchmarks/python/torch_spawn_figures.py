#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The start and end of 8 ranks that import torch: shmbroker.torch.spawn beside stock torch, in turn, in one run.

usage: torch_spawn_figures.py [--quick] [--rounds N]
One line for each figure: medians of all rounds, the target for their ratio, and the smallest and largest of ours. Exit
status 77 where torch is not installed.
"""
import argparse
import importlib
import os
import sys

try:
    import torch
except ImportError:
    sys.exit(77)
from shmbroker.torch.spawn import start_processes

from compared import compared

stock = importlib.import_module("torch.multiprocessing.spawn").start_processes
RANKS = 8


def rank(number):
    torch.zeros(number + 1)


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--quick", action="store_true", help="each figure once: a smoke test, not a measurement")
    options.add_argument("--rounds", type=int, default=5)
    asked = options.parse_args()
    rounds = 1 if asked.quick else asked.rounds
    print(f"load average {os.getloadavg()[0]:.1f}, torch {torch.__version__}, {RANKS} ranks, {rounds} rounds", flush=True)
    for name, ours, theirs, bound in (("torch.ranks.forkserver", "forkserver", "spawn", 0.5),
                                      ("torch.ranks.forkserver.both", "forkserver", "forkserver", 0.5),
                                      ("torch.ranks.spawn", "spawn", "spawn", 1.05),
                                      ("torch.ranks.fork", "fork", "fork", 2)):  # guard and supervisor are copies too
        compared(name, lambda: start_processes(rank, nprocs=RANKS, start_method=ours),
                 lambda: stock(rank, nprocs=RANKS, start_method=theirs), bound, rounds, 1, warm=not asked.quick)


if __name__ == "__main__":
    main()
