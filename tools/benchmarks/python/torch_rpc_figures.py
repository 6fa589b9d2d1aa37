#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""shmbroker.torch.rpc beside torch.distributed.rpc: the same calls between two processes of each, in turn.

usage: PYTHONPATH=BUILD/python SHMBROKER_DAEMON=BUILD/daemon/shmbrokerd torch_rpc_figures.py [ROUNDS]
One line for each figure: medians of all rounds in microseconds, and the ratio of the medians. Each round starts two
processes for either module, because the threads of torch's transport look for messages without a pause and would take
time from the other one. Exit status 77 where torch is not installed.
"""
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

MODULES = {"ours": "shmbroker.torch.rpc", "torch": "torch.distributed.rpc"}
COUNTS = {"rpc_sync 4 KiB": 500, "to_here 64 MiB": 15}

try:
    import torch
except ImportError:
    sys.exit(77)


def give_back(value):
    return value


def make(count):
    return torch.ones(count, dtype=torch.uint8)


def times(what, count):
    each = []
    for _ in range(count):
        begin = time.perf_counter()
        what()
        each.append((time.perf_counter() - begin) * 1e6)
    return each


def work(rank, module, meeting):
    rpc = importlib.import_module(module)
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{meeting}")
    rpc.init_rpc(f"w{rank}", rank=rank, world_size=2, rpc_backend_options=options)
    if rank == 0:
        small = torch.ones(4096, dtype=torch.uint8)
        large = rpc.remote("w1", make, args=(64 << 20,))
        calls = [lambda: rpc.rpc_sync("w1", give_back, args=(small,)), large.to_here]
        for name, call in zip(COUNTS, calls):
            times(call, 2)
            print(json.dumps([name, times(call, COUNTS[name])]), flush=True)
    rpc.shutdown()


def measure(module, folder, number):
    here = os.path.dirname(os.path.abspath(__file__))
    variables = dict(os.environ, PYTHONPATH=os.pathsep.join([here, os.environ.get("PYTHONPATH", "")]))
    meeting = os.path.join(folder, f"{module}-{number}")
    workers = [subprocess.Popen([sys.executable, __file__, str(rank), module, meeting], env=variables, text=True,
                                stdout=subprocess.PIPE) for rank in range(2)]
    told = [worker.communicate()[0] for worker in workers]
    if any(worker.returncode != 0 for worker in workers):
        sys.exit(1)
    return [json.loads(line) for line in told[0].splitlines()]


def main():
    if len(sys.argv) == 4:
        # Functions are sent under the name of the module.
        import torch_rpc_figures

        torch_rpc_figures.work(int(sys.argv[1]), sys.argv[2], sys.argv[3])
        return
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    seen = {name: {side: [] for side in MODULES} for name in COUNTS}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            for side, module in MODULES.items():
                for name, each in measure(module, folder, number):
                    seen[name][side] += each
    for name, sides in seen.items():
        ours, stock = statistics.median(sides["ours"]), statistics.median(sides["torch"])
        print(f"{name}: ours {ours:.0f} us, torch {stock:.0f} us, ratio {ours / stock:.4f} (1/{stock / ours:.1f})")


if __name__ == "__main__":
    main()
