# SPDX-License-Identifier: Apache-2.0
"""Tensors through queues, pipes, pools and arguments, after shmbroker.torch.install(): what stock torch promises of them."""
import gc
import itertools
import os
import warnings

import pytest
from torch_world import end, fork, installed, program, start, torch, until, used  # noqa: F401
from torch_world import ctx  # noqa: F401

import torch_children as children


def test_parts_of_one_tensor_arrive_on_one_storage_and_writes_come_back(ctx):
    tasks, done = ctx.Queue(), ctx.Queue()
    process = start(ctx, children.fill_all, tasks, done)
    tensor = torch.zeros(5, 5)
    tasks.put([tensor, tensor[:, 1]])
    assert done.get() == 20
    assert tensor.eq(4).all()
    end(process)


def test_a_tensor_that_comes_twice_is_on_one_storage(ctx):
    queue, told = ctx.Queue(), ctx.Queue()
    process = start(ctx, children.send_twice, queue, told)
    one, other = queue.get(), queue.get()
    assert one.eq(1).all() and one.data_ptr() == other.data_ptr()
    other[0, 0] = 9
    assert one[0, 0] == 9
    del one, other
    told.put(None)
    end(process)


def test_what_a_process_sends_to_itself_comes_home(fork):
    queue = fork.Queue()
    tensor = torch.arange(9.0).reshape(3, 3)
    queue.put([tensor.storage(), tensor, tensor[1], tensor[:, 2]])
    storage, *others = queue.get()
    assert storage.data_ptr() == tensor.data_ptr()
    assert others[0].equal(tensor) and others[1].equal(tensor[1]) and others[2].equal(tensor[:, 2])
    others[2].fill_(0)
    assert tensor[:, 2].eq(0).all()
    assert {one.storage()._cdata for one in others} == {tensor.storage()._cdata}


def test_a_pool_writes_into_the_callers_tensors(fork):
    buffers = [torch.zeros(2, 2) for _ in range(4)]
    with fork.Pool(2) as pool:
        results = pool.map(children.add_one, buffers)
    assert all(one.eq(5).all() for one in results) and all(one.eq(4).all() for one in buffers)


def test_a_tensor_shared_before_a_fork_shows_what_the_child_does(fork):
    tensor = torch.zeros(5, 5).share_memory_()
    end(start(fork, children.plus_three, tensor))
    assert tensor.eq(3).all()


def test_is_shared_is_true_after_share_memory_under_both_strategies(installed):
    for strategy in sorted(torch.multiprocessing.get_all_sharing_strategies()):
        torch.multiprocessing.set_sharing_strategy(strategy)
        assert torch.multiprocessing.get_sharing_strategy() == strategy
        tensor = torch.randn(5, 5)
        part = tensor[1]
        before = tensor.clone()
        assert not tensor.is_shared()
        assert tensor.share_memory_() is tensor and tensor.is_shared() and part.is_shared()
        assert tensor.equal(before) and part.data_ptr() == tensor.data_ptr() + 5 * 4
        with pytest.raises(RuntimeError, match="not resizable"):
            tensor.storage().resize_(1000)
    torch.multiprocessing.set_sharing_strategy("file_descriptor")
    with pytest.raises(AssertionError):
        torch.multiprocessing.set_sharing_strategy("carrier_pigeon")
    model = torch.nn.Linear(3, 3)
    assert all(one.is_shared() for one in model.share_memory().parameters())


def test_empty_tensors_are_shared_and_sent(fork):
    assert torch.empty(0).share_memory_().is_shared()
    queue = fork.Queue()
    for dtype in (torch.float32, torch.int64):
        queue.put(torch.empty(0, 3, dtype=dtype))
        got = queue.get(timeout=10)
        assert got.shape == (0, 3) and got.dtype == dtype


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16,
                                   torch.int64, torch.bool, torch.complex64])
def test_every_dtype_arrives(fork, dtype):
    queue = fork.Queue()
    sent = torch.arange(64).to(dtype)
    queue.put([sent, sent.storage()])
    got, storage = queue.get()
    assert got.dtype == dtype and got.equal(sent) and len(storage) == 64 and got.is_shared()


def test_meta_sparse_quantised_and_nested_tensors_do_what_stock_does(fork):
    import shmbroker.torch
    made = [lambda: torch.zeros(3, device="meta"), lambda: torch.eye(3).to_sparse(),
            lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)]
    nested = getattr(torch, "nested", None)
    if nested is not None:
        made.append(lambda: nested.nested_tensor([torch.ones(2), torch.ones(3)]))

    def outcome(make):
        queue = torch.multiprocessing.get_context("fork").SimpleQueue()
        try:
            queue.put(make())
            return type(queue.get())
        except Exception as error:
            return type(error), str(error)[:40]

    ours = [outcome(one) for one in made]
    shmbroker.torch.uninstall()
    stock = [outcome(one) for one in made]
    shmbroker.torch.install()
    assert ours == stock


def test_leaves_keep_their_flags_and_have_no_gradient_and_no_hooks(fork):
    tasks, told = fork.Queue(), fork.Queue()
    process = start(fork, children.facts, tasks, told)
    for flag in (True, False):
        tasks.put(torch.ones(5, 5, requires_grad=flag))
        assert told.get() == ("Tensor", flag, True, 0, True)
    parameter = torch.nn.Parameter(torch.arange(1.0, 26).view(5, 5))
    parameter.grad = torch.ones(5, 5)
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        parameter.register_hook(lambda _: None)
        tasks.put(parameter)
    assert told.get() == ("Parameter", True, True, 0, True)
    tasks.put(torch.nn.Parameter(torch.arange(4), requires_grad=False))
    assert told.get() == ("Parameter", False, True, 0, True)
    tasks.put(None)
    end(process)


def test_a_tensor_that_is_no_leaf_is_refused_in_the_call_and_the_queue_goes_on(fork):
    queue = fork.Queue()
    tensor = torch.ones(3, requires_grad=True) * 2
    for put in (queue.put, fork.SimpleQueue().put, fork.Pipe()[0].send):
        with pytest.raises(RuntimeError, match="requires_grad"):
            put(tensor)
    queue.put(torch.ones(1))
    assert queue.get(timeout=10).item() == 1


def test_autograd_runs_in_a_pool(fork):
    with fork.Pool(2) as pool:
        assert pool.map(children.autograd, range(3)) == [8.0] * 3


def test_a_receiver_that_comes_after_the_senders_end_gets_the_tensor(ctx):
    small, large = ctx.Queue(), ctx.Queue()
    end(start(ctx, children.send_and_end, small, (8, 8)))
    process = start(ctx, children.send_and_die, large, (1024, 1024))
    process.join(60)
    assert process.exitcode == -9
    assert small.get(timeout=10).eq(7).all() and large.get(timeout=10).eq(7).all()


def test_the_memory_of_messages_that_a_dead_receiver_had_comes_back(fork):
    before = used()[1]
    queue, told = fork.Queue(), fork.Queue()
    process = start(fork, children.hold_and_wait, queue, told, 20)
    for _ in range(20):
        queue.put(torch.ones(1 << 18))
    assert told.get() == 20
    for _ in range(20):
        queue.put(torch.ones(1 << 18))
    assert used()[1] >= before + 20
    process.kill()
    process.join()
    while queue.qsize():
        queue.get()
    queue.close()
    del queue
    gc.collect()
    assert until(lambda: used()[1] <= before, 30), used()


def test_a_part_of_a_large_tensor_is_sent_alone(fork):
    queue = fork.Queue()
    base = torch.zeros(64 << 20, dtype=torch.uint8)
    queue.put(base[100:101])
    got = queue.get()
    assert got.storage().nbytes() < 4096 and not base.is_shared()
    queue.put([base[:2], base[1:3]])
    first, second = queue.get()
    first[1] = 5
    assert second[0] == 5 and base[1] == 5


def test_a_pipe_and_a_plain_queue_of_multiprocessing_carry_tensors(fork):
    import multiprocessing
    reader, writer = fork.Pipe(False)
    tensor = torch.ones(1 << 20)
    writer.send([tensor, tensor[1]])
    one, item = reader.recv()
    one[1] = 3
    assert tensor[1] == 3 and item == 3
    plain = multiprocessing.Queue()
    plain.put(tensor)
    assert plain.get(timeout=20).data_ptr() == tensor.data_ptr()
    told = fork.Queue()
    process = start(fork, children.receive_over_pipe, reader, told)
    writer.send(torch.ones(100))
    assert told.get() == 100
    end(process)


def test_children_have_what_their_parent_has_installed(ctx):
    told = ctx.Queue()
    process = start(ctx, children.installed, told)
    done, shared, module = told.get()
    assert done and shared and module.startswith("shmbroker")
    end(process)


def test_children_are_in_the_group_of_their_parent(ctx):
    from shmbroker.mp import place
    told = ctx.Queue()
    process = start(ctx, children.group, told)
    assert told.get() == place.home()[0].info().group != 0
    end(process)


_unused_sizes = (number << 21 for number in itertools.count(2))


def test_memory_that_a_child_has_dropped_is_used_again(ctx):
    from shmbroker.torch import storage
    size = next(_unused_sizes)
    tasks, sums = ctx.Queue(), ctx.Queue()
    process = start(ctx, children.sum_each, tasks, sums)

    def comes_used():
        tensor = torch.ones(size, dtype=torch.uint8)
        tasks.put(tensor)
        recycled = storage.region_of(storage.untyped(tensor)).info().recycled
        del tensor
        assert sums.get() == size
        return recycled

    assert until(comes_used)
    tasks.put(None)
    end(process)


def test_a_forked_child_sends_on_what_it_has_inherited(fork):
    tensor = torch.ones(6).share_memory_()
    dropped = torch.ones(7).share_memory_()
    queue, go = fork.Queue(), fork.Queue()
    pid = os.fork()
    if pid == 0:
        go.get()
        queue.put([tensor, dropped])
        os._exit(0)
    del dropped
    gc.collect()
    go.put(1)
    same, copy = queue.get(timeout=20)
    assert os.waitpid(pid, 0)[1] == 0
    assert same.data_ptr() == tensor.data_ptr() and copy.eq(1).all()


def test_install_twice_changes_nothing_and_uninstall_gives_stock_back():
    done = program("""
import multiprocessing.connection, multiprocessing.reduction, multiprocessing.queues
import torch, torch.multiprocessing as mp
from torch.utils.data import dataloader
kinds = (torch.UntypedStorage, mp, dataloader._MultiProcessingDataLoaderIter)
def state():
    reducers = multiprocessing.reduction.ForkingPickler._extra_reducers
    return [dict(vars(kind)) for kind in kinds], {of: reducers[of] for of in reducers if 'shmbroker' not in of.__module__}
before = state()
import shmbroker.torch
assert shmbroker.torch.install() and shmbroker.torch.install()
assert state() != before
kept = torch.ones(3).share_memory_()
shmbroker.torch.uninstall()
assert state() == before
assert not torch.ones(3).is_shared() and torch.ones(3).share_memory_().is_shared() and kept.sum() == 3
shmbroker.torch.uninstall()
assert shmbroker.torch.install()
""")
    assert done.returncode == 0, done.stderr


def test_what_is_missing_in_torch_keeps_stock_and_is_said_once_on_rank_0():
    text = """
import torch
del torch.storage._StorageBase._new_shared
import shmbroker.torch
assert not shmbroker.torch.install() and not shmbroker.torch.installed()
assert torch.ones(3).share_memory_().is_shared()
"""
    told = program(text)
    assert told.returncode == 0 and told.stderr.count("UntypedStorage._new_shared") == 1, told.stderr
    assert "RuntimeWarning" not in program(text, LOCAL_RANK="1").stderr


def test_every_hook_that_is_missing_keeps_stock_and_is_said_in_one_warning(broker):
    done = program("""
import unittest.mock, warnings
import torch, torch.multiprocessing.reductions as reductions
from torch.utils.data import dataloader
import shmbroker.torch
from shmbroker.torch import hooks, storage
class Without:
    def __init__(self, of, name):
        self.of, self.name, self.__name__ = of, name, 'some'
    def __getattr__(self, name):
        if name == self.name:
            raise AttributeError(name)
        return getattr(self.of, name)
def refused(name):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter('always')
        assert not shmbroker.torch.install() and not shmbroker.torch.installed()
    assert [name in str(one.message) for one in said] == [True], (name, said)
    assert torch.ones(3).share_memory_().is_shared()
    assert torch.multiprocessing.Queue.__module__ != 'shmbroker.torch.multiprocessing'
for name in ('reduce_storage', 'reduce_tensor', 'SharedCache', 'StorageWeakRef', 'check_serializing_named_tensor'):
    with unittest.mock.patch.object(hooks._stock, 'reductions', Without(reductions, name)):
        refused(name)
with unittest.mock.patch.object(hooks, '_dataloader', Without(dataloader, '_MultiProcessingDataLoaderIter')):
    refused('_MultiProcessingDataLoaderIter')
for name in ('UntypedStorage', 'frombuffer'):
    with unittest.mock.patch.object(hooks, 'torch', Without(torch, name)):
        refused(name)
for name in ('_new_shared', 'share_memory_', 'is_shared', '_new_with_weak_ptr', '_weak_ref', '_cdata', 'nbytes', 'data_ptr'):
    with unittest.mock.patch.object(hooks, 'torch', Without(torch, '')) as moved:
        moved.UntypedStorage = Without(torch.UntypedStorage, name)
        refused(name)
with unittest.mock.patch.object(storage, 'layout', side_effect=LookupError('moved')):
    refused('moved')
assert shmbroker.torch.install()
""")
    assert done.returncode == 0, done.stderr


def test_names_as_torch_2_has_them_are_used_and_those_that_it_warns_of_are_not(broker):
    done = program("""
import torch
stock = torch.Tensor._storage
torch.Tensor.untyped_storage = lambda self: stock(self)
torch.Tensor._typed_storage = lambda self: torch.TypedStorage(wrap_storage=stock(self), dtype=self.dtype)
def gone(self):
    raise AssertionError('torch 2 warns of this')
torch.Tensor.storage = torch.Tensor._storage = gone
for name in ('_new_using_fd_cpu', '_new_using_filename_cpu'):
    setattr(torch.UntypedStorage, name + '_', None)
import shmbroker.torch
assert shmbroker.torch.install()
from torch.utils.data import dataloader, _utils
queue = torch.multiprocessing.Queue()
tensor = torch.ones(4, 4)
queue.put([tensor, tensor[1]])
one, part = queue.get()
part.zero_()
assert one.sum() == 12 == tensor.sum() and tensor.untyped_storage().is_shared()
fresh = torch.empty(0).set_(torch.UntypedStorage._new_shared(16, device='cpu'))
assert fresh.untyped_storage().is_shared() and tensor.untyped_storage().share_memory_() is not None
queue.put(torch.zeros(1 << 20)[3:4])
assert queue.get().untyped_storage().nbytes() == 4
shmbroker.torch.uninstall()
""")
    assert done.returncode == 0, done.stderr


def test_a_program_without_a_broker_keeps_stock_torch():
    done = program("""
import torch, shmbroker.torch
assert not shmbroker.torch.install()
assert torch.ones(3).share_memory_().is_shared()
""", SHMBROKER_SOCKET="/nonexistent/socket")
    assert done.returncode == 0 and "torch keeps its own shared memory" in done.stderr, done.stderr


def test_the_group_is_named_after_script_and_pid_or_as_wished(broker):
    text = """
import os, shmbroker.torch, torch
from shmbroker import views
shmbroker.torch.install(NAME)
tensor = torch.ones(3).share_memory_()
print([one.group for one in views.list().groups][-1] == EXPECTED)
"""
    for name, expected in (("None", "f'train.py-{os.getpid()}'"), ("'train-7'", "'train-7'")):
        done = program(text.replace("NAME", name).replace("EXPECTED", expected))
        assert done.stdout == "True\n", done.stderr + done.stdout


def test_5000_shared_tensors_fit_under_1024_descriptors_in_sender_and_receiver(broker):
    done = program("""
import os, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
import shmbroker.torch, torch
shmbroker.torch.install()
mp = torch.multiprocessing
def child(queue, told):
    held = [queue.get() for _ in range(5000)]
    told.put((sum(one[0].item() for one in held), len(os.listdir('/proc/self/fd'))))
if __name__ == '__main__':
    queue, told = mp.Queue(), mp.Queue()
    process = mp.Process(target=child, args=(queue, told)); process.start()
    tensors = [torch.full((16,), float(n)) .share_memory_() for n in range(5000)]
    for one in tensors: queue.put(one)
    total, descriptors = told.get()
    assert total == sum(range(5000)) and descriptors < 100 and len(os.listdir('/proc/self/fd')) < 100
    process.join()
    names = [one for one in os.listdir('/dev/shm') if one.startswith('torch_')]
    print('ok', names)
""")
    assert done.stdout == "ok []\n", done.stderr


def test_the_module_has_every_public_name_and_leaves_torch_alone(broker):
    done = program("""
import torch, torch.multiprocessing as stock
before = dict(vars(stock))
import shmbroker.torch.multiprocessing as mp
assert all(hasattr(mp, name) for name in dir(stock) if not name.startswith('_')), set(dir(stock)) - set(dir(mp))
assert dict(vars(stock)) == before
import torch.multiprocessing.spawn as theirs
import shmbroker.torch.multiprocessing.spawn as ours
from shmbroker.torch.multiprocessing.spawn import ProcessContext, start_processes
from shmbroker.torch.multiprocessing.reductions import reduce_tensor
assert type(ours) is type(theirs) and ours.__module__ == start_processes.__module__ == 'shmbroker.torch.spawn'
assert ours is mp.spawn and ProcessContext is mp.ProcessContext
def child(queue):
    queue.get().fill_(2)
if __name__ == '__main__':
    queue = mp.Queue()
    tensor = torch.ones(1000, 1000)
    process = mp.Process(target=child, args=(queue,)); process.start()
    queue.put(tensor)
    process.join()
    assert tensor.eq(2).all() and process.exitcode == 0
    print(type(queue).__module__)
""")
    assert done.stdout == "shmbroker.torch.multiprocessing\n", done.stderr
