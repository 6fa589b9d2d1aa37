# SPDX-License-Identifier: Apache-2.0
"""The extension in the life of a process: forks and threads go together, the interpreter may end in
any order, and what cannot work says so at the import or at the call."""
import os
import shutil
import subprocess
import sys

import pytest
import shmbroker

def test_other_threads_run_while_one_waits(python):
    python("""
import threading, shmbroker
queue = shmbroker.connect(group="").queue("q", kind="mpmc")
got = []
waiting = [threading.Thread(target=lambda: got.append(bytes(queue.receive(60)))) for _ in range(4)]
for one in waiting: one.start()
for number in range(4): queue.send(b"%d" % number)
for one in waiting: one.join()
assert sorted(got) == [b"0", b"1", b"2", b"3"], got
""")


@pytest.mark.parametrize("end", ["", "sys.exit(0)", "os._exit(0)", "raise SystemExit"])
def test_the_interpreter_ends_with_everything_open(python, end):
    python(f"""
import os, sys, threading, shmbroker
class Late:
    def __init__(self, region): self.region, self.view, self.me = region, memoryview(region), self
    def __del__(self):
        self.view[0] = 1
        self.view.release()
        self.region.close()
session = shmbroker.connect(group="")
region = session.create(1 << 20)
late = Late(session.create(4096))
Late(session.create(4096))
pool = session.create_pool([(4096, 4)])
slot = pool.acquire(10)
view = memoryview(slot)
queue = pool.queue("q", kind="mpmc")
queue.send([b"x", slot, region])
message = queue.receive()
part = memoryview(message.parts[2])
cycle = [region, queue, message, session]
cycle.append(cycle)
threading.Thread(target=lambda: queue.receive(None), daemon=True).start()
threading.Thread(target=lambda: session.next_event(timeout=None), daemon=True).start()
{end}
""")


def test_daemon_threads_that_come_back_while_the_interpreter_ends_harm_nothing(python):
    assert python("""
import sys, threading, time, shmbroker
session = shmbroker.connect(group="")
queue = session.queue("q", kind="mpmc")
def poll(call):
    while True:
        try: call(timeout=0.0005)
        except TimeoutError: pass
class SlowToGo:
    def __del__(self):
        for _ in range(10): time.sleep(0.01)  # others may have the GIL
slow = SlowToGo()
slow.cycle = slow
for call in (queue.receive, session.next_event) * 3: threading.Thread(target=poll, args=(call,), daemon=True).start()
time.sleep(0.1)
""") == ""


def test_a_forked_child_uses_its_parents_objects(python):
    out = python("""
import os, threading, shmbroker
session = shmbroker.connect(group="")
region = session.create(4096, name="shared", many_writers=True)
pool = session.create_pool([(4096, 8)])
queue = pool.queue("q", kind="mpmc")
slot = pool.acquire(10)
stop = threading.Event()
def busy():
    while not stop.is_set():
        try: queue.receive(0.001).done()
        except TimeoutError: pass
threads = [threading.Thread(target=busy) for _ in range(3)]
for one in threads: one.start()
for number in range(20):
    child = os.fork()
    if child == 0:
        memoryview(region)[number] = 1
        assert session.attach("shared", write=True).id == region.id
        own = session.create(4096)
        try: queue.send(slot)
        except shmbroker.Forked as error: assert "parent" in str(error)
        else: os._exit(7)
        slot.release()
        region.close()
        other = session.queue("child-%d" % number, kind="mpmc")
        other.send(b"from the child")
        assert bytes(other.receive()) == b"from the child"
        session.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
stop.set()
for one in threads: one.join()
assert bytes(region)[:20] == b"\\1" * 20
memoryview(slot)[0] = 1
print("done")
""")
    assert "done" in out


def test_tracing_and_profiling_see_calls_and_harm_nothing(python):
    python("""
import sys, threading, shmbroker
seen = []
sys.settrace(lambda frame, event, arg: seen.append(event) or sys.gettrace())
sys.setprofile(lambda frame, event, arg: seen.append(event))
session = shmbroker.connect(group="")
queue = session.queue("q", kind="mpmc")
for number in range(100):
    queue.send([b"x", session.create(4096)])
    memoryview(queue.receive().take(1))
try: queue.receive(0)
except shmbroker.Empty: pass
sys.settrace(None); sys.setprofile(None)
assert "c_call" in seen and "c_exception" in seen
""")


def test_the_fault_handler_shows_a_thread_that_waits(python):
    out = python("""
import faulthandler, sys, threading, time, shmbroker
queue = shmbroker.connect(group="").queue("q", kind="mpmc")
def the_waiting_one(): queue.receive(30)
thread = threading.Thread(target=the_waiting_one)
thread.start()
time.sleep(0.2)
faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
queue.send(b"x")
thread.join()
""")
    assert "the_waiting_one" in out


def test_the_import_is_a_good_guest(python):
    out = python("""
import os, signal, sys, threading
before = [signal.getsignal(number) for number in range(1, 65)]
descriptors = os.listdir("/proc/self/fd")
import shmbroker
assert [signal.getsignal(number) for number in range(1, 65)] == before
assert len(os.listdir("/proc/self/task")) == 1 and threading.active_count() == 1
assert os.listdir("/proc/self/fd") == descriptors
unwanted = {"numpy", "torch", "multiprocessing", "asyncio", "typing", "dataclasses", "subprocess", "json"} & set(sys.modules)
assert not unwanted, unwanted
""")
    assert out == ""


def test_a_subinterpreter_is_refused(python):
    out = python("""
import shmbroker, _xxsubinterpreters as interpreters
one = interpreters.create()
try:
    interpreters.run_string(one, "import sys; sys.path[:] = %r\\nimport shmbroker" % (__import__("sys").path,))
except interpreters.RunFailedError as error:
    print(error)
shmbroker.connect(local="only").create(10)
""")
    assert "ImportError" in out and "main interpreter alone" in out


def test_a_free_threaded_python_is_refused(python):
    out = python("""
import sys
sys.abiflags = "t"  # as such a Python has it
try:
    import shmbroker
except ImportError as error:
    print(error)
""")
    assert "free-threaded" in out and "ordinary build" in out


def test_a_second_import_has_the_same_types(python):
    python("""
import sys, shmbroker
session = shmbroker.connect(local="only")
first = shmbroker.Region
for name in [name for name in sys.modules if name.startswith("shmbroker")]: del sys.modules[name]
import shmbroker
assert shmbroker.Region is first
assert isinstance(session.create(10), shmbroker.Region)
try: session.attach("x")
except shmbroker.Error: pass
""")


def test_no_broker_and_none_startable_is_an_error_that_says_what_was_tried(python, tmp_path):
    out = python("""
import shmbroker
try:
    shmbroker.connect()
except ConnectionRefusedError as error:
    assert isinstance(error, shmbroker.NoBroker)
    print(error)
local = shmbroker.connect(local="ok")
assert local.info().mode == "local"
memoryview(local.create(4096))[0] = 1
try: local.create(4096, name="x")
except shmbroker.LocalOnly as error: print(error)
""", SHMBROKER_SOCKET="", XDG_RUNTIME_DIR=str(tmp_path), SHMBROKER_DAEMON=str(tmp_path / "missing"))
    assert str(tmp_path) in out


def test_a_library_of_another_version_is_refused_at_the_import(tmp_path):
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    needed = subprocess.run(["nm", "-D", "--undefined-only", shmbroker._core.__file__], capture_output=True, text=True,
                            check=True).stdout
    names = sorted({line.split()[-1].split("@")[0] for line in needed.splitlines() if " shmb_" in line})
    source = tmp_path / "other.c"
    source.write_text('const char* shmb_version(void) { return "9.9.9"; }\n' + "".join(
        f"void {name}(void) {{}}\n" for name in names if name != "shmb_version"))
    versions = tmp_path / "versions"
    versions.write_text("SHMBROKER_0 { global: shmb_*; };")
    other = tmp_path / "libshmbroker.so.0"
    subprocess.run(["cc", "-shared", "-fPIC", "-Wl,-soname,libshmbroker.so.0", f"-Wl,--version-script={versions}",
                    "-o", other, source], check=True)
    done = subprocess.run([sys.executable, "-c", "import shmbroker"], capture_output=True, text=True, check=False,
                          env={**os.environ, "LD_PRELOAD": str(other)})
    assert done.returncode == 1 and "ImportError" in done.stderr and "9.9.9" in done.stderr, done.stderr


def test_the_end_of_the_broker_is_an_error_and_mappings_stay(broker, python):
    out = python("""
import os, signal, sys, shmbroker
session = shmbroker.connect(group="")
region = session.create(4096)
view = memoryview(region)
view[0] = 5
queue = session.queue("q", kind="mpmc")
os.kill(int(sys.argv[1]), signal.SIGTERM)
try:
    while True: session.ping()
except ConnectionError as error:
    assert isinstance(error, shmbroker.SessionLost), error
    print(error)
assert view[0] == 5 and session.info().lost
try: session.create(1)
except shmbroker.SessionLost: pass
try: queue.receive(10)
except (shmbroker.SessionLost, shmbroker.GroupEnded) as error: print(error)  # a broker that ends says so first
""", str(broker.process.pid))
    assert out.count("\n") >= 2
    broker.process.wait(timeout=30)
    broker.start()


def test_the_types_of_the_extension_are_those_of_the_stub():
    import ast
    stub = os.path.join(os.path.dirname(shmbroker.__file__), "_core.pyi")
    with open(stub, encoding="utf-8") as text:
        tree = ast.parse(text.read())
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            assert callable(getattr(shmbroker._core, node.name)), node.name
        if not isinstance(node, ast.ClassDef):
            continue
        real = getattr(shmbroker._core, node.name)
        declared = {one.name for one in node.body if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef))}
        declared |= {one.target.id for one in node.body if isinstance(one, ast.AnnAssign)}
        declared -= {"__buffer__", "__new__", "__init__"}
        missing = {name for name in declared if not hasattr(real, name)}
        assert not missing, f"{node.name}: {missing}"
        extra = {name for name in vars(real) if not name.startswith("_")} - declared
        assert not extra - {"n_fields", "n_sequence_fields", "n_unnamed_fields"}, f"{node.name}: {extra}"


def test_nothing_grows_over_many_calls(python):
    python("""
import gc, os, sys, shmbroker
session = shmbroker.connect(group="")
pool = session.create_pool([(4096, 8)])
queue = pool.queue("q", kind="mpmc")
region = session.create(4096, many_writers=True)
def step():
    slot = pool.acquire(100)
    memoryview(slot)[0] = 1
    queue.send([b"head", shmbroker.Part(slot, 0, 50), region, bytearray(10)], type=3)
    message = queue.receive()
    [memoryview(part)[0] for part in message.parts]
    taken, again = message.take(1), message.take(2)
    assert pool.find(memoryview(taken)) is not None and shmbroker.find(bytes(1)) is None
    message.tobytes, message.type, region.id, region.info(), queue.info(), pool.info(), session.info()
    own = session.create(4096, name="x", replace=True, keep=0)
    own.close(unname=True)
    session.revoke(region.ticket())
    session.attach(region.id, write=True)
    queue.send(b"y"); queue.receive_bytes()
    queue.send_many([b"1", b"2"]); queue.receive_many(5)
    for wrong in (lambda: queue.receive(0), lambda: session.attach("nothing"), lambda: session.create(-1),
                  lambda: queue.send("text"), lambda: queue.send([b"x", "text"]), lambda: message.take(0),
                  lambda: session.create(1, nome=2), lambda: session.watch(), lambda: session.join(b"")):
        try: wrong()
        except (shmbroker.Error, TypeError): pass
def measure():
    gc.collect()
    counted = [sys.getrefcount(one) for one in (None, True, False, (), "", b"", *vars(shmbroker).values())]
    return sys.getallocatedblocks(), len(os.listdir("/proc/self/fd")), sum(counted)
for _ in range(50): step()
before = measure()
for _ in range(500): step()
after = measure()
grown = [b - a for a, b in zip(before, after)]
assert grown[0] < 100 and grown[1] == 0 and grown[2] < 100, grown
""")
