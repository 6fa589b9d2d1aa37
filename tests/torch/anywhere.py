#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The promises of shmbroker.torch, asked of the torch that is installed here. It needs no pytest, no GPU and no build
tree: the package shmbroker is an installed wheel, or is found by PYTHONPATH and SHMBROKER_DAEMON (docs/testing.md).

Each check is a program of its own with a time limit. One line is printed for each. Exit status: 1 where one failed, 77
without torch.

usage: anywhere.py [CHECK...]
"""
import os
import socket
import subprocess
import sys
import tempfile

LIMIT = 240  # seconds of one check
METHODS = ("fork", "spawn", "forkserver")


def installed():
    import shmbroker.torch
    assert shmbroker.torch.install(), "install() says that torch stays as it is"


# ------------------------------------------------------------------------------------------------ what children run

def fill(tasks, sums):
    while (got := tasks.get()) is not None:
        got.fill_(4)
        total = got.double().sum().item()
        del got
        sums.put(total)


def send_and_die(queue):
    import signal

    import torch
    queue.put(torch.full((1024, 1024), 7.0))
    os.kill(os.getpid(), signal.SIGKILL)


def rank_fails(rank, tensor):
    tensor[rank] = rank + 1
    if rank == 1:
        raise ValueError("as asked")


class Images:
    def __len__(self):
        return 24

    def __getitem__(self, index):
        import torch
        return torch.full((3, 64, 64), float(index)), index


# ------------------------------------------------------------------------------------------------ the checks

def check_hooks():
    """All that install() enters torch by is there."""
    import torch
    installed()
    from shmbroker.torch import wanted
    assert not wanted.missing(), wanted.missing()
    assert "shmbroker" in torch.multiprocessing.Queue.__module__


def check_share_memory():
    import torch
    installed()
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64):
        tensor = torch.ones(5, 5).to(dtype)
        part, before = tensor[1], tensor.clone()
        assert not tensor.is_shared()
        assert tensor.share_memory_() is tensor and tensor.is_shared() and part.is_shared()
        assert tensor.equal(before)
        part.zero_()
        assert tensor[1].eq(0).all()
    assert torch.empty(0).share_memory_().is_shared()
    model = torch.nn.Linear(300, 300).share_memory()
    assert all(one.is_shared() for one in model.parameters())
    assert model(torch.ones(300)).shape == (300,)


def _check_queue(method):
    import torch
    installed()
    context = torch.multiprocessing.get_context(method)
    tasks, sums = context.Queue(), context.Queue()
    process = context.Process(target=fill, args=(tasks, sums))
    process.start()
    for shape in ((8,), (8,), (1024, 1024), (3, 1 << 20)):
        tensor = torch.zeros(shape)
        tasks.put(tensor)
        assert sums.get() == 4 * tensor.numel() and tensor.eq(4).all()
    small = torch.ones(4).share_memory_()
    for _ in range(5):
        tasks.put(small)
        assert sums.get() == 16
    tasks.put(torch.arange(6.0).reshape(2, 3).t())
    assert sums.get() == 24
    tasks.put(None)
    process.join()
    assert process.exitcode == 0
    queue = context.Queue()
    process = context.Process(target=send_and_die, args=(queue,))
    process.start()
    process.join()
    assert queue.get(timeout=30).eq(7).all()


def check_pipes_and_odd_tensors():
    import torch
    installed()
    reader, writer = torch.multiprocessing.Pipe(False)
    tensor = torch.ones(1 << 18)
    writer.send([tensor, tensor[1:]])
    one, rest = reader.recv()
    rest[0] = 3
    assert one[1] == 3 == tensor[1]
    queue = torch.multiprocessing.SimpleQueue()
    parameter = torch.nn.Parameter(torch.ones(3))
    queue.put([parameter, torch.ones(3, requires_grad=True), torch.empty(0, 3)])
    got = queue.get()
    assert type(got[0]) is torch.nn.Parameter and got[0].requires_grad and got[1].requires_grad
    assert got[2].shape == (0, 3)
    try:
        queue.put(torch.ones(3, requires_grad=True) * 2)
    except RuntimeError as error:
        assert "requires_grad" in str(error)
    else:
        raise AssertionError("a tensor that is no leaf was sent")
    queue.put(torch.zeros(64 << 20, dtype=torch.uint8)[5:6])
    part = queue.get()
    memory = part.untyped_storage() if hasattr(part, "untyped_storage") else part.storage()
    assert memory.nbytes() < 4096


def check_loader():
    import torch
    from torch.utils.data import DataLoader
    installed()
    pinned = torch.cuda.is_available()
    for method in METHODS:
        loader = DataLoader(Images(), batch_size=4, num_workers=2, persistent_workers=True,
                            multiprocessing_context=method, pin_memory=pinned)
        for _ in range(2):
            seen = []
            for batch, index in loader:
                assert batch[:, 0, 0, 0].equal(index.float())
                assert batch.is_pinned() if pinned else batch.is_shared()
                seen += index.tolist()
            assert seen == list(range(24))
        del loader


def check_uninstall():
    import torch
    from multiprocessing.reduction import ForkingPickler
    from torch.utils.data import dataloader
    kinds = (torch.UntypedStorage, torch.multiprocessing, dataloader._MultiProcessingDataLoaderIter)

    def state():
        return [dict(vars(kind)) for kind in kinds], {of: reducer for of, reducer in
                                                      ForkingPickler._extra_reducers.items()
                                                      if "shmbroker" not in of.__module__}

    before = state()
    installed()
    installed()
    import shmbroker.torch
    shmbroker.torch.uninstall()
    assert state() == before
    assert torch.ones(3).share_memory_().is_shared()


def _check_spawn(method):
    import importlib

    import torch
    installed()
    from shmbroker.torch.spawn import ProcessRaisedException, start_processes
    stock = importlib.import_module("torch.multiprocessing.spawn")
    tensor = torch.zeros(2).share_memory_()
    try:
        start_processes(rank_fails, (tensor,), nprocs=2, start_method=method)
    except ProcessRaisedException as error:
        assert isinstance(error, stock.ProcessException) and error.error_index == 1
        assert str(error).rstrip().endswith("ValueError: as asked")
    else:
        raise AssertionError("the failure of a rank was not told")
    assert tensor[1] == 2


def check_rpc():
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    variables = dict(os.environ, MASTER_ADDR="localhost", MASTER_PORT=str(port))
    other = subprocess.Popen([sys.executable, __file__, "--worker"], env=variables)
    os.environ.update(variables)
    import torch

    import shmbroker.torch.rpc as rpc
    rpc.init_rpc("w0", rank=0, world_size=2)
    assert rpc.rpc_sync("w1", torch.add, args=(torch.ones(2), 3)).tolist() == [4, 4]
    rref = rpc.remote("w1", torch.ones, args=(1 << 22,))
    for _ in range(2):
        value = rref.to_here()
        assert value.sum() == 1 << 22
        value.zero_()
    assert rref.rpc_sync().sum() == 1 << 22
    rpc.shutdown()
    assert other.wait() == 0


def worker():
    import shmbroker.torch.rpc as rpc
    rpc.init_rpc("w1", rank=1, world_size=2)
    rpc.shutdown()


def checks():
    found = {name[6:]: one for name, one in globals().items() if name.startswith("check_")}
    for method in METHODS:
        found["queue_" + method] = lambda method=method: _check_queue(method)
        found["spawn_" + method] = lambda method=method: _check_spawn(method)
    return found


def main():
    if sys.argv[1:] == ["--worker"]:
        return worker()
    if len(sys.argv) == 3 and sys.argv[1] == "--check":
        return checks()[sys.argv[2]]()
    try:
        import torch
    except ImportError:
        print("torch is not installed")
        return 77
    import shmbroker
    print(f"torch {torch.__version__}, CUDA {torch.version.cuda or 'not there'}, Python {sys.version.split()[0]}, "
          f"shmbroker {shmbroker.__version__} from {os.path.dirname(shmbroker.__file__)}", flush=True)
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        variables = dict(os.environ, XDG_RUNTIME_DIR=folder)  # a private broker of its own, which ends with its users
        for name in sys.argv[1:] or checks():
            try:
                done = subprocess.run([sys.executable, os.path.abspath(__file__), "--check", name], env=variables,
                                      capture_output=True, text=True, timeout=LIMIT)
                said, status = done.stdout + done.stderr, done.returncode
            except subprocess.TimeoutExpired as error:
                said, status = f"{error.stdout or ''}{error.stderr or ''}\nit took over {LIMIT} s", 1
            failed += status != 0
            print(f"{'FAILED' if status else 'ok'} {name}", flush=True)
            if status or "Warning" in said:
                print("    " + said.strip().replace("\n", "\n    "), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
