# SPDX-License-Identifier: Apache-2.0
"""Functions for the ranks of test_spawn_*.py, in a module that ranks can import."""
import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import time

import shmbroker
from shmbroker import ranks


def nothing(rank):
    pass


def number(rank, factor=1):
    return rank * factor


def put_rank(rank, queue):
    queue.put(rank)


def send_rank(rank, connection):
    connection.send(rank)


def count_with_lock(rank, lock, value):
    for _ in range(100):
        with lock:
            value.value += 1


def raise_in(rank, which, wait=60.0):
    if rank in which:
        raise ValueError(f"legitimate exception from process {rank}")
    time.sleep(wait)


def raise_after(rank, delays):
    """Rank i raises after delays[i] seconds; at once where it is 0; None: it returns."""
    if delays[rank] is None:
        return
    ranks.barrier()
    time.sleep(delays[rank])
    raise ValueError(f"legitimate exception from process {rank}")


def raise_behind(rank, path):
    """Rank 1 raises, and rank 0 does 5 ms after the end of that process."""
    if rank == 1:
        with open(path + ".new", "w") as file:
            file.write(str(os.getpid()))
        os.replace(path + ".new", path)
        raise ValueError("the first")
    while not os.path.exists(path):
        time.sleep(0.001)
    with open(path) as file:
        before = file.read()
    while os.path.exists(f"/proc/{before}/fd/0"):  # not of a zombie
        time.sleep(0.001)
    time.sleep(0.005)
    raise ValueError("the second")


def raise_late(rank):
    if rank == 1:
        time.sleep(0.1)
        raise ValueError("legitimate exception from process 1")


def raise_long(rank, size):
    raise ValueError("x" * size + " end")


def die_of(rank, number, wait=60.0):
    if rank == 0:
        os.kill(os.getpid(), number)
    time.sleep(wait)


def exit_with(rank, code, wait=60.0):
    if rank == 0:
        os._exit(code)
    time.sleep(wait)


def exit_at(rank, path):
    """Both wait for the file. Rank 0 then exits, and the other returns a little later."""
    while not os.path.exists(path):
        time.sleep(0.01)
    if rank == 0:
        os._exit(123)
    time.sleep(0.3)


def leave_with(rank, code, wait=60.0):
    if rank == 0:
        sys.exit(code)
    time.sleep(wait)


def wait_for_ever(rank, pids=None):
    if pids is not None:
        with open(f"{pids}.{rank}", "w") as file:
            file.write(str(os.getpid()))
        os.replace(f"{pids}.{rank}", f"{pids}.{rank}.ready")
    time.sleep(600)


def ignore_term(rank):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ranks.barrier()
    if rank == 0:
        raise ValueError("the first")
    time.sleep(600)


def ignore_interrupt(rank, pids):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    wait_for_ever(rank, pids)


def busy(rank, pids):
    """In native code, which answers no signal of Python's."""
    with open(f"{pids}.{rank}", "w") as file:
        file.write(str(os.getpid()))
    os.replace(f"{pids}.{rank}", f"{pids}.{rank}.ready")
    ctypes.PyDLL(None).sleep(600)


def interrupt_self(rank):
    if rank == 0:
        raise KeyboardInterrupt
    time.sleep(60)


def grandchildren(rank, pids):
    """Two processes of this rank that would sleep, one of them in a session of its own, then a death by SIGTERM."""
    found = []
    for daemonised in (False, True):
        pid = os.fork()
        if pid == 0:
            if daemonised:
                os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(600)
            os._exit(0)
        found.append(pid)
    with open(pids, "w") as file:
        file.write(" ".join(map(str, found)))
    time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGTERM)


def nested(rank):
    return shmbroker.spawn(number, (3,), 2, join=False, start_method="fork").join()


def nested_with_failure(rank):
    shmbroker.spawn(raise_in, ((1,),), 2, start_method="fork")


class Stubborn(Exception):
    """Can be neither made again nor printed."""

    def __init__(self, one, two):
        super().__init__(one)

    def __str__(self):
        raise RuntimeError("no text")


def raise_stubborn(rank):
    raise Stubborn(1, 2)


def raise_chain(rank):
    try:
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise OSError(5, "middle") from error
    except OSError:
        raise RuntimeError("outer")


def raise_odd_text(rank):
    raise ValueError("a NUL \0, half a pair \udc80, and \N{SNOWMAN}")


class OnlyHere:
    """A class whose unpickling fails where `broken` is set in the environment."""

    def __reduce__(self):
        return rebuild_only_where, (os.getpid(),)


def rebuild_only_where(pid):
    if os.getpid() != pid:
        raise AttributeError("this class is not on this side")
    return OnlyHere()


def give_back(rank, value=None):
    return value


def give_only_here(rank):
    return OnlyHere()


def give_lambda(rank):
    return lambda: None


def give_bytes(rank, size):
    return b"x" * size


def facts(rank):
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "OWN")
    return {name: os.environ.get(name) for name in names}, int(os.environ["MASTER_PORT"]), ranks.rank(), \
        ranks.world_size(), sorted(name for name in os.environ if name.startswith("SHMBROKER_RANK"))


def meet(rank):
    ranks.barrier()
    gathered = ranks.all_gather({"rank": rank})
    told = ranks.broadcast([rank, "value"], root=1)
    total = ranks.store.add("sum", rank + 1)
    ranks.barrier("added")
    if rank == 0:
        ranks.store.set("key", b"value")
    seen = ranks.store.wait("key")
    leader = ranks.store.compare_exchange("leader", b"", str(rank).encode())
    ranks.barrier()
    gone = ranks.store.delete("key") if rank == 0 else None
    return gathered, told, total, ranks.store.add("sum", 0), seen, leader, gone


def meet_a_dead_one(rank):
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    ranks.barrier()


def wait_too_short(rank):
    if rank == 0:
        try:
            ranks.barrier("never", timeout=0.05)
        except TimeoutError as error:
            return type(error).__name__
        finally:
            ranks.barrier("end")
    ranks.barrier("end")


def write_region(rank, region):
    memoryview(region)[rank] = rank + 1


def read_region(rank, region):
    return memoryview(region).readonly, bytes(region[:4] if hasattr(region, "__getitem__") else memoryview(region)[:4])


def make_region(rank):
    region = shmbroker.connect().create(4096)
    memoryview(region)[:3] = bytes([rank, 7, 8])
    return {"region": region}


def share_regions(rank):
    region = shmbroker.connect().create(4096)
    memoryview(region)[0] = rank + 10
    return [memoryview(one)[0] for one in ranks.all_gather(region)]


def exit_functions(rank, path):
    import atexit
    atexit.register(lambda: open(f"{path}.{rank}.atexit", "w").close())
    thread = threading.Thread(target=lambda: (time.sleep(0.1), open(f"{path}.{rank}.thread", "w").close()))
    thread.start()


def print_lines(rank):
    print(f"out of {rank}")
    print(f"err of {rank}", file=sys.stderr)


def describe(rank, queue):
    parent = multiprocessing.parent_process()
    here = multiprocessing.current_process()
    queue.put((rank, {name: value for name, value in os.environ.items() if not name.startswith("SHMBROKER_")},
               parent.pid, parent.is_alive(), here.name, here._identity))


def interrupted(rank, what):
    """A SIGINT in a wait for a rank that does not come."""
    if rank == 1:
        while True:
            time.sleep(0.1)
            try:
                if ranks.store.get("told"):
                    return None
            except shmbroker.NotFound:
                pass
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main = threading.main_thread().ident
    threading.Timer(0.3, lambda: signal.pthread_kill(main, signal.SIGINT)).start()
    waits = {"barrier": lambda: ranks.barrier("one"), "broadcast": lambda: ranks.broadcast(root=1),
             "all_gather": lambda: ranks.all_gather(1), "store": lambda: ranks.store.wait("key")}
    try:
        waits[what]()
        return "came back"
    except KeyboardInterrupt:
        return "interrupted"
    finally:
        ranks.store.set("told", b"1")


def add_one_to_arrays(rank, tasks, results):
    results.put(tasks.get() + 1)


def fail_of(rank, which):
    if rank == which:
        raise ValueError("before it has opened the queue")
    time.sleep(60)


def wait_for(rank, seconds):
    time.sleep(seconds)
