# SPDX-License-Identifier: Apache-2.0
"""The broker is killed in the middle: each wait ends with an exception that says so, what is mapped stays, nobody hangs."""
import os
import signal
import subprocess
import sys

import pytest
from conftest import Broker


@pytest.fixture
def mortal(monkeypatch):
    """A broker for one test, which kills it."""
    it = Broker()
    monkeypatch.setenv("SHMBROKER_SOCKET", it.socket)
    monkeypatch.setenv("BROKER_PID", str(it.process.pid))
    monkeypatch.delenv("SHMBROKER_GROUP", raising=False)
    yield it
    it.kill()
    it.start()  # takes the place of the killed one, and so cleans up what it left
    it.end()


WAITS = """
import asyncio, faulthandler, os, signal, threading, time
faulthandler.dump_traceback_later(50, exit=True)
def kill(): os.kill(int(os.environ["BROKER_PID"]), signal.SIGKILL)
told, waiting = {}, []
def wait(name, call):
    def run():
        try: told[name] = call()
        except BaseException as error: told[name] = error
    waiting.append(threading.Thread(target=run, name=name, daemon=True))
    waiting[-1].start()
def all_end():
    for one in waiting:
        one.join(20)
        assert not one.is_alive(), one.name
"""


def test_every_wait_of_the_extension_ends_and_mappings_stay(mortal, python):
    out = python(WAITS + """
import shmbroker
session, other = shmbroker.connect(group=""), shmbroker.connect(group="")
pool = session.create_pool([(4096, 2)])
slots = [pool.acquire(10), pool.acquire(10)]
region = session.create(4096)
view = memoryview(region)
view[:4] = b"data"
mpmc, spsc = (other.queue(kind, kind=kind) for kind in ("mpmc", "spsc"))
full, drained = pool.queue("full", kind="mpmc", cells=2), other.queue("drained", kind="mpmc")
try:
    while True: full.send(b"x", 0)
except shmbroker.Full: pass
drained.send(b"x")
wait("mpmc", lambda: mpmc.receive(None))
wait("spsc", lambda: spsc.receive(None))
wait("send", lambda: full.send(b"y", None))
wait("acquire", lambda: pool.acquire(10, timeout=None))
wait("drain", lambda: drained.drain(None))
wait("attach", lambda: other.attach("never", wait=None))
wait("wait_group", lambda: other.wait_group(timeout=None))
async def every(queue):
    async for message in queue: pass
async def get(queue): return await queue.receive_async()
wait("async for", lambda: asyncio.run(every(other.queue("for", kind="mpmc"))))
wait("async get", lambda: asyncio.run(get(other.queue("get", kind="mpmc"))))
wait("event", lambda: session.next_event(timeout=None).kind)
time.sleep(0.5)
kill()
all_end()
assert told.pop("event") == "broker_away"
for name, error in told.items(): assert isinstance(error, shmbroker.SessionLost), (name, error)
for call in (session.ping, lambda: session.create(1), region.ticket, region.stat, lambda: session.attach("x"),
             lambda: session.create_pool([(10, 1)]), lambda: other.queue("new", kind="mpmc")):
    try: call()
    except shmbroker.SessionLost as lost: assert "connect again" in str(lost)
    else: raise AssertionError
try: shmbroker.connect()
except ConnectionRefusedError as refused: print(refused)
assert bytes(view[:4]) == b"data" and bytes(full.receive(0)) == b"x"  # what is there goes on
full.send(slots[0], 0)
memoryview(slots[1])[0] = 1
view.release()
for slot in slots: slot.release()
for one in (region, full, pool, session): one.close()
""")
    assert "no broker" in out


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_every_wait_of_mp_ends_and_no_task_is_left_open(mortal, python, method):
    python(WAITS + f"""
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
import numpy, shmbroker
from shmbroker import mp
ctx = mp.get_context({method!r})
lost = (shmbroker.SessionLost, BrokenExecutor)
queue, bounded, simple, joined, polled, waited = (ctx.Queue(), ctx.Queue(2), ctx.SimpleQueue(), ctx.JoinableQueue(),
                                                  ctx.Queue(), ctx.Queue())
pool, executor = ctx.Pool(2), ProcessPoolExecutor(2, mp_context=ctx)
assert pool.map(abs, range(4)) == list(executor.map(abs, range(4))) == [0, 1, 2, 3]
queue.put(numpy.arange(100000))
array = queue.get()
rest = ctx.Queue()
for number in range(1000): rest.put(number)  # more than the queue has room for
bounded.put(1), bounded.put(2), joined.put(1)
child = ctx.Process(target=time.sleep, args=(1,))
child.start()
wait("get", queue.get)
wait("get with a timeout", lambda: queue.get(timeout=60))
wait("get of a SimpleQueue", simple.get)
wait("put", lambda: bounded.put(3))
wait("join", joined.join)
wait("poll", lambda: polled._reader.poll(None))
wait("wait", lambda: mp.connection.wait([waited._reader])[0].recv())
wait("task", pool.apply_async(time.sleep, (30,)).get)
wait("map", pool.map_async(time.sleep, [30] * 50).get)
wait("imap", lambda: list(pool.imap(time.sleep, iter([30] * 50))))
wait("future", executor.submit(time.sleep, 30).result)
time.sleep(0.5)
workers = list(pool._pool)
kill()
all_end()
for name, error in told.items(): assert isinstance(error, lost), (name, error)
assert array.sum() == 4999950000
for call in (lambda: queue.put(numpy.ones(1 << 20)), lambda: rest.put(1), lambda: ctx.Queue().put(1), lambda: mp.empty(10),
             lambda: pool.apply(abs, (1,)), lambda: ctx.Pool(1), lambda: executor.submit(abs, 1)):
    try: call()
    except (ConnectionError, BrokenExecutor): pass
    else: raise AssertionError
one, other = ctx.Pipe()
one.send("small")
assert other.recv() == "small"  # needs no broker
assert set(pool._pool) <= set(workers), "new workers could not open the queues"
pool.terminate()
pool.join()
executor.shutdown()
child.join(20)
assert child.exitcode == 0
""")


QUEUES = """
import os, queue, signal, sys, time
import numpy, shmbroker
from shmbroker import mp
def kill(): os.kill(shmbroker.status().pid, signal.SIGKILL)
def lost(call, word="new queue"):
    try: call()
    except shmbroker.SessionLost as error: assert word in str(error), error
    else: raise AssertionError("nothing was raised")
def until_lost(call):
    for _ in range(500):
        try: call()
        except (queue.Empty, queue.Full): pass
        except shmbroker.SessionLost: return
        time.sleep(0.01)
    raise AssertionError("a loop of calls that do not wait would never end")
"""


@pytest.mark.parametrize("kind", ["Queue()", "Queue(4)", "SimpleQueue()", "JoinableQueue()"])
def test_what_waits_in_a_queue_arrives_or_is_told_and_the_queue_says_how_to_go_on(private, python, kind):
    python(QUEUES + f"""
old = mp.{kind}
handed = mp.empty(300000)
old.put(1)
assert old.get() == 1
for item in ("first", numpy.ones(300000), "last"): old.put(item)
kill()
assert old.get() == "first"
lost(old.get, "the item is lost")
assert old.get() == "last"
old.put("small")
assert old.get() == "small"
for _ in range(2):
    lost(lambda: old.put(numpy.ones(300000)))
    lost(old.get)
    lost(lambda: old.put(handed))
    new = mp.{kind}  # from here on there is another broker
    for array in numpy.ones(300000), handed[:]:
        new.put(array)
        assert new.get().shape == (300000,)
if hasattr(old, "join"): lost(old.join)
until_lost(lambda: old.empty())
if hasattr(old, "get_nowait"):
    until_lost(old.get_nowait)
    until_lost(old.qsize)
    until_lost(old.full)
old.close()
""")


def test_a_look_whether_the_broker_is_there_leaves_the_events_of_a_users_watch(private, python):
    python(QUEUES + """
session = mp.find(mp.empty(10)).session
session.watch(name="mine")
waiting = mp.Queue()
region = session.create(10, name="mine")
for _ in range(3):
    try: waiting.get_nowait()
    except queue.Empty: waiting._channel._next_check = 0.0
assert session.next_event(timeout=5).kind == "name_appeared"
kill()
until_lost(waiting.get_nowait)
""")


def test_a_wait_for_a_queue_works_in_a_process_with_many_descriptors(private, python):
    python(QUEUES + """
import resource
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 2048), hard))
kept = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
many = mp.Queue()
assert not many._reader.poll(0.01)
many.put(1)
assert many._reader.poll(30) and many.get() == 1
""")


def test_a_full_queue_tells_a_producer_that_does_not_wait(private, python):
    python(QUEUES + """
full = mp.Queue(1)
full.put(1)
try: full.put(2, timeout=0.01)
except queue.Full: pass
kill()
until_lost(lambda: full.put_nowait(2))
assert full.get() == 1
""")


def test_items_that_found_no_room_are_counted_at_the_end_of_their_process(private, python):
    out = python(QUEUES + """
many = mp.Queue()
for number in range(1000): many.put(number)
kill()
""")
    assert "744 items that this process has put into a queue are lost" in out
    out = python(QUEUES + """
many = mp.Queue()
for number in range(1000): many.put(number)
kill()
until_lost(lambda: many.put(1))
""")
    assert out == "", "the program was told already"


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_child_from_before_makes_new_queues_and_an_old_queue_is_no_argument_of_a_new_child(private, tmp_path, method):
    program = tmp_path / "program.py"
    program.write_text(QUEUES + f"""
def work(end, old):
    end.send("started")
    end.recv()
    lost(lambda: old.put(numpy.ones(300000)))
    new = mp.Queue()
    new.put(numpy.ones(300000))
    end.send(new.get().sum())
    end.send(numpy.ones(300000))
    end.recv()
if __name__ == "__main__":
    ctx = mp.get_context("{method}")
    old = ctx.Queue()
    one, other = ctx.Pipe()
    child = ctx.Process(target=work, args=(other, old))
    child.start()
    assert one.recv() == "started"
    kill()
    one.send("go on")
    assert one.recv() == one.recv().sum() == 300000
    one.send(None)
    child.join()
    assert child.exitcode == 0
    lost(ctx.Process(target=work, args=(other, old)).start)
""")
    subprocess.run([sys.executable, program], timeout=60, check=True)


def test_what_waits_in_a_pipe_is_told_and_the_pipe_goes_on(private, python):
    python(QUEUES + """
one, other = mp.Pipe()
for _ in range(2): one.send(numpy.ones(300000))
handed = mp.empty(300000)
kill()
lost(other.recv, "")
new = mp.Queue()
lost(other.recv, "")
one.send(numpy.ones(300000))
assert other.recv().sum() == 300000
one.send(handed)
assert other.recv().shape == (300000,)
one.send(numpy.ones(300000))
kill()
other.close()
one.close()
try: shmbroker.status()
except shmbroker.NoBroker: pass
else: raise AssertionError("a broker was started to take a ticket back")
""")


def test_a_pool_without_a_broker_closes_and_joins(mortal, python):
    python(WAITS + """
import shmbroker
from shmbroker import mp
pool = mp.get_context("fork").Pool(2)
assert pool.map(abs, range(4)) == [0, 1, 2, 3]
kill()
def until_told():  # a busy pool goes on in its shared memory, until it waits
    while pool.map(abs, range(4)): time.sleep(2)
wait("map", until_told)
all_end()
assert isinstance(told["map"], shmbroker.SessionLost), told
pool.close()
wait("close", pool.join)
all_end()
assert told["close"] is None, told
""")


def test_workers_of_a_pool_without_a_broker_leave_the_tasks_that_nobody_waits_for(private, python):
    python(QUEUES + """
ctx = mp.get_context("fork")
begun = ctx.Value("i")
def slow(number):
    with begun.get_lock(): begun.value += 1
    time.sleep(0.2)
pool = ctx.Pool(2)
outcome = pool.map_async(slow, range(200), chunksize=1)
while begun.value < 2: time.sleep(0.01)
workers = list(pool._pool)
for child in workers: os.kill(child.pid, signal.SIGSTOP)
kill()
lost(outcome.get, "new pool")
for child in workers: os.kill(child.pid, signal.SIGCONT)
pool.close()
pool.join()
assert begun.value < 100, begun.value
""")


def test_programs_that_were_in_the_middle_end_and_a_new_broker_serves_new_ones(mortal, python):
    before = mortal.process.pid
    os.kill(before, signal.SIGKILL)
    mortal.process.wait()
    mortal.start()
    python("""
import shmbroker
from shmbroker import mp
session = shmbroker.connect()
assert bytes(session.create(3, name="again")) == bytes(3)
queue = mp.Queue()
queue.put("item")
assert queue.get() == "item"
""")
    assert mortal.process.pid != before


def test_a_child_that_starts_after_the_broker_has_gone_uses_the_next_one(mortal, tmp_path):
    program = tmp_path / "program.py"
    program.write_text("""
import numpy
from shmbroker import mp
def send(end):
    end.send(numpy.ones(100000))
if __name__ == "__main__":
    ctx = mp.get_context("spawn")
    queue = ctx.Queue()
    queue.put(1)
    print("kill", flush=True)
    input()
    one, other = ctx.Pipe()
    child = ctx.Process(target=send, args=(other,))
    child.start()
    print(one.recv().sum())
    child.join()
""")
    running = subprocess.Popen([sys.executable, program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert running.stdout.readline() == "kill\n"
    mortal.kill()
    mortal.start()
    assert running.communicate("go on\n", timeout=60)[0] == "100000.0\n"


def test_a_child_of_an_older_fork_server_finds_the_broker_of_its_parent(mortal, broker, tmp_path):
    program = tmp_path / "program.py"
    program.write_text("""
import os, sys
from shmbroker import mp
def where(end):
    from shmbroker.mp import place
    end.send(place.home()[1][0])
if __name__ == "__main__":
    ctx = mp.get_context("forkserver")
    first = ctx.Process()
    first.start()
    first.join()
    os.environ["SHMBROKER_SOCKET"] = sys.argv[1]
    one, other = ctx.Pipe()
    child = ctx.Process(target=where, args=(other,))
    child.start()
    print(one.recv())
    child.join()
""")
    done = subprocess.run([sys.executable, program, mortal.socket], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "SHMBROKER_SOCKET": broker.socket}, check=True)
    assert done.stdout == mortal.socket + "\n"


def test_memory_to_hand_over_comes_from_the_next_broker(mortal, broker, python):
    assert python("""
import os, signal, sys, shmbroker
from shmbroker import mp
mp.empty(1000)
os.kill(int(os.environ["BROKER_PID"]), signal.SIGKILL)
os.environ["SHMBROKER_SOCKET"] = sys.argv[1]
array = mp.empty(1000)
array[-1] = 7
assert shmbroker.mp.find(array).session.info().socket == sys.argv[1]
queue = mp.Queue()
queue.put(array)
print(queue.get()[-1])
""", broker.socket, SHMBROKER_SOCKET=mortal.socket) == "7.0\n"


def test_ranks_and_their_parent_are_told(mortal, python):
    out = python(WAITS + """
import shmbroker
def work(rank):
    queue = shmbroker.connect(group="").queue("q", kind="mpmc")
    shmbroker.ranks.barrier()
    if rank == 0: kill()
    queue.receive(None)
try: shmbroker.spawn(work, nprocs=2, start_method="fork")
except shmbroker.ProcessException as error: print(error.failure.type, error.failure.text)
""")
    assert "SessionLost" in out
