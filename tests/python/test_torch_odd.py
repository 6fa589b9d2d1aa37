# SPDX-License-Identifier: Apache-2.0
"""Tensors that are odd, programs of which only a part uses the broker, and things that go wrong: each ends as in stock
torch, or in a clear exception, and nothing is lost.

SHMBROKER_KILLS=500 pytest tests/python/test_torch_odd.py -k kills runs the one of random kills for long."""
import gc
import os
import random
import signal
import time

import pytest
from torch_world import end, fork, installed, program, run_beside, start, torch, until, used  # noqa: F401

import shmbroker
import shmbroker.torch
import torch_children as children

KILLS = int(os.environ.get("SHMBROKER_KILLS", "30"))


def as_stock(outcome):
    """The results of `outcome` with install() and without."""
    ours = outcome()
    shmbroker.torch.uninstall()
    try:
        return ours, outcome()
    finally:
        shmbroker.torch.install()


def test_tensors_with_gaps_steps_and_names_arrive_as_with_stock(installed):
    base = torch.arange(24.0).reshape(4, 6)
    named = torch.zeros(2, 3, names=("a", "b"))

    def outcome():
        queue = torch.multiprocessing.SimpleQueue()
        told = []
        for tensor in (base.t(), base[::2, ::3], base[1:, 2], base.flip(0), base[0, 0], named):
            try:
                queue.put(tensor)
                got = queue.get()
                told.append((got.tolist(), got.stride(), got.storage_offset()))
            except Exception as error:
                told.append((type(error), str(error)))
        return told

    ours, stock = as_stock(outcome)
    assert ours == stock


def test_a_subclass_of_tensor_arrives_as_with_stock(installed):
    def outcome():
        queue = torch.multiprocessing.SimpleQueue()
        sent = torch.ones(3).as_subclass(children.Marked)
        sent.mark = "kept"
        queue.put(sent)
        got = queue.get()
        return type(got), got.tolist(), getattr(got, "mark", None), got.is_shared()

    ours, stock = as_stock(outcome)
    assert ours == stock and ours[0] is children.Marked


def test_a_region_under_a_tensor_cannot_be_closed_and_a_closed_one_makes_none(installed):
    from shmbroker.mp import place
    region = place.home()[0].create(4096)
    tensor = torch.frombuffer(memoryview(region), dtype=torch.uint8)  # torch itself holds no buffer, only the object
    with pytest.raises(BufferError, match="in use"):
        region.close()
    queue = torch.multiprocessing.SimpleQueue()
    queue.put(tensor.fill_(3))
    assert queue.get().eq(3).all()
    del tensor
    region.close()
    with pytest.raises(shmbroker.Closed):
        torch.frombuffer(memoryview(region), dtype=torch.uint8)


def test_the_receiver_of_a_pipe_gets_what_a_killed_process_has_sent(fork):
    reader, writer = fork.Pipe(False)
    process = start(fork, children.send_over_pipe_and_die, writer)
    process.join(60)
    assert process.exitcode == -9
    small, large = reader.recv()
    assert small.eq(7).all() and large.eq(7).all() and large.numel() == 1 << 20


def test_memory_that_a_killed_receiver_of_a_pipe_did_not_fetch_comes_back(fork):
    before = used()[1]
    reader, writer = fork.Pipe(False)
    told = fork.Queue()
    process = start(fork, children.receive_one_and_wait, reader, told)
    reader.close()
    for _ in range(4):
        writer.send(torch.ones(1 << 18))
    assert told.get() == 1
    process.kill()
    process.join()
    with pytest.raises(OSError):
        for _ in range(10):
            writer.send(torch.ones(1 << 18))
    writer.close()
    assert until(lambda: used()[1] <= before, 30), used()


MIXED = """
import torch, torch.multiprocessing as mp

def child(tasks, results):
    import sys
    assert not ('shmbroker.torch' in sys.modules and sys.modules['shmbroker.torch'].installed())
    got = tasks.get()
    got.fill_(5)
    results.put(torch.full((3,), 6.0))
    results.put(got)
    tasks.get()

if __name__ == '__main__':
    context = mp.get_context('fork')
    tasks, results = context.Queue(), context.Queue()  # of the standard library
    process = context.Process(target=child, args=(tasks, results))
    process.start()
    import shmbroker.torch
    assert shmbroker.torch.install()
    mine = torch.zeros(1 << 20)
    tasks.put(mine)
    theirs, again = results.get(), results.get()
    assert theirs.eq(6).all() and mine.eq(5).all() and again.eq(5).all()
    tasks.put(None)
    process.join()
    print('ok', process.exitcode)
"""


def test_a_worker_from_before_install_and_its_parent_understand_each_other(broker):
    done = program(MIXED)
    assert done.stdout == "ok 0\n", done.stderr


def test_a_rank_or_worker_that_uninstalls_still_receives_and_is_received(fork):
    tasks, results = fork.Queue(), fork.Queue()
    process = start(fork, children.uninstall_and_answer, tasks, results)
    tensor = torch.zeros(1 << 20)
    tasks.put(tensor)
    assert results.get(timeout=60).eq(8).all() and tensor.eq(7).all()
    end(process)


def test_a_limit_in_the_middle_of_a_message_loses_neither_tensors_nor_messages(broker):
    done = program("""
import os, subprocess, shmbroker, shmbroker.torch, torch
shmbroker.torch.install('half')
subprocess.run([os.environ['SHMBROKER_TOOL'], 'limit', 'half', '40M'], check=True, capture_output=True)
queue = torch.multiprocessing.Queue()
queue.put('before')
first, second, third = (torch.full((4 << 20,), float(number)) for number in range(3))
try:
    queue.put([first, second, third])
except shmbroker.OutOfShared as error:
    print("of group 'half'" in str(error), '`shmbroker limit half ' in str(error))
assert first.eq(0).all() and second.eq(1).all() and third.eq(2).all() and not third.is_shared()
assert queue.get() == 'before' and queue.empty()
del first, second
queue.put([third, 'after'])
tensor, text = queue.get()
print(tensor.data_ptr() == third.data_ptr(), text, queue.empty())
""")
    assert done.stdout == "True True\nTrue after True\n", (done.stdout, done.stderr)


def test_a_dataset_that_cannot_be_pickled_is_told_as_by_stock(broker):
    text = """
import sys, torch
from torch.utils.data import DataLoader
if INSTALL:
    import shmbroker.torch
    assert shmbroker.torch.install()
class Odd:
    def __init__(self):
        self.it = lambda: 1
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return index
if __name__ == '__main__':
    try:
        next(iter(DataLoader(Odd(), num_workers=1, multiprocessing_context='spawn')))
    except Exception as error:
        print(type(error).__name__, error)
    import multiprocessing
    print(multiprocessing.active_children())
"""
    told = [program(text.replace("INSTALL", which)) for which in ("True", "False")]
    assert told[0].stdout == told[1].stdout and "pickle" in told[0].stdout, (told[0].stderr, told[0].stdout)


def test_pin_memory_without_cuda_does_what_stock_does(broker):
    if torch.cuda.is_available():
        pytest.skip("this host has CUDA")
    text = """
import torch, warnings
from torch.utils.data import DataLoader
if INSTALL:
    import shmbroker.torch
    assert shmbroker.torch.install()
if __name__ == '__main__':
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter('always')
        for batch in DataLoader(torch.ones(8, 4), batch_size=4, num_workers=1, pin_memory=True):
            print(batch.is_pinned(), batch.is_shared(), batch.sum().item())
    print([str(one.message) for one in said if 'pin_memory' in str(one.message)])
"""
    told = [program(text.replace("INSTALL", which)) for which in ("True", "False")]
    assert told[0].stdout == told[1].stdout and "False True 16.0" in told[0].stdout, (told[0].stderr, told[0].stdout)


def test_a_killed_broker_leaves_the_tensors_and_new_ones_come_from_the_next(broker):
    running = run_beside("""
import os, signal, torch, shmbroker, shmbroker.torch
shmbroker.torch.install()
held = torch.ones(1 << 20).share_memory_()
plain = torch.full((1 << 20,), 2.0)
os.kill(int(os.environ['BROKER']), signal.SIGKILL)
try:
    plain.share_memory_()
except shmbroker.NoBroker as error:
    print("no broker" in str(error))
print(held.sum().item(), plain.sum().item(), plain.is_shared(), flush=True)
input()
print(plain.share_memory_().is_shared(), plain.sum().item(), held.is_shared(), shmbroker.torch.install())
""", BROKER=str(broker.process.pid))
    with running:
        told = [running.stdout.readline() for _ in range(2)]
        broker.process.wait()
        broker.start()
        told.append(running.communicate("go on\n", timeout=60)[0])
    assert told == ["True\n", "1048576.0 2097152.0 False\n", "True 2097152.0 True True\n"]


def test_a_child_by_fork_needs_no_queue_of_a_broker_that_has_gone(private):
    """Memory of a new large tensor is looked for among what the process has sent: a child has sent nothing yet."""
    done = program("""
import os, signal, torch, shmbroker, shmbroker.torch
import torch.multiprocessing as mp
from torch.utils.data import DataLoader
if __name__ == "__main__":
    shmbroker.torch.install()
    ctx = mp.get_context("fork")
    old = ctx.Queue()
    old.put(torch.ones(1 << 20))
    old.get()
    os.kill(shmbroker.status().pid, signal.SIGKILL)
    with ctx.Pool(1) as pool:
        print(pool.map(torch.square, [torch.full((1 << 20,), 2.0)])[0].sum().item())
    loader = DataLoader(torch.ones(2, 1 << 20), num_workers=1, multiprocessing_context=ctx)
    print(sum(batch.sum().item() for batch in loader))
    mine = torch.ones(1 << 20).share_memory_()
    old.put(1)
    print(mine.sum().item(), old.get())
""")
    assert done.stdout.split() == ["4194304.0", "2097152.0", "1048576.0", "1"], (done.stdout, done.stderr)


def test_after_the_death_of_a_broker_old_objects_say_so_and_new_ones_work(private):
    done = program("""
import os, signal, torch, shmbroker, shmbroker.torch
import torch.multiprocessing as mp
def double(source, target):
    target.put(source.get() * 2)
def tell(call):
    try:
        return call()
    except ConnectionError as error:
        return f"{type(error).__name__}: {'clone()' in str(error)} {'new queue' in str(error)}"
def put(queue, tensor):
    queue.put(tensor)
    return queue.get().sum().item()
def pipe(tensor):
    one, other = mp.Pipe()
    one.send(tensor)
    return other.recv().sum().item()
if __name__ == "__main__":
    shmbroker.torch.install()
    held, queue = torch.ones(300000).share_memory_(), mp.Queue()
    queue.put(torch.ones(300000))
    os.kill(shmbroker.status().pid, signal.SIGKILL)
    print("an item that waited", tell(queue.get))
    print("the old queue", tell(lambda: put(queue, torch.ones(300000))))
    print("new memory", torch.ones(300000).share_memory_().is_shared())
    print("the old queue", tell(lambda: put(queue, torch.ones(300000))))
    new = mp.Queue()
    print("a new queue", put(new, torch.ones(300000)), pipe(torch.ones(300000)))
    print("an old tensor", tell(lambda: put(new, held)), tell(lambda: pipe(held)), held.sum().item())
    print("its clone", put(new, held.clone()))
    target = mp.Queue()
    child = mp.Process(target=double, args=(new, target))
    child.start()
    new.put(torch.ones(300000))
    print("a new process", target.get().sum().item())
    child.join()
    with mp.Pool(1) as pool:
        print("a new pool", pool.apply(torch.sum, (torch.ones(300000),)).item())
""")
    assert done.stdout == """an item that waited SessionLost: False True
the old queue SessionLost: False True
new memory True
the old queue SessionLost: False True
a new queue 300000.0 300000.0
an old tensor SessionLost: True False SessionLost: True False 300000.0
its clone 300000.0
a new process 600000.0
a new pool 300000.0
""", (done.stdout, done.stderr)


def test_random_kills_of_producers_and_consumers_leave_nothing(fork):
    gc.collect()
    before = used()
    queue, counts = fork.Queue(16), torch.zeros(3, dtype=torch.int64).share_memory_()
    roles = [(children.produce_for_ever, (queue, number)) for number in range(3)]
    roles += [(children.consume_for_ever, (queue, counts, number)) for number in range(3)]
    running = [start(fork, target, *args) for target, args in roles]
    dice = random.Random(17)
    for _ in range(KILLS):
        time.sleep(dice.uniform(0.01, 0.1))
        number = dice.randrange(6)
        running[number].kill()
        running[number].join()
        assert running[number].exitcode == -9, "it failed before it was killed"
        running[number] = start(fork, roles[number][0], *roles[number][1])
    arrived = counts.clone()
    assert until(lambda: (counts > arrived).all(), 60), "the last ones do not work"
    for one in running:
        one.kill()
        one.join()
        assert one.exitcode == -9
    queue.close()
    del queue, counts, roles
    gc.collect()
    assert until(lambda: used()[1] <= before[1], 30), (before, used())
