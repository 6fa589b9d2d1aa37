# SPDX-License-Identifier: Apache-2.0
"""The programs launch.py and weight_cache.py of examples/torch do what they say."""
import os
import socket
import subprocess
import sys

import pytest

pytest.importorskip("torch")
import shmbroker
from torch_world import run_file

pytestmark = pytest.mark.usefixtures("broker")
FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "examples", "torch")


def start(program, *arguments, **environment):
    return subprocess.Popen([sys.executable, os.path.join(FOLDER, program), *map(str, arguments)], text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **environment})


def run(program, *arguments, status=0):
    done = run_file(os.path.join(FOLDER, program), *arguments)
    assert done.returncode == status, done.stderr
    return done.stdout + done.stderr


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as one:
        return one.getsockname()[1]


@pytest.mark.parametrize("method, procs", [("tcp", 2), ("env", 1), ("file", 1)])
def test_two_shards_on_one_host_train_together(method, procs, tmp_path):
    port = free_port()
    address = {"tcp": f"tcp://127.0.0.1:{port}", "env": "env://", "file": f"file://{tmp_path}/meet"}[method]
    shards = [start("launch.py", "--num-proc", procs, "--num-shards", 2, "--shard-id", shard, "--init-method", address,
                    "--backend", "gloo", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)) for shard in range(2)]
    told = [shard.communicate(timeout=240) for shard in shards]
    assert [shard.returncode for shard in shards] == [0, 0], told
    assert told[0][0] == f"{2 * procs} ranks: y = 3.00 x + 1.00\n" and told[1][0] == ""


def test_a_rank_that_fails_is_told_with_its_traceback(tmp_path):
    told = run("launch.py", "--num-proc", 2, "--init-method", f"file://{tmp_path}/meet", "--backend", "gloo", "--fail", 1,
               status=1)
    assert "-- Process 1 terminated with the following error:" in told and "in train" in told
    assert told.rstrip().endswith("ValueError: rank 1 has no points")


@pytest.mark.parametrize("backend", ["nccl", "mpi"])
def test_a_backend_that_torch_does_not_have_gives_its_own_error(backend, tmp_path):
    import torch.distributed as distributed
    if getattr(distributed, f"is_{backend}_available")():
        pytest.skip(f"this torch has {backend}")
    told = run("launch.py", "--init-method", f"file://{tmp_path}/meet", "--backend", backend, status=1)
    assert f"RuntimeError: Distributed package doesn't have {backend.upper()} built in" in told


def test_engines_use_weights_whose_loader_has_ended():
    assert run("weight_cache.py", "load", "weights").startswith("loaded 9 tensors")
    engines = [start("weight_cache.py", "engine", "weights") for _ in range(2)]
    told = {engine.communicate(timeout=240)[0] for engine in engines}
    assert len(told) == 1 and told.pop().startswith("engine: ")
    assert run("weight_cache.py", "drop", "weights") == "dropped\n"
    with shmbroker.connect() as session, pytest.raises(shmbroker.NotFound):
        session.attach("weights")


def test_the_weights_are_those_of_the_file_in_memory_that_nobody_can_write(tmp_path, monkeypatch):
    import torch
    monkeypatch.syspath_prepend(FOLDER)
    import weight_cache
    state = {"a": torch.arange(10, dtype=torch.int64), "empty": torch.zeros(0, 3), "b.c": torch.randn(3, 5).t(),
             "half": torch.ones(2, dtype=torch.bfloat16), "scalar": torch.tensor(4.0)}
    torch.save(state, tmp_path / "weights.pt")
    run("weight_cache.py", "load", "from-file", tmp_path / "weights.pt")
    with shmbroker.connect() as session:
        found = weight_cache.get(session, "from-file")
        assert list(found) == list(state) and all(found[name].equal(state[name]) for name in state)
        assert all(found[name].dtype == state[name].dtype for name in state)
        regions = [shmbroker.find(found[name].numpy()) for name in ("a", "b.c")]
        assert regions[0].readonly and regions[0].id == regions[1].id
        del found, regions
    run("weight_cache.py", "drop", "from-file")


def test_a_model_uses_the_shared_tensors_themselves(session, monkeypatch):
    import torch
    monkeypatch.syspath_prepend(FOLDER)
    import weight_cache
    model = weight_cache.small_model().eval()
    want = model(torch.ones(1, 512))
    weight_cache.put(session, "model", model.state_dict())
    state = weight_cache.get(session, "model")
    shared = weight_cache.use(weight_cache.small_model(), state)
    assert shared(torch.ones(1, 512)).equal(want)
    assert {one.data_ptr() for one in shared.state_dict().values()} == {one.data_ptr() for one in state.values()}
