#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The same calls with torch.distributed.rpc, for families/remote.cpp: medians and p99 in microseconds, one line each.

usage: torch_rpc.py COUNT BYTES...
Exit status 77 where torch is not installed.
"""
import os
import sys
import tempfile
import time

try:
    import torch
    import torch.distributed.rpc as rpc
    import torch.multiprocessing as mp
except ImportError:
    sys.exit(77)


def give_back(value):
    return value


def timed(what, count):
    each = []
    for _ in range(count):
        begin = time.perf_counter()
        what()
        each.append((time.perf_counter() - begin) * 1e6)
    each.sort()
    return each[len(each) // 2], each[min(len(each) - 1, int(len(each) * 0.99))]


def work(rank, folder, count, sizes):
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{folder}/meet")
    rpc.init_rpc(f"w{rank}", rank=rank, world_size=2, rpc_backend_options=options)
    if rank == 0:
        for size in sizes:
            value = torch.ones(size, dtype=torch.uint8)
            reference = rpc.remote("w1", give_back, args=(value,))
            reference.to_here()
            times = max(min(count, 15), min(count, count * 4096 // size * 16))
            kept = []
            for name, what in (
                ("rpc_sync", lambda: rpc.rpc_sync("w1", give_back, args=(value,))),
                ("remote", lambda: kept.append(rpc.remote("w1", give_back, args=(value,)))),
                ("to_here", reference.to_here),
            ):
                print(name, size, *timed(what, times), flush=True)
                for one in kept:
                    one.to_here()
                kept.clear()
    rpc.shutdown()


def main():
    count, sizes = int(sys.argv[1]), [int(size) for size in sys.argv[2:]]
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, args=(folder, count, sizes), nprocs=2)


if __name__ == "__main__":
    main()
