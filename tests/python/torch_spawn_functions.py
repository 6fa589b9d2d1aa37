# SPDX-License-Identifier: Apache-2.0
"""Functions for the ranks of test_torch_spawn.py that use torch, in a module that ranks can import."""
import os
import signal
import time

import torch
import torch.distributed
import torch.utils.data

from shmbroker import ranks
from shmbroker.torch.spawn import start_processes

torch.set_num_threads(1)


def fill(rank, whole, views):
    whole[rank] = rank + 1
    for view in views:
        assert view.storage().data_ptr() == views[0].storage().data_ptr()
        view[rank] += 1


def use_installed(rank, whole, base, queue):
    import shmbroker.mp.place
    import shmbroker.torch
    whole[rank] = rank + 1
    base[1:][rank] += 1
    mine = torch.ones(8).share_memory_()
    queue.put((shmbroker.torch.installed(), shmbroker.mp.place.address(), float(mine.sum())))


def add_to_all(rank, tensors):
    for tensor in tensors:
        tensor[rank] += 1


def give_lambda(rank):
    return lambda: None


def meet(rank, world, rendezvous):
    torch.distributed.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world)
    torch.distributed.barrier()


def fail_beside_barrier(rank, how, group, rendezvous):
    """Rank 1 fails while the others wait for it, in gloo or in the ranks' own barrier."""
    if group == "gloo":
        meet(rank, 3, rendezvous)
        wait = torch.distributed.barrier
    else:
        wait = ranks.barrier
        wait()
    if rank == 1:
        time.sleep(0.05)
        if how == "raise":
            raise ValueError("the cause")
        if how == "exit":
            os._exit(9)
        os.kill(os.getpid(), signal.SIGKILL)
    wait("wait") if group != "gloo" else wait()


def reduce_all(rank, world, rendezvous, out):
    meet(rank, world, rendezvous)
    value = torch.full((4,), float(rank))
    torch.distributed.all_reduce(value)
    out[rank] = value


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.tensor([float(index * index)])


def load(rank, out):
    loader = torch.utils.data.DataLoader(Squares(), batch_size=4, num_workers=1)
    out[rank] = sum(float(batch.sum()) for batch in loader)


def child(queue):
    queue.put(3.0)


def start_children(rank, out):
    """A process of multiprocessing, ranks of its own, and the workers of a DataLoader."""
    context = torch.multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    out[0] = queue.get()
    process.join()
    inner = torch.zeros(2, 2).share_memory_()
    start_processes(fill, (inner.view(-1), [inner[0], inner[0]]), 2, start_method="fork")
    out[1] = inner.sum()
    load(rank, out[2:])


def sleep_with_pid(rank, path):
    with open(f"{path}.{rank}", "w") as file:
        file.write(str(os.getpid()))
    os.replace(f"{path}.{rank}", f"{path}.{rank}.ready")
    time.sleep(600)


def grandchildren(rank, path):
    """Two ranks of its own, and then a death by SIGTERM."""
    start_processes(sleep_with_pid, (path,), 2, join=False, start_method="fork")
    while not all(os.path.exists(f"{path}.{number}.ready") for number in range(2)):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)


def stubborn(rank, path):
    """All catch every exception. Rank 1 is in native code, rank 2 ignores the signals."""
    if rank == 2:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with open(f"{path}.{rank}", "w") as file:
        file.write(str(os.getpid()))
    os.replace(f"{path}.{rank}", f"{path}.{rank}.ready")
    matrix = torch.ones(1500, 1500, dtype=torch.float64)
    while True:
        try:
            time.sleep(600) if rank != 1 else matrix @ matrix
        except BaseException:
            pass


def draw(rank, out):
    import random

    import numpy
    out[rank] = torch.tensor([torch.rand(1, dtype=torch.float64).item(), numpy.random.rand(), random.random()])


def daemon_loads(rank, out):
    load(rank, out)
    time.sleep(600)
