# SPDX-License-Identifier: Apache-2.0
"""shmbroker.torch.rpc between processes that are started one by one, as users start them. This process is worker "w0";
"w1" and "w2" are programs of their own, and "cpp" is one of C++."""
import gc
import inspect
import io
import pickle
import signal
import sys
import threading
import weakref

import pytest
from torch_rpc_world import CPP, LARGE, ended, free_port, functions, join, rpc, start, start_worker, torch, until


@pytest.fixture(scope="module")
def world(broker):
    port = free_port()
    others = [start_worker("w1", 1, 4 if CPP else 3, port), start_worker("w2", 2, 4 if CPP else 3, port)]
    if CPP:
        others.append(start([CPP, "cpp", "3", "4"], port))
    join(port, 1 + len(others))
    yield others
    rpc.shutdown()
    for one in others:
        ended(one)


def test_the_calls_take_what_those_of_torch_take(world):
    import torch.distributed.rpc as stock
    for name in ("init_rpc", "shutdown", "rpc_sync", "rpc_async", "remote", "get_worker_info"):
        ours, theirs = ([(one.name, one.kind, one.default) for one in inspect.signature(getattr(of, name)).parameters.values()]
                        for of in (rpc, stock))
        assert ours == theirs, name
    assert inspect.signature(rpc.remote).parameters["timeout"].default == -1.0
    for name in ("to_here", "local_value", "owner", "owner_name", "is_owner", "confirmed_by_owner", "rpc_sync", "rpc_async",
                 "remote", "_get_future", "_get_type"):
        assert callable(getattr(rpc.RRef, name)) and hasattr(stock.RRef, name)
    assert rpc.BackendType.TENSORPIPE.name == stock.BackendType.TENSORPIPE.name
    for name in ("rpc_timeout", "init_method", "num_worker_threads", "device_maps", "devices"):
        ours, theirs = (getattr(of.TensorPipeRpcBackendOptions(), name) for of in (rpc, stock))
        assert ours == theirs, name


# ---------------------------------------------------------------------------------------------- calls and values

def test_70_76_a_builtin_a_function_with_keywords_and_a_class_are_called_here_and_there(world):
    for to in ("w1", 1, rpc.get_worker_info("w1"), "w0"):
        assert rpc.rpc_sync(to, torch.add, args=(torch.ones(2), 3)).tolist() == [4, 4]
        assert rpc.rpc_sync(to, functions.combine, args=(1,), kwargs={"scale": 5}) == 10
        assert rpc.rpc_async(to, functions.combine, args=(2,), kwargs={"scale": 5}).wait() == 15
        counter = rpc.remote(to, functions.Counter, args=(40,))
        assert counter.rpc_sync().add(2) == 42
        assert counter.rpc_async().add(by=1).wait() == 43
        assert counter.remote().add().to_here() == 44
        assert counter.rpc_sync().add_later(6) == 50


def test_70_results_of_many_calls_keep_their_order(world):
    references = [rpc.remote("w1", functions.give_back, args=(i,)) for i in range(100)]
    assert [one.to_here() for one in references] == list(range(100))
    futures = [rpc.rpc_async("w2", functions.give_back, args=(i,)) for i in range(1000)]
    assert torch.futures.wait_all(futures) == list(range(1000))


def test_workers_that_call_each_other_back_do_not_wait_for_each_other(world):
    assert rpc.rpc_sync("w1", functions.call_back, args=("w2", 12))[:3] == ["w1", "w2", "w1"]


TENSORS = {
    "float": torch.arange(6.0).reshape(2, 3), "bool": torch.tensor([True, False]), "empty": torch.empty(0, 3),
    "scalar": torch.tensor(3), "half": torch.ones(5, dtype=torch.bfloat16), "complex": torch.ones(3, dtype=torch.cfloat),
    "transposed": torch.arange(6.0).reshape(2, 3).t(), "gaps": torch.arange(20.0)[::3],
    "channels": torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last), "expanded": torch.ones(1).expand(4),
    "large": torch.arange(float(LARGE)), "sparse": torch.eye(3).to_sparse(),
    "quantised": torch.quantize_per_tensor(torch.ones(4), 0.1, 10, torch.quint8), "conjugate": torch.full((2,), 1 + 2j).conj(),
    "negative": torch.full((2,), 1 + 2j).conj().imag,
}


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_comes_back_equal(world, name):
    sent = TENSORS[name]
    came = rpc.rpc_sync("w1", functions.give_back, args=(sent,))
    assert came.dtype == sent.dtype and came.shape == sent.shape and came.layout == sent.layout
    if name == "sparse":
        assert torch.equal(came.to_dense(), sent.to_dense())
    elif name == "quantised":
        assert torch.equal(came.dequantize(), sent.dequantize())
    else:
        assert torch.equal(came, sent)
    if name in ("transposed", "channels"):
        assert came.stride() == sent.stride()


def test_parameters_and_gradients_wanted_arrive_as_such(world):
    came = rpc.rpc_sync("w1", functions.give_back,
                        args=([torch.nn.Parameter(torch.ones(3)), torch.ones(3, requires_grad=True)],))
    assert type(came[0]) is torch.nn.Parameter and came[0].requires_grad
    assert came[1].requires_grad and came[1].is_leaf
    model = rpc.rpc_sync("w1", functions.give_back, args=(torch.nn.Linear(300, 300),))
    assert model(torch.ones(300)).shape == (300,)


@pytest.mark.parametrize("count", [4, LARGE])
def test_a_tensor_that_arrived_is_the_receivers_own(world, count):
    mine = torch.ones(count)
    assert rpc.rpc_sync("w1", functions.write_four, args=(mine,)) == 4 * count
    assert mine.sum() == count
    reference = rpc.remote("w1", functions.ones, args=(count,))
    first = reference.to_here()
    first.fill_(9)
    second = reference.to_here()
    assert second.sum() == count
    second[0] = 5
    assert first[0] == 9 and reference.to_here().sum() == count


def test_a_fetch_sees_what_the_owner_has_written_since(world):
    reference = rpc.remote("w1", functions.ones, args=(LARGE,))
    before = reference.to_here()
    rpc.rpc_sync("w1", functions.fill_value, args=(reference, 2))
    assert reference.to_here().sum() == 2 * LARGE
    assert before.sum() == LARGE
    reference.rpc_sync().fill_(3)
    assert reference.to_here().sum() == 3 * LARGE
    for keep in functions.keep_ones, functions.keep_data, functions.keep_array:
        held = rpc.remote("w1", keep, args=("held", LARGE))
        assert held.to_here().sum() == LARGE
        rpc.rpc_sync("w1", functions.fill_kept, args=("held", 6))  # past the counter of versions
        assert held.to_here().sum() == 6 * LARGE
    rpc.rpc_sync("w1", functions.forget, args=("held",))


def test_a_large_value_that_nobody_else_has_is_copied_once(world):
    from shmbroker.torch.rpc import references
    for make in (lambda: torch.ones(LARGE), lambda: rpc.rpc_sync("w1", functions.ones, args=(LARGE,))):
        kept = references.Value(make())
        kept._lent = False
        first = kept.snapshot()
        assert first is not None and kept.snapshot() is first
        other = kept.value.data
        assert kept.snapshot() is None
        del other
        assert kept.snapshot() is not None


# ---------------------------------------------------------------------------------------------- references

def test_71_72_74_79_references_travel_as_arguments_and_results_and_between_third_workers(world):
    one, two = functions.make_at("w1", 1), functions.make_at("w1", 2)
    assert rpc.rpc_sync("w1", functions.sum_of, args=(one, two)) == 3
    assert rpc.rpc_sync("w2", functions.sum_of, args=(one, two)) == 3
    assert rpc.rpc_sync("w2", functions.was_confirmed, args=(one,)) == (True, 1)
    assert rpc.remote("w2", functions.was_confirmed, args=(two,)).to_here() == (True, 2)
    returned = rpc.rpc_sync("w1", functions.make_at, args=("w2", 7))
    assert returned.owner_name() == "w2" and returned.to_here() == 7
    nested = [rpc.remote("w1", functions.list_of_references, args=("w2",)) for _ in range(20)]
    assert [[inner.to_here() for inner in one.to_here()] for one in nested] == [[1, 2]] * 20
    own = rpc.RRef(50)
    assert own.local_value() == 50 and own.to_here() == 50 and own.is_owner() and str(own) == "OwnerRRef(local)"
    assert rpc.rpc_sync("w1", functions.add_to_local, args=(own,)) == 90
    assert rpc.rpc_async("w1", functions.add_to_local, args=(own,)).wait() == 90
    assert rpc.remote("w2", functions.add_to_local, args=(own,)).to_here() == 90
    made_there = rpc.rpc_sync("w1", functions.list_of_references, args=("w1",))
    assert [one.owner_name() for one in made_there] == ["w1"] * 2 and [one.to_here() for one in made_there] == [1, 2]


def test_73_a_reference_that_goes_around_a_ring_still_has_its_value(world):
    reference = rpc.remote("w1", torch.add, args=(torch.ones(2), 1))
    assert functions.around(reference, ["w0", "w1", "w2"], 8).tolist() == [2, 2]


def test_75_77_80_81_83_a_reference_tells_what_it_is(world):
    reference = functions.make_at("w1", 1)
    reference.to_here()
    assert reference.owner() == rpc.get_worker_info("w1") and hash(reference.owner()) == hash(rpc.get_worker_info("w1"))
    assert (reference.owner_name(), reference.is_owner(), reference.confirmed_by_owner()) == ("w1", False, True)
    assert str(reference).startswith("UserRRef(RRefId = GloballyUniqueId(created_on=0, local_id=")
    assert reference._get_type() is int and reference._get_future().wait() is None
    numbers = r"GloballyUniqueId\(created_on=0, local_id=\d+\)"
    with pytest.raises(RuntimeError, match=rf"For UserRRef\(rref_id={numbers}, fork_id={numbers}\), can't call "
                                           r"localValue\(\) on user WorkerInfo\(id=0, name=w0\)\. "
                                           r"Call it on owner WorkerInfo\(id=1, name=w1\)"):
        reference.local_value()
    for save in (pickle.dumps, lambda it: torch.save(it, io.BytesIO())):
        with pytest.raises(RuntimeError, match="Can not pickle rref in python pickler"):
            save(reference)
    assert functions.make_at("w0", [5]).local_value() == [5]


def test_84_the_type_of_a_value_is_waited_for(world):
    late = rpc.remote("w1", functions.sleep, args=(0.3,))
    assert late._get_type(blocking=False).wait() is float and late._get_type() is float


def test_84_the_type_of_a_value_that_failed_is_its_error(world):
    failing = rpc.remote("w1", functions.fail, args=(ValueError, "as asked"))
    with pytest.raises(ValueError, match="as asked"):
        failing._get_type()
    with pytest.raises(ValueError, match="as asked"):
        failing._get_type(blocking=False).wait()


def test_values_go_when_their_last_reference_goes(world):
    until(lambda: rpc.rpc_sync("w1", functions.values_here) == 0)
    held = [functions.make_at("w1", i) for i in range(20)]
    assert held[19].to_here() == 19
    assert rpc.rpc_sync("w1", functions.values_here) == 20
    del held
    until(lambda: rpc.rpc_sync("w1", functions.values_here) == 0)


# ---------------------------------------------------------------------------------------------- failures

def test_78_an_exception_arrives_with_its_type_its_text_and_its_traceback(world):
    for call in (lambda: rpc.rpc_sync("w1", functions.fail, args=(ValueError, "as asked")),
                 lambda: rpc.rpc_async("w1", functions.fail, args=(ValueError, "as asked")).wait(),
                 lambda: rpc.remote("w1", functions.fail, args=(ValueError, "as asked")).to_here()):
        with pytest.raises(ValueError) as raised:
            call()
        text = str(raised.value)
        assert text.startswith("On WorkerInfo(id=1, name=w1):\nValueError('as asked')\n")
        assert "torch_rpc_functions.py" in text and "raise kind(text)" in text
    with pytest.raises(ValueError, match="KeyError: 'the cause'"):
        rpc.rpc_sync("w2", functions.fail_from, args=("text",))
    with pytest.raises(ValueError, match="read") as raised:  # of the class whose value it is, in this process
        rpc.rpc_async("w1", functions.Unreadable).wait()
    assert isinstance(raised.value.__cause__, KeyError) and raised.value.__context__ is raised.value.__cause__
    assert raised.value.__suppress_context__
    with pytest.raises(ValueError, match="read") as raised:
        rpc.rpc_async("w1", functions.UnreadableMeanwhile).wait()
    assert isinstance(raised.value.__context__, KeyError) and raised.value.__cause__ is None
    assert not raised.value.__suppress_context__  # else its traceback would not show what was met before
    future = rpc.rpc_async("w1", functions.UnreadableWithoutCopy)
    for _ in range(2):
        with pytest.raises(functions.NoCopy, match="1 and 2"):
            future.wait()
    with pytest.raises(TypeError, match="as asked"):
        rpc.rpc_sync("w0", functions.fail, args=(TypeError, "as asked"))
    with pytest.raises(TypeError, match="as asked"):
        rpc.remote("w0", functions.fail, args=(TypeError, "as asked")).to_here()
    with pytest.raises(rpc.RemoteException, match="Odd"):
        rpc.rpc_sync("w1", functions.fail_odd)
    with pytest.raises(TypeError, match="cannot pickle '_thread.lock' object"):
        rpc.rpc_sync("w1", functions.give_unpicklable)
    with pytest.raises(TypeError, match="cannot pickle"):
        rpc.rpc_sync("w1", functions.give_back, args=(threading.Lock(),))
    assert issubclass(rpc.RemoteException, RuntimeError)


def test_a_failed_call_keeps_nothing_of_its_caller(world):
    gone = []

    def call():
        mine = functions.Counter(0)
        gone.append(weakref.ref(mine))
        future = rpc.rpc_async("w1", functions.fail, args=(ValueError, "as asked"))
        for _ in range(2):
            with pytest.raises(ValueError, match="as asked"):
                future.wait()
    gc.disable()
    try:
        call()
        assert gone[0]() is None
    finally:
        gc.enable()


def test_a_function_that_the_other_side_lacks_says_so(world):
    there = sys.modules["torch_rpc_functions"]
    there.only_here = lambda: None
    there.only_here.__qualname__ = there.only_here.__name__ = "only_here"
    there.only_here.__module__ = "torch_rpc_functions"
    with pytest.raises(AttributeError, match="Ensure that UDFs are defined on both caller and callee modules"):
        rpc.rpc_sync("w1", there.only_here)


def test_90_91_92_100_timeouts_are_of_the_call_the_default_or_none(world):
    text = "RPC ran for more than set timeout"
    with pytest.raises(RuntimeError, match=r"RPC ran for more than set timeout \(100 ms\)"):
        rpc.rpc_sync("w1", functions.sleep, args=(0.5,), timeout=0.1)
    with pytest.raises(RuntimeError, match=text):
        rpc.rpc_async("w1", functions.sleep, args=(0.5,), timeout=0.1).wait()
    assert rpc.get_rpc_timeout() == 60
    rpc._set_rpc_timeout(0.1)
    try:
        with pytest.raises(RuntimeError, match=text):
            rpc.rpc_sync("w1", functions.sleep, args=(0.5,))
        assert rpc.rpc_sync("w1", functions.sleep, args=(0.3,), timeout=0) == 0.3
        assert rpc.rpc_sync("w1", functions.sleep, args=(0.3,), timeout=30) == 0.3
    finally:
        rpc._set_rpc_timeout(60)
    reference = rpc.remote("w1", functions.sleep, args=(0.5,))
    with pytest.raises(RuntimeError, match=text):
        reference.to_here(0.01)
    assert reference.to_here() == 0.5
    late = rpc.remote("w1", functions.sleep, args=(0.5,), timeout=0.1)  # 92 and 100: one outcome, also later
    for _ in range(3):
        with pytest.raises(RuntimeError, match="RRef creation"):
            late.to_here()
    with pytest.raises(ValueError, match="-1 for the default"):
        rpc.rpc_sync("w1", functions.sleep, args=(0,), timeout=-3)


def test_workers_and_functions_that_do_not_exist_are_refused(world):
    with pytest.raises(RuntimeError, match="Unknown destination worker w9. The workers of this world are"):
        rpc.rpc_sync("w9", torch.add, args=(1, 2))
    with pytest.raises(RuntimeError, match="Unknown destination worker 64"):
        rpc.remote(64, torch.add, args=(1, 2))
    with pytest.raises(ValueError, match="Cannot get WorkerInfo"):
        rpc.rpc_sync(None, torch.add, args=(1, 2))
    with pytest.raises(TypeError, match="function should be callable"):
        rpc.rpc_sync("w1", 3)
    with pytest.raises(RuntimeError, match='no function "unheard" is registered there'):
        rpc.rpc_sync("w1", "unheard")
    with pytest.raises(RuntimeError, match="already initialized"):
        rpc.init_rpc("again", rank=0, world_size=1)


def test_an_async_function_is_answered_when_its_future_is_done(world):
    x = torch.ones(2)
    assert rpc.rpc_sync("w1", functions.add_in_chain, args=("w2", x, 1, 2)).tolist() == [4, 4]
    assert rpc.remote("w1", functions.add_in_chain, args=("w0", x, 1, 2)).to_here().tolist() == [4, 4]
    with pytest.raises(RuntimeError, match="must return a torch.futures.Future object"):
        rpc.rpc_sync("w1", functions.no_future)


def test_94_a_broker_that_answers_late_loses_no_reference(world, broker):
    before = rpc.rpc_sync("w1", functions.values_here)
    for number in range(3):
        broker.process.send_signal(signal.SIGSTOP)
        back = threading.Timer(0.3, broker.process.send_signal, [signal.SIGCONT])
        back.start()
        reference = functions.make_at("w1", number)
        assert rpc.rpc_sync("w2", functions.fetch, args=(reference,)) == number
        back.join()
    del reference
    until(lambda: rpc.rpc_sync("w1", functions.values_here) <= before)


def test_97_futures_chain_and_fail_and_the_first_error_is_raised_for_all(world):
    future = rpc.rpc_async("w1", functions.give_back, args=(0,))
    for _ in range(20):
        future = future.then(lambda done: done.wait() + 1)
    assert future.wait() == 20
    seen = []
    failing = rpc.rpc_async("w1", functions.fail, args=(ValueError, "as asked"))
    failing.add_done_callback(seen.append)
    chained = failing.then(lambda done: done.wait())
    with pytest.raises(ValueError, match="as asked"):
        failing.wait()
    with pytest.raises(RuntimeError, match="ValueError"):  # torch's words for an error of a callback
        chained.wait()
    assert len(seen) == 1
    with pytest.raises(Exception, match="division by zero"):
        rpc.rpc_async("w1", functions.give_back, args=(0,)).then(lambda done: 1 / done.wait()).wait()
    with pytest.raises(ValueError, match="as asked"):
        torch.futures.wait_all([rpc.rpc_async("w2", functions.give_back, args=(1,)),
                                rpc.rpc_async("w1", functions.fail, args=(ValueError, "as asked")),
                                rpc.rpc_async("w1", functions.fail, args=(TypeError, "too"))])


# ---------------------------------------------------------------------------------------------- with workers of C++

needs_cpp = pytest.mark.skipif(not CPP, reason="SHMBROKER_RPC_WORKER names no worker of C++")


@needs_cpp
def test_python_calls_functions_of_cpp_with_plain_values_and_buffers(world):
    assert rpc.rpc_sync("cpp", "add", args=(1, 2)) == 3
    assert rpc.rpc_sync("cpp", "turn", args=({"a": [1.0, -2.5], "b": []},)) == {"a": [-1.0, 2.5], "b": []}
    for size in (10, 300_000):
        grown = rpc.rpc_sync("cpp", "grow", args=(bytes([3]) * size,))
        assert bytes(grown) == bytes([3]) * size + bytes([7])
    assert bytes(rpc.rpc_sync("cpp", "grow", args=(torch.arange(3, dtype=torch.uint8).numpy(),))) == bytes([0, 1, 2, 7])
    counter = rpc.remote("cpp", "Counter", args=(40,))
    assert rpc.rpc_sync("cpp", "Counter.add", args=(counter, 2)) == 42
    assert rpc.remote("cpp", "add", args=(4, 5)).to_here() == 9
    with pytest.raises(ValueError, match="as asked"):
        rpc.rpc_sync("cpp", "refuse", args=("as asked",))
    with pytest.raises(ValueError, match="takes 2 arguments"):
        rpc.rpc_sync("cpp", "add", args=(1,))
    with pytest.raises(RuntimeError, match="unheard"):
        rpc.rpc_sync("cpp", "unheard")
    with pytest.raises(TypeError, match="is no plain value"):
        rpc.rpc_sync("cpp", "add", args=(1, object()))


@needs_cpp
def test_cpp_calls_functions_of_python_with_plain_values_and_buffers(world):
    for worker in ("w1", "w0"):
        assert rpc.rpc_sync("cpp", "call_python", args=(worker,)) == [
            "xx", "200000", "100000", "ValueError: as asked", "no function", "reference"]


def test_plain_values_come_back_as_they_were():
    from shmbroker.torch.rpc import plain

    values = [None, True, False, 0, 127, 128, -1, -32, -33, 2**63 - 1, 2**64 - 1, -(2**63), 1.5, "", "x" * 31, "x" * 32,
              "x" * 300, "ü" * 40000, b"", b"x" * 255, b"x" * 256, [], list(range(15)), list(range(16)), [1] * 70000,
              {}, {str(i): i for i in range(15)}, {i: [i] for i in range(16)}, {i: i for i in range(70000)}]
    packed = plain.Packer(None, lambda value: None).pack(values).payload()[0]
    assert plain.Unpacker((bytearray(packed), (), ()), None).value() == values
    for cut in range(1, 200):
        with pytest.raises((plain.Malformed, UnicodeDecodeError)):
            plain.Unpacker((bytearray(packed[:cut]), (), ()), None).value()
    for wrong in (2**64, -(2**63) - 1):
        with pytest.raises(OverflowError):
            plain.Packer(None, lambda value: None).pack(wrong)
    deep = []
    for _ in range(600):
        deep = [deep]
    with pytest.raises(ValueError, match="nested"):
        plain.Packer(None, lambda value: None).pack(deep)
