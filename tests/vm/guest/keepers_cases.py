# SPDX-License-Identifier: Apache-2.0
"""Keepers under systemd: the unit of docs/operations.md, A broker that is replaced at once. The cases kill each process
of the service by itself, by hand and by the kernel for its memory."""
import os
import signal
import subprocess
import time
from pathlib import Path

from support import (CONFIG, NOBODY, SERVICE, SOCKET, DropIn, at, case, cursor, good, has, journal, main_pid, run, serves,
                     settles, shown, state, status)

FOLDER = Path("/sys/fs/cgroup/system.slice") / SERVICE
LINES = "ExitType=cgroup\nOOMPolicy=continue\nNotifyAccess=all\n"
BYTES = os.urandom(1 << 20)
# Takes memory, step by step, until the broker is gone. The kernel may not choose this process.
HOG = """
import os, sys
folder, victim = sys.argv[1], sys.argv[2]
open("/proc/self/oom_score_adj", "w").write("-1000")
open(folder + "/cgroup.procs", "w").write(str(os.getpid()))
held = []
try:
    while open("/proc/" + victim + "/stat").read().rpartition(")")[2].split()[0] not in "ZX":
        held.append(b"x" * (64 << 10))
except OSError:
    pass
"""


def processes():
    """The names of the processes of the service, by pid."""
    try:
        pids = (FOLDER / "cgroup.procs").read_text().split()
        return {int(pid): Path(f"/proc/{pid}/comm").read_text().strip() for pid in pids}
    except OSError:  # one has ended meanwhile
        return {}


def whole():
    """The broker beside two keepers; 0: there are not just these three."""
    found = processes()
    if sorted(found.values()) != ["shmb-keeper", "shmb-keeper", "shmbrokerd"]:
        return 0
    return next(pid for pid, name in found.items() if name == "shmbrokerd")


def next_broker(*gone):
    return settles(lambda: (now := whole()) not in (0, *gone) and now, "two keepers and a new broker")


def kept_is_there():
    told = subprocess.run(at("cat") + ("kept",), user=NOBODY, group=NOBODY, extra_groups=[], stdout=subprocess.PIPE)
    return told.returncode == 0 and told.stdout == BYTES


def put_kept():
    Path("/tmp/kept").write_bytes(BYTES)
    good(*at("put"), "/tmp/kept", "--name", "kept", "--keep", "1h", user=NOBODY)


def begin():
    """A service that has just started, with a kept region in it."""
    CONFIG.write_text("keep = true\n")
    run("systemctl", "stop", SOCKET, SERVICE)
    run("systemctl", "reset-failed", SOCKET, SERVICE)
    good("systemctl", "start", SOCKET)
    serves()
    put_kept()
    return next_broker()


def kill_for_memory(broker):
    """The kernel kills the broker, because its cgroup has no memory left."""
    Path(f"/proc/{broker}/oom_score_adj").write_text("1000")
    good("systemctl", "set-property", "--runtime", SERVICE, "MemoryMax=48M")
    hog = subprocess.Popen(["python3", "-c", HOG, str(FOLDER), str(broker)])
    settles(lambda: broker not in processes(), "the broker is killed")
    hog.wait(60)
    good("systemctl", "set-property", "--runtime", SERVICE, "MemoryMax=infinity")


@case
def the_service_with_keepers_starts_with_its_first_client():
    good("systemd-sysusers")
    good("systemd-tmpfiles", "--create")
    good("systemctl", "daemon-reload")
    with DropIn(SERVICE, "[Service]\n" + LINES):
        begin()
        assert state(SERVICE) == "active" and shown(SERVICE, "NRestarts") == "0"
        has(shown(SERVICE, "StatusText"), "serving /run/shmbroker in system mode")
        assert processes()[main_pid()] == "shmb-keeper", processes()
        assert kept_is_there()


@case
def a_killed_broker_is_replaced_with_what_was_kept_and_systemd_starts_nothing():
    with DropIn(SERVICE, "[Service]\n" + LINES):
        broker, keeper, since = begin(), main_pid(), cursor()
        for _ in range(3):
            os.kill(broker, signal.SIGKILL)
            broker = next_broker(broker)
            assert kept_is_there()
        serves()
        assert state(SERVICE) == "active" and main_pid() == keeper and shown(SERVICE, "NRestarts") == "0"
        has(journal(since), "the last broker was killed by signal 9 (Killed): this one takes its place")


@case
def a_reload_reaches_the_broker_behind_its_keepers():
    with DropIn(SERVICE, "[Service]\n" + LINES):
        broker = begin()
        CONFIG.write_text("keep = true\n[limits]\nuid_regions = 3\n")
        good("systemctl", "reload", SERVICE)
        settles(lambda: "limits applied again" in shown(SERVICE, "StatusText"), "the status after the reload")
        assert next_broker() == broker and kept_is_there()


@case
def a_killed_keeper_is_replaced_and_the_main_one_has_a_successor():
    with DropIn(SERVICE, "[Service]\n" + LINES):
        broker, main = begin(), main_pid()
        second = next(pid for pid, name in processes().items() if name == "shmb-keeper" and pid != main)
        os.kill(second, signal.SIGKILL)
        assert next_broker() == broker and second not in processes()
        assert main_pid() == main
        os.kill(main, signal.SIGKILL)
        settles(lambda: whole() == broker and main not in processes(), "a new main keeper")
        settles(lambda: processes().get(main_pid()) == "shmb-keeper", "systemd knows it")
        time.sleep(2)
        assert state(SERVICE) == "active" and whole() == broker and shown(SERVICE, "NRestarts") == "0"
        assert kept_is_there()
        # docs/operations.md says what becomes of the broker itself here.
        run("systemctl", "reload", SERVICE)
        time.sleep(2)
        print("after a reload:", state(SERVICE), whole() == broker, shown(SERVICE, "NRestarts"), kept_is_there())
        serves()


@case
def without_a_group_kill_the_broker_alone_dies_for_memory_and_is_replaced():
    with DropIn(SERVICE, "[Service]\n" + LINES):
        broker, keeper = begin(), main_pid()
        assert (FOLDER / "memory.oom.group").read_text().strip() == "0"
        kill_for_memory(broker)
        next_broker(broker)
        assert state(SERVICE) == "active" and main_pid() == keeper and shown(SERVICE, "NRestarts") == "0"
        assert kept_is_there()
        told = (FOLDER / "memory.events").read_text()
        has(told, "oom_group_kill 0")
        assert "oom_kill 0" not in told, told


@case
def with_a_group_kill_all_three_die_for_memory_and_systemd_starts_them_again():
    with DropIn(SERVICE, "[Service]\n" + LINES.replace("OOMPolicy=continue", "OOMPolicy=kill")):
        broker, keeper = begin(), main_pid()
        assert (FOLDER / "memory.oom.group").read_text().strip() == "1"
        kill_for_memory(broker)
        settles(lambda: state(SERVICE) == "active" and whole() and keeper not in processes(), "three new processes")
        assert int(shown(SERVICE, "NRestarts")) >= 1
        serves()
        assert not kept_is_there(), "a region was kept by nobody"


@case
def a_stopped_service_leaves_no_process_and_comes_back_with_the_next_client():
    with DropIn(SERVICE, "[Service]\n" + LINES):
        begin()
        good("systemctl", "stop", SERVICE)
        assert state(SERVICE) == "inactive" and state(SOCKET) == "active" and not processes()
        left = [entry for entry in Path("/proc").iterdir() if entry.name.isdigit() and (entry / "comm").exists()
                and (entry / "comm").read_text().strip() in ("shmb-keeper", "shmbrokerd")]
        assert not left, left
        has(journal(), "stopped by a signal")
        serves()
        next_broker()
        assert status(user=NOBODY)["mode"] == "system"
    good("systemctl", "stop", SOCKET, SERVICE)
    assert sorted(os.listdir("/run/shmbroker")) in ([], ["broker.lock"])
