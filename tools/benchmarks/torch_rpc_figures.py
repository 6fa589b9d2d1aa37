#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""shmbroker.torch.rpc beside torch.distributed.rpc: the same calls between the same two processes, in turn.

usage: PYTHONPATH=BUILD/python SHMBROKER_DAEMON=BUILD/daemon/shmbrokerd torch_rpc_figures.py [ROUNDS]
One line for each figure: medians of all rounds in microseconds, and the ratio of the medians. Exit status 77 where torch
is not installed.
"""
import os
import statistics
import subprocess
import sys
import tempfile
import time

try:
    import torch
    import torch.distributed.rpc as stock
except ImportError:
    sys.exit(77)
import shmbroker.torch.rpc as ours


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


def work(rank, meeting, rounds):
    stock.init_rpc(f"w{rank}", rank=rank, world_size=2,
                   rpc_backend_options=stock.TensorPipeRpcBackendOptions(init_method=f"file://{meeting}"))
    ours.init_rpc(f"w{rank}", rank=rank, world_size=2,
                  rpc_backend_options=ours.TensorPipeRpcBackendOptions(init_method=f"file://{meeting}-ours"))
    if rank == 0:
        measure(rounds)
    ours.shutdown()
    stock.shutdown()


def measure(rounds):
    small = torch.ones(4096, dtype=torch.uint8)
    large = {rpc: rpc.remote("w1", make, args=(64 << 20,)) for rpc in (stock, ours)}
    figures = {
        "rpc_sync 4 KiB": (lambda rpc: lambda: rpc.rpc_sync("w1", give_back, args=(small,)), 200),
        "to_here 64 MiB": (lambda rpc: large[rpc].to_here, 5),
    }
    for name, (call, count) in figures.items():
        seen = {stock: [], ours: []}
        for rpc in seen:
            times(call(rpc), 2)
        for _ in range(rounds):
            for rpc in seen:
                seen[rpc] += times(call(rpc), count)
        a, b = statistics.median(seen[ours]), statistics.median(seen[stock])
        print(f"{name}: ours {a:.0f} us, torch {b:.0f} us, ratio {a / b:.4f} (1/{b / a:.1f})", flush=True)


def main():
    if len(sys.argv) == 4:
        # Functions are sent under the name of the module.
        import torch_rpc_figures

        torch_rpc_figures.work(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
        return
    rounds = sys.argv[1] if len(sys.argv) > 1 else "7"
    here = os.path.dirname(os.path.abspath(__file__))
    variables = dict(os.environ, PYTHONPATH=os.pathsep.join([here, os.environ.get("PYTHONPATH", "")]))
    with tempfile.TemporaryDirectory() as folder:
        workers = [subprocess.Popen([sys.executable, __file__, str(rank), os.path.join(folder, "meeting"), rounds],
                                    env=variables) for rank in range(2)]
        sys.exit(max(worker.wait() for worker in workers))


if __name__ == "__main__":
    main()
