#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A launcher of training programs, over one host or several: one call of it for each host, which is a shard.

    launch.py --num-proc 2                                                      # one host
    launch.py --num-proc 2 --num-shards 2 --shard-id 0 --init-method tcp://10.0.0.1:29500
    launch.py --num-proc 2 --num-shards 2 --shard-id 1 --init-method tcp://10.0.0.1:29500

The ranks meet at the init method: tcp://HOST:PORT, file:///PATH of a file system that the hosts share, or env://, which
reads MASTER_ADDR and MASTER_PORT. If a rank fails, the others of its shard are ended, its traceback is printed, and the
exit status is 1. The other shards learn of it when their connections break.
"""
import argparse
import os
import sys

import torch
import torch.distributed
from shmbroker.torch.spawn import spawn


def run(local_rank, num_proc, func, init_method, shard_id, num_shards, backend, cfg):
    """A rank: it meets the ranks of all shards, and calls func(cfg)."""
    torch.distributed.init_process_group(backend=backend, init_method=init_method,
                                         rank=shard_id * num_proc + local_rank, world_size=num_shards * num_proc)
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank)
    func(cfg)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def train(cfg):
    """Finds a line through points. Each rank has points of its own, and all average their gradients."""
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    if rank == cfg["fail"]:
        raise ValueError(f"rank {rank} has no points")
    x = torch.arange(rank, 64, world, dtype=torch.float32).unsqueeze(1) / 64
    y = 3 * x + 1
    model = torch.nn.Linear(1, 1)
    for parameter in model.parameters():
        torch.distributed.broadcast(parameter.data, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(cfg["steps"]):
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            torch.distributed.all_reduce(parameter.grad)
            parameter.grad /= world
        optimizer.step()
    if rank == 0:
        print(f"{world} ranks: y = {model.weight.item():.2f} x + {model.bias.item():.2f}", flush=True)


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--num-proc", type=int, default=1, help="ranks of this host")
    options.add_argument("--num-shards", type=int, default=1, help="hosts")
    options.add_argument("--shard-id", type=int, default=0, help="the number of this host")
    options.add_argument("--init-method", default="env://")
    options.add_argument("--backend", default="nccl" if torch.cuda.is_available() else "gloo")
    options.add_argument("--steps", type=int, default=400)
    options.add_argument("--fail", type=int, help="the rank that fails, to see how that looks")
    asked = options.parse_args()
    if asked.init_method == "env://" and asked.num_shards == 1:
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "29500")
    cfg = {"steps": asked.steps, "fail": asked.fail}
    try:
        spawn(run, nprocs=asked.num_proc, args=(asked.num_proc, train, asked.init_method, asked.shard_id,
                                                asked.num_shards, asked.backend, cfg))
    except torch.multiprocessing.ProcessRaisedException as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
