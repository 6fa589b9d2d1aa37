# SPDX-License-Identifier: Apache-2.0
"""Cases that need a writable tree of cgroups of version 2, or pages that a whole host reserves."""
import os
import signal
import subprocess
import time
from pathlib import Path

from support import bad, case, good, has, run, settles

TREE = Path("/sys/fs/cgroup")
RESERVE = Path("/proc/sys/vm/nr_hugepages")
PAGE = 2 << 20
NOBODY = 65534
BROKER = "/usr/libexec/shmbroker/shmbrokerd"


class OwnBroker:
    """A private broker of root, for one case, with the variables that lead to it."""

    def __enter__(self):
        self.folder = Path("/run/limits")
        self.path = str(self.folder / "socket")
        ready, told = os.pipe()
        self.process = subprocess.Popen([BROKER, "--private", "--directory", self.folder, "--ready-fd", str(told)],
                                        pass_fds=[told])
        os.close(told)
        assert os.read(ready, 1) == b"\n"
        os.close(ready)
        self.environment = {**os.environ, "SHMBROKER_SOCKET": self.path}
        return self

    def __exit__(self, *failure):
        self.process.terminate()
        assert self.process.wait(60) == 0

    def start(self, *words):
        """`shmbroker run` in the background."""
        return subprocess.Popen(["shmbroker", "run", *words], env=self.environment, cwd="/")


def cgroup_of(pid):
    return TREE / Path(f"/proc/{pid}/cgroup").read_text().strip().partition("::/")[2]


def processes(*words):
    """Live ones with exactly this command line."""
    wanted, found = "".join(word + "\0" for word in words).encode(), []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cmdline").read_bytes() == wanted:
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def meminfo(key):
    return int(next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith(key)).split()[1])


@case
def a_job_has_a_cgroup_below_the_callers_which_goes_with_it():
    with OwnBroker() as broker:
        job = broker.start("--name", "job", "--", "sh", "-c", "setsid sleep 4711 & exec sleep 4711")
        first, second = settles(lambda: len(found := processes("sleep", "4711")) == 2 and found, "two processes")
        folder = cgroup_of(first)
        assert folder == cgroup_of(second) and folder.name.startswith(f"shmbroker-{job.pid}-"), folder
        assert folder.parent == cgroup_of(job.pid) == cgroup_of(os.getpid())
        has((folder / "cgroup.events").read_text(), "populated 1")
        job.send_signal(signal.SIGTERM)
        assert job.wait(60) == 128 + signal.SIGTERM
        assert not folder.exists() and not processes("sleep", "4711")


@case
def a_tree_that_forks_all_the_time_ends_with_its_job():
    # Each process forks one and ends, so a look at /proc is always late.
    runner = ("python3", "-c", "import os, time\nwhile True:\n    if os.fork():\n        os._exit(0)\n    time.sleep(0.001)\n")
    with OwnBroker() as broker:
        job = broker.start("--name", "bomb", "--kill-rest=0s", "--", *runner)
        assert job.wait(60) == 0  # that of the first one
        assert not list(cgroup_of(os.getpid()).glob(f"shmbroker-{job.pid}-*"))
        time.sleep(0.2)
        assert not processes(*runner)


def cgroup_path(pid, job):
    try:
        folder = cgroup_of(pid)
    except OSError:
        return None
    return folder if folder.name.startswith(f"shmbroker-{job}-") else None


@case
def what_is_put_into_the_cgroup_of_a_job_ends_with_it_and_holds_its_group():
    with OwnBroker() as broker:
        job = broker.start("--name", "job", "--", "sleep", "1415")
        rank = settles(lambda: processes("sleep", "1415"), "the command")[0]
        folder = settles(lambda: cgroup_path(rank, job.pid), "its cgroup")
        outsider = subprocess.Popen(["sleep", "1617"])
        (folder / "cgroup.procs").write_text(str(outsider.pid))
        os.kill(rank, signal.SIGKILL)
        time.sleep(1)
        assert job.poll() is None, "the job ended before a process in its cgroup did"
        has(good("shmbroker", "list", "--groups", "--socket", broker.path), "job")
        job.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        job.send_signal(signal.SIGTERM)
        job.wait(60)
        assert outsider.wait(60) == -signal.SIGKILL
        assert not folder.exists()
        settles(lambda: "job" not in good("shmbroker", "list", "--groups", "--socket", broker.path), "the group ends")


@case
def both_supervisors_killed_leave_a_cgroup_that_one_word_ends_and_the_next_job_removes():
    with OwnBroker() as broker:
        job = broker.start("--name", "job", "--", "sh", "-c", "setsid sleep 1819 & exec sleep 1819")
        rank = settles(lambda: len(found := processes("sleep", "1819")) == 2 and found, "two processes")[0]
        folder = settles(lambda: cgroup_path(rank, job.pid), "their cgroup")
        supervisor = int(Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()[0])
        for pid in (supervisor, job.pid):
            os.kill(pid, signal.SIGSTOP)
        for pid in (supervisor, job.pid):
            os.kill(pid, signal.SIGKILL)
        job.wait(60)
        (folder / "cgroup.kill").write_text("1")
        settles(lambda: "populated 0" in (folder / "cgroup.events").read_text(), "nothing is left")
        assert broker.start("--", "true").wait(60) == 0 and not folder.exists()


@case
def below_a_unit_that_is_not_delegated_a_job_makes_no_cgroup():
    unit, shown = Path("/run/systemd/system/job.service"), Path("/run/job.shown")
    with OwnBroker() as broker:
        for delegate in ("no", "yes"):
            unit.write_text(f"[Service]\nType=oneshot\nDelegate={delegate}\nEnvironment=SHMBROKER_SOCKET={broker.path}\n"
                            f"StandardOutput=truncate:{shown}\nExecStart=shmbroker run -- cat /proc/self/cgroup\n")
            good("systemctl", "daemon-reload")
            good("systemctl", "start", "job.service")
            assert ("/shmbroker-" in shown.read_text()) == (delegate == "yes"), (delegate, shown.read_text())
    unit.unlink()
    good("systemctl", "daemon-reload")


@case
def a_user_without_a_tree_of_its_own_runs_its_job_as_ever():
    environment = {**os.environ, "XDG_RUNTIME_DIR": "/tmp/nobody", "HOME": "/tmp", "SHMBROKER_DAEMON": BROKER}
    Path("/tmp/nobody").mkdir(mode=0o700)
    os.chown("/tmp/nobody", NOBODY, NOBODY)
    shown = good("shmbroker", "run", "--", "cat", "/proc/self/cgroup", user=NOBODY, env=environment)
    assert "shmbroker-" not in shown.replace("shmbroker.service", ""), shown


@case
def a_broker_with_32_mib_promises_100_gib_and_grows_by_its_books_alone():
    told = good("python3", "/test/exhaustion.py", BROKER, "/usr/bin/shmbroker", "memory")
    has(told, "memory: 1,000 regions of 100 MiB", "none killed")
    print(told)


@case
def hugetlb_regions_take_the_hosts_reserve_and_give_it_back():
    RESERVE.write_text("16")
    free = meminfo("HugePages_Free:")
    assert free == 16, f"{free} of 16 pages could be reserved"
    data = os.urandom(3 << 20)
    Path("/tmp/large").write_bytes(data)
    with OwnBroker() as broker:
        good("shmbroker", "put", "/tmp/large", "--name", "large", "--hugetlb", "--numa", "0", env=broker.environment)
        assert meminfo("HugePages_Free:") == free - 2
        has(good("shmbroker", "inspect", "large", env=broker.environment), "pages 2M")
        digest = subprocess.run(["shmbroker", "cat", "large"], env=broker.environment, capture_output=True, check=True)
        assert digest.stdout == data
        refused = bad("shmbroker", "put", "/tmp/large", "--name", "other", "--numa", "1", env=broker.environment)
        has(refused, "NUMA node 1")
        RESERVE.write_text("3")
        refused = bad("shmbroker", "put", "/tmp/large", "--name", "more", "--hugetlb", env=broker.environment)
        has(refused, "vm.nr_hugepages", "4.0 MiB")
        good("shmbroker", "release", "large", env=broker.environment)
        settles(lambda: meminfo("HugePages_Free:") == meminfo("HugePages_Total:"), "the pages are back")
    RESERVE.write_text("0")


@case
def the_python_package_makes_hugetlb_regions_that_others_read():
    RESERVE.write_text("8")
    program = ("import shmbroker\n"
               "s = shmbroker.connect()\n"
               "r = s.create(5 << 20, name='kv', hugetlb=True, numa=0)\n"
               "memoryview(r)[-5:] = b'hello'\n"
               "assert r.info().pages == 'huge', r.info()\n"
               "r.publish()\n"
               "assert bytes(memoryview(s.attach('kv'))[-5:]) == b'hello'\n")
    with OwnBroker() as broker:
        good("python3", "-c", program, env=broker.environment)
    settles(lambda: meminfo("HugePages_Free:") == 8, "the pages are back")
    RESERVE.write_text("0")
