# SPDX-License-Identifier: Apache-2.0
"""GPU regions and sets as Python reads them, on the fake driver: names, types, shapes and places of tensors. The fake has
the driver's name, so every case is a program of its own that finds it by LD_LIBRARY_PATH. tests/gpu/library.py publishes.
"""
import os
import subprocess
import sys
import tempfile

import pytest

FAKE = os.environ.get("SHMBROKER_FAKE_DRIVER")
pytestmark = pytest.mark.skipif(FAKE is None, reason="built without GPU memory: there is no fake driver")
GPU_TESTS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "gpu")

BEGIN = """
import ctypes, sys
sys.path.insert(0, sys.argv[1])
import library, shmbroker
group = library.Session().make_group()
publisher = library.Session(group)
session = shmbroker.connect(group="")
session.join(":" + group)
MIB = 1 << 20
def blocks(count):
    return [publisher.allocate(2 * MIB) for _ in range(count)]
"""


@pytest.fixture(scope="module")
def gpu():
    """Runs a program on a broker that takes the fake's memory for a GPU's, and gives what it printed."""
    folder = tempfile.mkdtemp(prefix="shmb-python-gpu-")
    nodes = os.path.join(folder, "nodes")
    os.mkdir(nodes)
    ready, told = os.pipe()
    broker = subprocess.Popen([os.environ["SHMBROKER_FAKE_DAEMON"], "--private", "--directory", folder, "--ready-fd",
                               str(told), "--idle-exit", "forever", "--log-level", "warning", "--seam", f"gpu={nodes}"],
                              pass_fds=[told], stderr=subprocess.DEVNULL)
    os.close(told)
    assert os.read(ready, 1) == b"\n"
    os.close(ready)

    def run(code, begin=BEGIN, **environment):
        done = subprocess.run([sys.executable, "-X", "faulthandler", "-W", "error", "-c", begin + code, GPU_TESTS],
                              env={**os.environ, "SHMBROKER_SOCKET": os.path.join(folder, "socket"),
                                   "REGIONS_SOCKET": os.path.join(folder, "socket"), "LD_LIBRARY_PATH": FAKE,
                                   "REGIONS_LIBRARY": os.environ["SHMBROKER_LIBRARY"], "FAKECUDA_NODES": nodes,
                                   "FAKECUDA_CARD": f"python-{os.getpid()}", "FAKECUDA_DEVICES": "2", **environment},
                              capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"exit status {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout

    yield run
    broker.terminate()
    broker.wait(timeout=30)
    subprocess.run(["rm", "-rf", folder], check=True)


def test_a_set_is_read_with_names_types_shapes_and_places(gpu):
    gpu("""
regions = blocks(3)
listed = [(0, "embed", 0, 1000, 64), (1, "norm", 512, 7, 64), (2, "head", 2 * MIB - 80, 10, 64)]
made = publisher.publish_set("model", regions, listed)
with session.gpu_import("model") as model:
    assert model.size == 6 * MIB and model.device == 0 and model.pointer != 0
    assert [one.name for one in model.tensors] == ["embed", "norm", "head"]
    head = model.tensor("head")
    assert head == ("head", "int64", (10,), None, 6 * MIB - 80)
    assert model.tensor("norm").offset == 2 * MIB + 512 and model.tensor("norm").shape == (7,)
    assert session.gpu_import(model.id).tensors == model.tensors
    for wrong, kind in ("tail", shmbroker.NotFound), ("", shmbroker.Invalid), (None, shmbroker.Invalid), (7, TypeError):
        try: model.tensor(wrong)
        except kind: pass
        else: raise AssertionError(wrong)
assert model.closed
""")


def test_a_region_that_is_closed_while_its_tensors_are_read_stays_until_they_are(gpu):
    gpu("""
import gc
publisher.publish_set("model", blocks(2), [(0, "embed", 0, 1000, 64), (1, "norm", 512, 7, 64)])
for read in (lambda region: region.tensors, lambda region: (region.tensor("embed"), region.tensor("norm"))):
    region = session.gpu_import("model")
    expected = read(region)
    closed = []
    def close(phase, info):
        if phase == "start" and not closed:
            closed.append(region.close())
    gc.callbacks.append(close)
    gc.set_threshold(1, 1, 1)
    try: seen = read(region)
    except shmbroker.Closed: seen = expected  # between the two
    gc.set_threshold(700, 10, 10)
    gc.callbacks.remove(close)
    assert seen == expected, seen
""")


def test_types_have_the_names_of_numpy_and_torch(gpu):
    gpu("""
types = [(0, 8, 1, "int8"), (1, 16, 1, "uint16"), (2, 16, 1, "float16"), (4, 16, 1, "bfloat16"), (5, 64, 1, "complex64"),
         (6, 8, 1, "bool"), (2, 32, 4, "float32x4"), (9, 8, 1, "dlpack9_8"), (3, 64, 1, "dlpack3_64")]
shape, strides = (ctypes.c_int64 * 2)(4, 8), (ctypes.c_int64 * 2)(16, 1)
tensors = (library.Tensor * len(types))(*[
    library.Tensor(name=f"t{i}".encode(), shape=shape, strides=strides, offset=1024 * i, dimensions=2, type_code=code,
                   type_bits=bits, type_lanes=lanes) for i, (code, bits, lanes, _) in enumerate(types)])
region = publisher.allocate(MIB)
options = library.sized(library.PublishOptions, name=b"types", tensors=tensors, tensor_count=len(types))
library.call("shmb_gpu_publish", region.raw, ctypes.byref(options))
seen = session.gpu_import("types")
assert [one.dtype for one in seen.tensors] == [name for *_, name in types]
assert seen.tensor("t3") == ("t3", "bfloat16", (4, 8), (16, 1), 3072)
""")


def test_a_generation_is_whole_and_the_one_before_stays_with_its_reader(gpu):
    gpu("""
first = publisher.publish_set("steps", blocks(2), [(1, "w", 0, 1, 64)])
old = session.gpu_import("steps")
second = publisher.publish_set("steps", blocks(3), [(2, "w", 64, 1, 64)], library.REPLACE)
new = session.gpu_import("steps")
assert (old.tensor("w").offset, new.tensor("w").offset) == (2 * MIB, 4 * MIB + 64)
assert new.id.generation == old.id.generation + 1 and old.id != new.id
gone = old.id
old.close()
first.release()
while True:  # the last release reaches the broker a moment later
    try: session.gpu_import(gone).close()
    except (shmbroker.NotFound, shmbroker.errors.GenerationMismatch): break
assert session.gpu_import("steps", wait=1).tensors == new.tensors
""")


def test_what_cannot_be_imported_says_why(gpu):
    gpu("""
def refused(kind, where, says, **how):
    try: session.gpu_import(where, **how)
    except kind as error: assert says in str(error), error
    else: raise AssertionError(where)
refused(shmbroker.NotFound, "nothing", "nothing")
refused(shmbroker.Timeout, "nothing", "nothing", wait=0.05)
host = session.create(4096, name="host")
refused(shmbroker.errors.OtherKind, "host", "host")
refused(shmbroker.Invalid, b"short", "16 bytes")
refused(TypeError, 7, "address")
publisher.publish_set("here", blocks(1), [])
region = session.gpu_import("here")
assert region.tensors == ()
region.close()
region.close()
for attempt in (lambda: region.tensors, lambda: region.pointer, lambda: region.size, lambda: region.id,
                lambda: region.device, lambda: region.tensor("w"), region.__enter__):
    try: attempt()
    except shmbroker.Closed as error: assert "the GPU region was closed" in str(error)
    else: raise AssertionError("a closed region answered")
session.close()
try: session.gpu_import("here")
except shmbroker.Closed: pass
else: raise AssertionError("a closed session imported")
""")


@pytest.mark.parametrize("environment, kind, says", [
    ({"FAKECUDA_DRIVER_VERSION": "11080"}, "DriverTooOld", "CUDA 11.8, sharing GPU memory needs 12.0 or later"),
    ({"FAKECUDA_STUB": "1"}, "StubDriver", "stub"),
    ({"CUDA_VISIBLE_DEVICES": ""}, "NoDevice", "CUDA_VISIBLE_DEVICES"),
    ({"LD_LIBRARY_PATH": "/nowhere"}, "NoDriver", "no NVIDIA driver")])
def test_a_driver_that_is_missing_or_too_old_is_named(gpu, environment, kind, says):
    gpu(f"""
import shmbroker
session = shmbroker.connect(group="")
try: session.gpu_import("model")
except shmbroker.errors.{kind} as error: assert {says!r} in str(error), error
else: raise AssertionError("imported without a driver")
""", begin="", **environment)


def test_a_region_that_nobody_closed_goes_with_its_session(gpu):
    gpu("""
import gc, time
publisher.publish_set("kept", blocks(1), [])
other = shmbroker.connect(group="")
other.join(":" + group)
held = other.gpu_import("kept")
def importers():
    return [row["importers"] for row in shmbroker.list().gpu_regions if row["name"] == "kept"]
assert importers() == [1]
del held  # at any time, so the device is asked nothing
gc.collect()
other.close()
while importers() != [0]: time.sleep(0.01)
""")
