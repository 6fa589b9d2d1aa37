# SPDX-License-Identifier: Apache-2.0
"""Tensors through queues, pipes, pools and arguments, after shmbroker.torch.install(): what stock torch promises of them.
Numbers in names are those of docs/conformance.md."""
import ctypes
import gc
import itertools
import os
import socket
import warnings

import pytest
from torch_world import end, fork, installed, program, start, torch, until, used  # noqa: F401
from torch_world import ctx  # noqa: F401

import shmbroker
import torch_children as children


@pytest.fixture
def nothing_left(installed):
    """1 and 2: no region and no descriptor is left when the test has dropped what it had."""
    def left():
        gc.collect()
        return used()[1], len(os.listdir("/proc/self/fd"))
    before = left()
    yield
    assert until(lambda: left()[0] <= before[0] and left()[1] <= before[1] + 4, 30), (before, left())


def test_3_parts_of_one_tensor_arrive_on_one_storage_and_writes_come_back(ctx, nothing_left):
    tasks, done = ctx.Queue(), ctx.Queue()
    process = start(ctx, children.fill_each, tasks, done)
    for _ in range(30):
        tensor = torch.zeros(5, 5)
        tasks.put([tensor, tensor[:, 1]])
        assert done.get() == 20
        assert tensor.eq(4).all()
    tasks.put(None)
    end(process)
    tasks.close(), done.close()


@pytest.mark.parametrize("view", ["conjugate", "negative"])
def test_a_conjugate_and_a_negative_view_arrive_with_their_values(fork, view):
    sent = torch.full((3, 2), 1 + 2j).conj()
    sent = sent if view == "conjugate" else sent.imag
    queue, (reader, writer) = fork.Queue(), fork.Pipe()
    for one in (sent, torch.nn.Parameter(sent.detach())):
        queue.put(one)
        came = queue.get()
        assert came.equal(one) and type(came) is type(one) and came.requires_grad == one.requires_grad
        writer.send(one)
        assert reader.recv().equal(one)


def test_4_a_tensor_that_comes_twice_is_on_one_storage(ctx):
    queue, told = ctx.Queue(), ctx.Queue()
    process = start(ctx, children.send_each_twice, queue, told, 30)
    for _ in range(30):
        one, other = queue.get(), queue.get()
        assert one.eq(1).all() and one.data_ptr() == other.data_ptr()
        assert one.storage()._cdata == other.storage()._cdata
        other[0, 0] = 9
        assert one[0, 0] == 9
        del one, other
        told.put(None)
    end(process)


def test_5_what_a_process_sends_to_itself_comes_home(fork, nothing_left):
    queue = fork.Queue()
    for _ in range(30):
        tensor = torch.arange(9.0).reshape(3, 3)
        queue.put([tensor.storage(), tensor, tensor[1], tensor[:, 2]])
        storage, *others = queue.get()
        assert storage.data_ptr() == tensor.data_ptr()
        assert others[0].equal(tensor) and others[1].equal(tensor[1]) and others[2].equal(tensor[:, 2])
        others[2].fill_(0)
        assert tensor[:, 2].eq(0).all()
        assert {one.storage()._cdata for one in others} == {tensor.storage()._cdata}
    queue.close()


def test_6_a_pool_writes_into_the_callers_tensors(fork, nothing_left):
    with fork.Pool(2) as pool:
        for _ in range(30):
            buffers = [torch.zeros(2, 2) for _ in range(4)]
            results = pool.map(children.add_one, buffers)
            assert all(one.eq(5).all() for one in results) and all(one.eq(4).all() for one in buffers)


def test_7_an_object_is_there_from_put_on_and_gone_once_it_was_taken_and_dropped(fork):
    gc.collect()
    before = used()[1]
    queue = fork.Queue()
    tensor = torch.ones(4, dtype=torch.float64)
    assert used()[1] == before
    queue.put(tensor)
    assert used()[1] == before + 1
    assert queue.get().equal(tensor)
    del tensor
    assert until(lambda: used()[1] == before), used()


def test_8_a_tensor_shared_before_a_fork_shows_what_the_child_does(fork, nothing_left):
    tensor = torch.zeros(5, 5).share_memory_()
    end(start(fork, children.plus_three, tensor))
    assert tensor.eq(3).all()


def test_9_is_shared_is_true_after_share_memory_under_both_strategies(installed):
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


def test_10_empty_tensors_are_shared_and_sent(fork):
    assert torch.empty(0).share_memory_().is_shared()
    queue = fork.Queue()
    for dtype in (torch.float32, torch.int64):
        queue.put(torch.empty(0, 3, dtype=dtype))
        got = queue.get(timeout=10)
        assert got.shape == (0, 3) and got.dtype == dtype


def test_every_dtype_arrives(fork):
    queue = fork.Queue()
    quantised = (torch.quint8, torch.qint8, torch.qint32, torch.quint4x2, torch.quint2x4)
    dtypes = {one for one in vars(torch).values() if isinstance(one, torch.dtype)} - set(quantised)
    assert len(dtypes) >= 12
    for dtype in dtypes:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of half complex numbers
            sent = torch.arange(64).to(dtype)
        queue.put([sent, sent.storage()])
        got, storage = queue.get()
        assert got.dtype == dtype and len(storage) == 64 and got.is_shared(), dtype
        assert got.to(torch.complex128).equal(sent.to(torch.complex128)), dtype


def test_11_meta_sparse_quantised_and_nested_tensors_do_what_stock_does(fork):
    import shmbroker.torch
    made = [lambda: torch.zeros(3, device="meta"), lambda: torch.zeros(0, device="meta"),
            lambda: torch.eye(3).to_sparse(), lambda: torch.eye(3).to_sparse_csr(), lambda: torch.ones(3).to_mkldnn(),
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


def test_12_14_15_leaves_keep_their_flags_and_have_no_gradient_and_no_hooks(fork):
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


def test_13_a_tensor_that_is_no_leaf_is_refused_in_the_call_and_the_queue_goes_on(fork):
    queue = fork.Queue()
    tensor = torch.ones(3, requires_grad=True) * 2
    for put in (queue.put, fork.SimpleQueue().put, fork.Pipe()[0].send):
        with pytest.raises(RuntimeError, match="requires_grad"):
            put(tensor)
    queue.put(torch.ones(1))
    assert queue.get(timeout=10).item() == 1


AUTOGRAD = """
import torch, torch.multiprocessing
if INSTALL:
    import shmbroker.torch
    assert shmbroker.torch.install()

def gradient(_):
    one = torch.ones(4, requires_grad=True)
    (one * 2).sum().backward()
    return one.grad.sum().item()

if __name__ == '__main__':
    assert gradient(0) == 8
    for method in METHODS:
        with torch.multiprocessing.get_context(method).Pool(3) as pool:
            try:
                print(method, pool.map(gradient, range(3)))
            except RuntimeError as error:
                print(method, str(error)[:60])
"""


def test_16_autograd_runs_in_pools_after_it_has_run_in_their_parent(broker):
    ours, stock = (program(AUTOGRAD.replace("INSTALL", which).replace("METHODS", methods))
                   for which, methods in (("True", "['spawn', 'fork']"), ("False", "['fork']")))
    assert stock.stdout.startswith("fork ") and ours.stdout == "spawn [8.0, 8.0, 8.0]\n" + stock.stdout, (ours, stock)


def test_17_a_thread_keeps_the_name_that_it_was_given(fork):
    name, read = b"trainer", ctypes.create_string_buffer(16)
    prctl, set_name, get_name = ctypes.CDLL(None).prctl, 15, 16
    prctl(get_name, read)
    before = read.value
    give = getattr(torch.multiprocessing, "_set_thread_name", lambda it: prctl(set_name, it.encode()))
    give(name.decode())
    try:
        queue = fork.Queue()
        queue.put(torch.ones(1 << 20))
        assert queue.get().sum() == 1 << 20
        prctl(get_name, read)
        assert read.value == name
    finally:
        prctl(set_name, before)


def test_18_19_a_receiver_that_comes_after_the_senders_end_gets_the_tensor(ctx):
    small, large = ctx.Queue(), ctx.Queue()
    end(start(ctx, children.send_and_end, small, (8, 8)))
    process = start(ctx, children.send_and_die, large, (1024, 1024))
    process.join(60)
    assert process.exitcode == -9
    assert small.get(timeout=10).eq(7).all() and large.get(timeout=10).eq(7).all()


def test_20_21_the_memory_that_a_dead_receiver_held_and_had_not_read_comes_back(fork):
    before = used()[1]
    queue, told = fork.Queue(), fork.Queue()
    process = start(fork, children.hold_and_wait, queue, told, 100)
    for _ in range(100):
        queue.put(torch.ones(1 << 18))
    assert told.get() == 100
    for _ in range(100):
        queue.put(torch.ones(1 << 18))
    assert used()[1] >= before + 200
    process.kill()
    process.join()
    while queue.qsize():
        queue.get()
    queue.close()
    del queue
    gc.collect()
    assert until(lambda: used()[1] <= before, 30), used()


def test_22_of_a_killed_owner_only_what_nobody_else_has_goes(fork):
    before = used()[1]
    queue = fork.Queue()
    process = start(fork, children.own_and_send_some, queue, 100, 10)
    held = [queue.get() for _ in range(10)]
    assert queue.get() == "all are shared" and used()[1] == before + 100
    process.kill()
    process.join()
    assert until(lambda: used()[1] == before + 10, 30), used()
    assert all(one.eq(number).all() for number, one in enumerate(held))
    del held
    queue.close()
    assert until(lambda: used()[1] <= before, 30), used()


def test_26_a_peer_that_sends_one_byte_or_nothing_delays_no_tensor_and_ends_nothing(fork, broker):
    from shmbroker.mp import place
    queue, session = fork.Queue(), place.home()[0]
    silent = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    silent.connect(broker.socket)
    prompt = 0  # a service that gave each message a second to come would answer none of them
    for number in range(20):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as partial:
            partial.connect(broker.socket)
            partial.send(b"\1")
            try:
                session.ping(timeout=0.5)
                prompt += 1
            except shmbroker.Timeout:
                pass
            queue.put(torch.full((1 << 10,), float(number)))
            assert queue.get().eq(number).all()
    silent.close()
    assert prompt > 10 and broker.process.poll() is None


def test_27_a_part_of_a_large_tensor_is_sent_alone(fork):
    queue = fork.Queue()
    base = torch.zeros(256 << 20, dtype=torch.uint8)
    before = used()[0]
    queue.put(base[100:101])
    got = queue.get()
    assert got.storage().nbytes() < 4096 and not base.is_shared() and used()[0] <= before + 4096
    base = torch.zeros(16 << 20, dtype=torch.uint8)
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


def test_children_have_what_their_parent_has_installed_and_are_in_its_group(ctx):
    from shmbroker.mp import place
    told = ctx.Queue()
    process = start(ctx, children.installed, told)
    done, shared, module, group = told.get()
    assert done and shared and module.startswith("shmbroker")
    assert group == place.home()[0].info().group != 0
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
