#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Real programs leave shared memory behind: each is killed with SIGKILL, all of its processes at once, and leaks must
find what it left with the right verdict, gc must free it. While the program lives, gc must leave all of it alone.

Python and joblib are tested always. SHMB_REAL_LEAKS=all adds what needs heavy packages: PyTorch, PostgreSQL, an Open MPI
program, stress-ng, Chromium. It installs nothing. A case whose program is missing is skipped and names Debian's package.
Usage: real_leaks_test.py TOOL SCHEMAS
"""
import ctypes
import glob
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import inside
from inside import HERE, SEGMENTS, SHM, Skip, case, tool, tool_json, until

LIBC = ctypes.CDLL(None, use_errno=True)
PYTHON = "/usr/bin/python3"  # Debian's, to which Debian's packages belong
PR_SET_CHILD_SUBREAPER = 36
NOBODY = 65534
ALL = os.environ.get("SHMB_REAL_LEAKS") == "all"
OLD = ["--stale-after", "0"]


def in_long_run(function):
    return case(function) if ALL else function


def descendants():
    """{pid: state} of this process's; what daemonised belongs to it too, for it is their subreaper."""
    parents, states = {}, {}
    for stat in glob.glob("/proc/[0-9]*/stat"):
        try:
            fields = Path(stat).read_bytes().rsplit(b")", 1)[1].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        pid = int(stat.split("/")[2])
        parents[pid], states[pid] = int(fields[1]), fields[0].decode()
    own = {os.getpid()}
    while True:
        more = {pid for pid, parent in parents.items() if parent in own} - own
        if not more:
            return {pid: states[pid] for pid in own - {os.getpid()}}
        own |= more


def kill_all():
    """All at once: a helper that outlives its program for a moment, such as Python's resource_tracker, would clean up.
    So all are stopped before the first is killed."""
    def all_stopped():
        living = {pid: state for pid, state in descendants().items() if state not in "ZX"}
        for pid, state in living.items():
            if state not in "Tt":
                os.kill(pid, signal.SIGSTOP)
        return all(state in "Tt" for state in living.values())

    def none_left():
        try:
            while os.waitpid(-1, os.WNOHANG)[0] != 0:
                pass
        except ChildProcessError:
            return True
        return False

    until(all_stopped)
    for pid in descendants():
        os.kill(pid, signal.SIGKILL)
    until(none_left)


class Program:
    """A program with all that it starts; killed when the block ends, if not before."""

    def __init__(self, *words, says=None, user=None, env=None, folder=None):
        self.words, self.says, self.env, self.folder = words, says, env, folder
        self.rights = {} if user is None else {"user": user, "group": user, "extra_groups": []}

    def __enter__(self):
        LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1)
        self.out = tempfile.TemporaryFile()
        self.process = subprocess.Popen(self.words, stdin=subprocess.DEVNULL, stdout=self.out, stderr=subprocess.STDOUT,
                                        env={**os.environ, **(self.env or {})}, cwd=self.folder, **self.rights)
        if self.says is not None:
            self.wait_until(lambda: self.says in self.text())
        return self

    def text(self):
        return os.pread(self.out.fileno(), 1 << 20, 0).decode(errors="replace")

    def wait_until(self, happens):
        def done():
            # The process may leave daemons behind and end: that is no failure.
            assert self.process.poll() in (None, 0), f"it ended with {self.process.returncode}: {self.text()}"
            return happens()
        until(done, 120)

    def __exit__(self, *_):
        kill_all()
        self.process.poll()
        self.out.close()


def needs(package, *programs):
    for program in programs:
        if shutil.which(program) is None and not os.path.exists(program):
            raise Skip(f"{program} is missing: Debian's {package}")


def needs_module(package, *modules):
    words = [PYTHON, "-c", "import " + ", ".join(modules)]
    if not os.path.exists(PYTHON) or subprocess.run(words, capture_output=True, check=False).returncode != 0:
        raise Skip(f"{', '.join(modules)} of {PYTHON} is missing: Debian's {package}")


def objects(*place):
    return tool_json("list", "--all", *place)[1]["objects"]


def left_alone_while_it_lives(*place):
    """Gives the ids of what the living program has; gc may take none of it."""
    before = {it["id"] for it in objects(*place)}
    ended = tool("gc", "--yes", "--stale", *OLD, *place)
    assert ended.returncode in (0, 7), ended
    for it in objects(*place):
        assert it["verdict"] == "held", it
    assert before <= {it["id"] for it in objects(*place)}, before
    return before


def found(*place):
    return tool_json("leaks", *OLD, *place)[1]["objects"]


def freed(*place):
    ended = tool("gc", "--yes", "--stale", *OLD, *place)
    assert ended.returncode in (0, 7), ended
    left = objects(*place)
    assert not left, left


def expect(kind, verdict, made_by, *place):
    """All of this kind that was left has this verdict and this program; gives their names."""
    those = [it for it in found(*place) if it["kind"] == kind]
    assert those, (kind, found(*place))
    for it in those:
        assert (it["verdict"], it["made_by"]) == (verdict, made_by), it
    return [it["name"] for it in those]


def show(what, names):
    print(f"  {what} left {len(names)}: {', '.join(sorted(names)[:4])}{', ...' if len(names) > 4 else ''}")


def run_python(text, *words):
    return Program(PYTHON, "-c", text, *words, says="ready")


@case
def shared_memory_of_python_multiprocessing():
    needs("python3", PYTHON)
    with run_python("""
import time
from multiprocessing import shared_memory
own = [shared_memory.SharedMemory(create=True, size=100_000) for _ in range(3)]
for each in own:
    each.buf[:] = b'x' * len(each.buf)
print('ready', flush=True)
time.sleep(1000)
"""):
        assert len(left_alone_while_it_lives(*HERE)) == 3
        kill_all()
        names = expect("file", "stale", "Python shared_memory", *HERE)
        assert len(names) == 3, names
        show("multiprocessing.shared_memory", names)
        freed(*HERE)


@case
def locks_and_arrays_of_python_multiprocessing_leave_nothing():
    """Their names go before they are used: so nothing is lost, and nothing may be called lost while they are in use."""
    needs("python3", PYTHON)
    with run_python("""
import multiprocessing, time
lock, array = multiprocessing.Lock(), multiprocessing.Array('d', 100_000)
def hold():
    time.sleep(1000)
for _ in range(2):
    multiprocessing.get_context('fork').Process(target=hold).start()
print('ready', flush=True)
time.sleep(1000)
"""):
        assert left_alone_while_it_lives(*HERE)
        kill_all()
        assert not objects(*HERE)


@case
def semaphores_of_joblib():
    needs_module("python3-joblib", "joblib")
    with run_python("""
import time
from joblib import Parallel, delayed
Parallel(n_jobs=2)(delayed(abs)(i) for i in range(4))
print('ready', flush=True)
time.sleep(1000)
"""):
        left_alone_while_it_lives(*HERE)
        kill_all()
        names = expect("semaphore", "orphan", "joblib (loky)", *HERE)
        show("joblib", names)
        freed(*HERE)


@case
def arrays_of_joblib():
    needs_module("python3-joblib and python3-numpy", "joblib", "numpy")
    # joblib takes /dev/shm only where 2 GB are free.
    subprocess.run(["mount", "-o", "remount,size=3g", "/dev/shm"], check=True)
    with run_python("""
import time
import numpy
from joblib import Parallel, delayed
def wait(array):
    time.sleep(1000)
print('ready', flush=True)
Parallel(n_jobs=2, max_nbytes=1000)(delayed(wait)(numpy.full(100_000, i)) for i in range(2))
""") as program:
        def mapped():
            both = [it for it in objects(*HERE) if it["kind"] == "file"]
            return len(both) == 2 and all(it["holders"] for it in both)
        program.wait_until(mapped)
        left_alone_while_it_lives(*HERE)
        kill_all()
        names = expect("file", "orphan", "joblib", *HERE)
        show("joblib", names)
        freed(*HERE)
        left = [path.name for path in SHM.iterdir()]
        assert all(name.startswith("joblib_memmapping_folder_") for name in left), left  # folders are not gc's to take


@in_long_run
def tensors_of_torch_by_the_strategy_file_system():
    needs_module("python3-torch", "torch")
    with run_python("""
import time
import torch, torch.multiprocessing as mp
mp.set_sharing_strategy('file_system')
tensors = [torch.ones(100_000).share_memory_() for _ in range(4)]
def hold(queue):
    kept = [queue.get() for _ in range(4)]
    print('ready', flush=True)
    time.sleep(1000)
queue = mp.get_context('fork').Queue()
mp.get_context('fork').Process(target=hold, args=(queue,)).start()
for each in tensors:
    queue.put(each)
time.sleep(1000)
"""):
        assert len(left_alone_while_it_lives(*HERE)) >= 4
        kill_all()  # torch_shm_manager too, which cleans up otherwise
        names = expect("file", "orphan", "PyTorch", *HERE)
        assert len(names) == 4, names
        show("torch", names)
        freed(*HERE)


@in_long_run
def a_cluster_of_postgresql():
    folders = glob.glob("/usr/lib/postgresql/*/bin")
    if not folders:
        raise Skip("initdb is missing: Debian's postgresql")
    programs = Path(max(folders))
    with tempfile.TemporaryDirectory() as place:
        os.chown(place, NOBODY, NOBODY)
        data = f"{place}/data"
        subprocess.run([programs / "initdb", "-D", data, "-A", "trust", "-U", "me"], check=True, capture_output=True,
                       cwd=place, user=NOBODY, group=NOBODY, extra_groups=[])
        with Program(programs / "postgres", "-D", data, "-k", place, "-h", "", user=NOBODY, folder=place,
                     says="ready to accept connections"):
            left_alone_while_it_lives(*HERE)
            left_alone_while_it_lives(*SEGMENTS)
            kill_all()
            files = expect("file", "stale", "PostgreSQL", *HERE)
            segments = [it for it in found(*SEGMENTS)]
            assert [it["verdict"] for it in segments] == ["orphan"], segments
            show("PostgreSQL", files + [it["name"] for it in segments])
            freed(*HERE)
            freed(*SEGMENTS)


MPI_PROGRAM = """
#include <mpi.h>
#include <stdio.h>
#include <unistd.h>
int main(int argc, char** argv) {
  int rank, number = 1, sum = 0;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Win window;
  char* memory;
  MPI_Win_allocate_shared(100000, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
  MPI_Allreduce(&number, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0) printf("ready %d\\n", sum), fflush(stdout);
  sleep(1000);
}
"""


@in_long_run
def an_open_mpi_program():
    needs("openmpi-bin", "mpirun")
    needs("libopenmpi-dev", "mpicc")
    with tempfile.TemporaryDirectory() as place:
        Path(place, "program.c").write_text(MPI_PROGRAM, encoding="ascii")
        subprocess.run(["mpicc", "-o", "program", "program.c"], cwd=place, check=True)
        with Program("mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", "./program", folder=place,
                     env={"TMPDIR": place}, says="ready 2"):
            left_alone_while_it_lives(*HERE)
            kill_all()
            names = expect("file", "stale", "Open MPI", *HERE)
            show("Open MPI", names)
            freed(*HERE)


@in_long_run
def stress_ng():
    needs("stress-ng", "stress-ng")
    with tempfile.TemporaryDirectory() as place:
        with Program("stress-ng", "--shm", "2", "--shm-sysv", "2", "--sem", "2", "--memfd", "1", "--mmap", "1",
                     "--temp-path", place, folder=place) as program:
            # It makes and removes all the time: it is killed at a moment at which there is something of each.
            program.wait_until(lambda: objects(*SEGMENTS) and objects(*HERE))
            time.sleep(1)
            kill_all()
            files, segments = found(*HERE), found(*SEGMENTS)
            wrong = [it for it in files if (it["verdict"], it["made_by"]) != ("orphan", "stress-ng")]
            wrong += [it for it in segments if it["verdict"] != "orphan"]
            assert not wrong, wrong[:2]
            show("stress-ng", [it["name"] for it in files + segments])
            freed(*HERE)
            freed(*SEGMENTS)


@in_long_run
def chromium():
    """Of today it has its memory in memfds, which die with it; of old it had files on /dev/shm."""
    needs("chromium", "chromium")
    memfds = ["-f", "kind=memfd programs=chromium"]
    with tempfile.TemporaryDirectory() as place:
        with Program("chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={place}",
                     "--remote-debugging-port=0", "about:blank", says="DevTools listening") as program:
            program.wait_until(lambda: objects(*memfds) or objects(*HERE))
            left_alone_while_it_lives(*HERE)
            before = {it["id"] for it in objects(*memfds)}
            kill_all()
            left = found(*HERE)
            for it in left:
                assert (it["verdict"], it["made_by"]) == ("stale", "Chromium"), it
            print(f"  Chromium had {len(before)} memfds, and left {len(left)} files")
            assert not before & {it["id"] for it in objects("-f", "kind=memfd")}
            freed(*HERE)


sys.exit(inside.main(__file__))
