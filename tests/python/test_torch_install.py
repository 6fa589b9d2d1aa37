# SPDX-License-Identifier: Apache-2.0
"""install() and uninstall(): what they change and give back, what they say where something is missing, and the programs
that only use them."""
from torch_world import program, torch  # noqa: F401


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


def test_a_forked_child_has_what_its_parent_had_and_changes_itself_alone(broker):
    done = program("""
import os, torch, shmbroker.torch
from shmbroker.mp import place
ours = lambda: torch.multiprocessing.Queue.__module__ == 'shmbroker.torch.multiprocessing'
def in_child(call):
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if call() else 1)
        finally:
            os._exit(2)
    return os.waitpid(pid, 0)[1] == 0
def install_here():
    return not ours() and shmbroker.torch.install() and ours() and torch.ones(3).share_memory_().sum() == 3
def install_again():
    there = place.address()
    return ours() and shmbroker.torch.install() and ours() and place.address() == there == address
def uninstall_here():
    shmbroker.torch.uninstall()
    return not ours() and kept.sum() == 3 and torch.ones(3).share_memory_().is_shared()
print(in_child(install_here), ours(), shmbroker.torch.installed())
assert shmbroker.torch.install()
address, kept = place.address(), torch.ones(3).share_memory_()
print(in_child(install_again), in_child(uninstall_here), ours(), torch.ones(3).share_memory_().is_shared())
""")
    assert done.stdout == "True False False\nTrue True True True\n", done.stderr + done.stdout


def test_every_hook_that_is_missing_keeps_stock_and_is_said_in_one_warning_on_rank_0(broker):
    done = program("""
import importlib, os, warnings
import torch.utils.data, torch.multiprocessing
from shmbroker.torch import wanted

class Without(type):
    gone = None
    def __getattribute__(self, name):
        if name == Without.gone:
            raise AttributeError(name)
        return super().__getattribute__(name)

def take_away(module, name):
    holder = importlib.import_module(module)
    if '.' not in name:
        return delattr(holder, name)
    Without.gone = name.split('.')[1]  # names of a class of C cannot be deleted
    torch.UntypedStorage = Without('UntypedStorage', (torch.UntypedStorage,), {})

def refused(module, name):
    stock, queue = torch.UntypedStorage, torch.multiprocessing.Queue
    take_away(module, name)
    for rank, count in (('0', 1), ('1', 0)):
        os.environ['LOCAL_RANK'] = rank
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter('always')
            assert not shmbroker.torch.install() and not shmbroker.torch.installed()
        assert [f'no {module}.{name}' in str(one.message) for one in said] == [True] * count, (module, name, said)
    torch.UntypedStorage = stock
    assert torch.multiprocessing.Queue is queue and torch.ones(3).share_memory_().is_shared()

import shmbroker.torch
names = [(module, name) for module, names in wanted.NAMES.items() for name in names]
assert len(names) > 25
for module, name in names:
    pid = os.fork()
    if pid == 0:
        try:
            refused(module, name)
        except BaseException as error:
            print(module, name, type(error), error, flush=True)
            os._exit(1)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0, name
print(not shmbroker.views.list().groups)  # and no group was made
assert shmbroker.torch.install()
""")
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr + done.stdout


def test_a_torch_whose_storages_are_not_understood_stays_as_it_is(broker):
    done = program("""
import unittest.mock
import torch, shmbroker.torch
from shmbroker.torch import storage
with unittest.mock.patch.object(storage, 'Layout', side_effect=LookupError('no address in it')):
    assert not shmbroker.torch.install()
assert torch.ones(3).share_memory_().is_shared() and shmbroker.torch.install()
""")
    assert done.returncode == 0 and done.stderr.count("no address in it") == 1, done.stderr


def test_a_torch_without_one_of_the_modules_stays_as_it_is(broker):
    done = program("""
import sys, unittest.mock
import torch, shmbroker.torch
with unittest.mock.patch.dict(sys.modules, {'torch.utils.data.dataloader': None}):  # its import fails
    assert not shmbroker.torch.install()
assert torch.ones(3).share_memory_().is_shared() and shmbroker.torch.install()
""")
    assert done.returncode == 0 and done.stderr.count("has no torch.utils.data.dataloader. torch keeps") == 1, done.stderr


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
