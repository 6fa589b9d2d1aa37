#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A thousand objects of every class, lost ones beside live ones, while processes open and rename what gc removes.

In each round leaks must find exactly what was planted as lost; gc must free all of it and touch nothing else; and an
opener that gets a file must get the whole file under its name. SHMB_STORM_ROUNDS rounds (default 1; the long form has
100), SHMB_STORM_SEED to repeat one. Usage: storm_test.py TOOL SCHEMAS
"""
import ctypes
import fcntl
import json
import mmap
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import inside
from inside import PAGE, SHM, case, checked, clean, dead_pid, tool

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.shmat.restype = ctypes.c_void_p
NEW_MOUNTS, NEW_IPC, NEW_PIDS = 0x00020000, 0x08000000, 0x20000000
ROUNDS = int(os.environ.get("SHMB_STORM_ROUNDS", "1"))
SEED = int(os.environ.get("SHMB_STORM_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 31)
OPENERS = 3
HUGE_LOST, HUGE_LIVE = 12, 8


def mark(path):
    """The first bytes of a planted file: what it was called when it was made, so that a reader knows it again."""
    return b"mark:" + os.fsencode(path.name) + b"\n"


def plant(path, pages=1, label=None):
    path.write_bytes((label or mark(path)).ljust(pages * PAGE, b"x"))
    return path


class HugePages:
    """A hugetlbfs of this test's mount namespace and pages for it; the number of pages is restored."""

    NUMBER = Path("/proc/sys/vm/nr_hugepages")
    PLACE = Path("/mnt")

    def __init__(self, files):
        self.why, self.size, self.before = None, 0, None
        try:
            # Storms beside each other would take each other's pages and restore the wrong number.
            self.lock = open(self.NUMBER, encoding="ascii")
            fcntl.flock(self.lock, fcntl.LOCK_EX)
            facts = dict(line.split(":") for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
            self.size = int(facts["Hugepagesize"].split()[0]) * 1024
            free = int(facts["HugePages_Free"]) - int(facts["HugePages_Rsvd"])
            if free < files:
                self.before = int(self.NUMBER.read_text(encoding="ascii"))
                self.NUMBER.write_text(str(self.before + files - free), encoding="ascii")
                got = int(self.NUMBER.read_text(encoding="ascii"))
                if got < self.before + files - free:
                    self.end()
                    self.why = f"the kernel gave {got - self.before} of {files - free} huge pages"
                    return
        except (KeyError, OSError) as problem:
            self.why = f"no huge pages are to be had: {problem!r}"
            return
        mounted = subprocess.run(["mount", "-t", "hugetlbfs", "none", self.PLACE], capture_output=True, check=False)
        if mounted.returncode != 0:
            self.end()
            self.why = "hugetlbfs: " + mounted.stderr.decode().strip()

    def plant(self, name):
        path = self.PLACE / name
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        os.ftruncate(file, self.size)
        with mmap.mmap(file, self.size) as memory:
            memory[:PAGE] = mark(path).ljust(PAGE, b"x")
        os.close(file)
        return path

    def end(self):
        if self.before is not None:
            self.NUMBER.write_text(str(self.before), encoding="ascii")


class Crew:
    """Processes that hold things until the round ends, each ready before the next one starts."""

    def __init__(self):
        self.pids = []

    def start(self, work, namespaces=0):
        ready, told = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                LIBC.prctl(1, signal.SIGKILL)
                if namespaces and LIBC.unshare(namespaces) != 0:
                    os.write(told, b"no")
                    os._exit(1)
                os.write(told, json.dumps(work()).encode() + b"\n")
                os.close(told)
                while True:
                    signal.pause()
            finally:
                os._exit(1)
        os.close(told)
        self.pids.append(pid)
        with os.fdopen(ready, "rb") as answers:
            answer = answers.readline()
        assert answer.endswith(b"\n"), answer
        return pid, json.loads(answer)

    def end(self):
        for pid in self.pids:
            os.kill(pid, signal.SIGKILL)
        for pid in self.pids:
            os.waitpid(pid, 0)
        self.pids = []


def segments_of_a_dead_process(count, tell):
    """Made by a child that has ended."""
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        ids = [LIBC.shmget(0, PAGE * (1 + i % 3), 0o1600) for i in range(count)]
        os.write(told, json.dumps(ids).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(told)
    with os.fdopen(ready, "rb") as answer:
        tell.extend(json.loads(answer.read()))


def segments_now():
    return {int(line.split()[1]) for line in Path("/proc/sysvipc/shm").read_text(encoding="ascii").splitlines()[1:]}


def hold_in_many_ways(paths):
    """Gives nothing back: each file stays held by one of the ways there are, with no descriptor left where it can be."""
    keep = []
    for number, path in enumerate(paths):
        file = os.open(path, os.O_RDWR if number % 2 else os.O_RDONLY)
        size = os.fstat(file).st_size if path.parent == HugePages.PLACE else PAGE
        if number % 4 == 0:
            keep.append(file)
        elif number % 4 == 1:
            keep.append(mmap.mmap(file, size, mmap.MAP_SHARED))
            os.close(file)
        elif number % 4 == 2:
            keep.append(mmap.mmap(file, size, mmap.MAP_PRIVATE, mmap.PROT_READ))
            os.close(file)
        else:  # under way in a socket: in no process's table of descriptors
            pair = socket.socketpair()
            socket.send_fds(pair[0], [b"x"], [file])
            os.close(file)
            keep.append(pair)
    globals()["kept"] = keep
    return True


def attach(ids):
    return [LIBC.shmat(shmid, None, 0) is not None for shmid in ids]


class Round:
    def __init__(self, chance, huge):
        self.chance, self.huge, self.crew = chance, huge, Crew()
        self.huge_lost, self.huge_live = [], []
        self.lost, self.live, self.idle = [], [], []  # paths here; a lost one may have several names
        self.lost_segments, self.live_segments = [], []

    def plant_here(self):
        chance, dead = self.chance, [dead_pid() for _ in range(20)]
        folder = SHM / f"joblib_memmapping_folder_{dead[0]}_a"
        folder.mkdir()
        for i in range(330):
            self.lost.append(plant(SHM / f"torch_{chance.choice(dead)}_{i}_1", chance.randrange(1, 4)))
        for i in range(150):
            self.lost.append(plant(SHM / chance.choice([f"psm_{i:08x}", f"nccl-{i:06d}", f"vader_segment.{i}"])))
        for i in range(80):
            self.lost.append(plant(folder / f"{i}.pkl"))
        for i in range(50):
            self.lost.append(plant(SHM / f"sem.loky-{chance.choice(dead)}-{i}"))
        for i in range(60):
            path = plant(SHM / f"torch_{chance.choice(dead)}_link{i}")
            self.lost.append(path)
            for n in range(chance.randrange(1, 3)):
                os.link(path, SHM / f"other-name-{i}-{n}")
        held = [plant(SHM / f"torch_{chance.choice(dead)}_live{i}") for i in range(160)]
        self.live += held
        for part in range(4):
            self.crew.start(lambda part=part: hold_in_many_ways(held[part * 40:part * 40 + 40]),
                            [0, NEW_MOUNTS, NEW_PIDS, NEW_MOUNTS | NEW_IPC][part])
        self.idle += [plant(SHM / f"somebodys-{i}") for i in range(40)]
        segments_of_a_dead_process(60, self.lost_segments)
        segments_of_a_dead_process(20, self.live_segments)
        self.crew.start(lambda: attach(self.live_segments))

    def plant_huge(self):
        """Lost files and live ones on a hugetlbfs, as many as have a page each."""
        if self.huge.why:
            return
        dead = dead_pid()
        self.huge_lost = [self.huge.plant(f"storm_{dead}_{i}" if i % 2 else f"rtemap_{i}") for i in range(HUGE_LOST)]
        self.huge_live = [self.huge.plant(f"storm_{dead}_live{i}") for i in range(HUGE_LIVE)]
        self.lost += self.huge_lost
        self.live += self.huge_live
        self.crew.start(lambda: hold_in_many_ways(self.huge_live))

    def plant_elsewhere(self):
        """A container with a /dev/shm and segments of its own, lost ones and live ones."""
        dead = dead_pid()

        def work():
            os.system("mount -t tmpfs none /dev/shm")
            for i in range(40):
                plant(SHM / f"torch_{dead}_{i}_1")
            plant(SHM / f"torch_{dead}_live")
            hold_in_many_ways([SHM / f"torch_{dead}_live"])
            ids = []
            segments_of_a_dead_process(20, ids)
            attach(ids[:5])
            return ids

        self.elsewhere, ids = self.crew.start(work, NEW_MOUNTS | NEW_IPC)
        self.elsewhere_lost, self.elsewhere_live = ids[5:], ids[:5]

    def use_a_number_again(self):
        """A file by a dead process, whose number a younger process has now."""
        number = dead_pid()
        self.lost.append(plant(SHM / f"torch_{number}_again"))
        time.sleep(3.5)  # start times are told by the second
        for _ in range(50):
            Path("/proc/sys/kernel/ns_last_pid").write_text(str(number - 1), encoding="ascii")
            pid, _ = self.crew.start(lambda: True)
            if pid == number:
                return True
        return False

    def places(self):
        huge = {} if self.huge.why else {"huge pages": f"where={HugePages.PLACE}"}
        return {"/dev/shm": "where=/dev/shm", "SysV": "where=SysV", **huge,
                "files elsewhere": f"where=/proc/{self.elsewhere}/root/dev/shm",
                "segments elsewhere": f'where="SysV of {self.elsewhere}"'}

    def found(self, place):
        ended = tool("leaks", "--each", "--json", "--stale-after", "0", "-f", self.places()[place])
        return {it["id"]: it["verdict"] for it in checked(ended.stdout)["objects"]}

    def expect_findings(self):
        found = self.found("/dev/shm")
        lost = {it for it, verdict in found.items() if verdict in ("orphan", "stale")}
        lost_here = [path for path in self.lost if path not in self.huge_lost]
        by_names = {str(path) for path in lost_here}
        # A file with several names is called by one of them.
        linked = {str(path) for path in SHM.glob("other-name-*")}
        assert {it for it in lost if it not in linked} <= by_names, lost - by_names - linked
        assert len(lost) == len(lost_here), (len(lost), len(lost_here), by_names - lost)
        assert {it for it, verdict in found.items() if verdict == "idle"} == {str(path) for path in self.idle}
        if not self.huge.why:
            huge = self.found("huge pages")
            assert huge == {str(path): "stale" if "rtemap" in path.name else "orphan" for path in self.huge_lost}, huge
        segments = self.found("SysV")
        assert {it for it, verdict in segments.items() if verdict == "orphan"} == \
            {f"sysv:{shmid}" for shmid in self.lost_segments}, segments
        assert len([it for it, verdict in self.found("files elsewhere").items() if verdict == "orphan"]) == 40
        assert len([it for it, verdict in self.found("segments elsewhere").items() if verdict == "orphan"]) == 15

    def gc(self, place):
        ended = tool("gc", "--yes", "--stale", "--stale-after", "0", "--json", "-f", self.places()[place])
        assert ended.returncode in (0, 4, 7), ended  # 7: nothing is left, as far as can be seen
        for it in checked(ended.stdout)["plan"]:
            assert it["outcome"] in ("removed", "held", "changed"), it
        return ended.returncode

    def expect_live_ones_whole(self):
        for path in self.live + self.idle:
            with open(path, "rb") as file:
                assert file.read(PAGE).startswith(mark(path)), path
        assert set(self.live_segments) <= segments_now()
        there = Path(f"/proc/{self.elsewhere}/root/dev/shm")
        assert [path.name.split("_")[2] for path in there.iterdir() if "live" in path.name] == ["live"]

    def expect_lost_ones_gone(self):
        left = [path for path in self.lost if path.exists()] + list(SHM.glob("other-name-*")) + list(SHM.glob("moved-*"))
        left += list(HugePages.PLACE.glob("moved-*"))
        assert not left, left[:5]
        assert not set(self.lost_segments) & segments_now()
        assert len(list(Path(f"/proc/{self.elsewhere}/root/dev/shm").iterdir())) == 1
        assert not self.found("segments elsewhere")
        assert not list(SHM.glob(".shmbroker-gc-*")) + list(HugePages.PLACE.glob(".shmbroker-gc-*"))


def race(paths, chance_seed, going):
    """Opens lost files, and renames some to and fro, until told to stop. Gives what it saw that may not be."""
    chance, wrong, got = random.Random(chance_seed), [], 0
    while going[0]:
        path = chance.choice(paths)
        if chance.randrange(20) == 0:
            aside = path.with_name("moved-" + path.name)
            try:
                os.rename(path, aside)
                os.rename(aside, path)
            except FileNotFoundError:
                pass
            continue
        try:
            file = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            continue
        facts = os.fstat(file)
        whole = os.pread(file, PAGE, 0).startswith(mark(path))
        if facts.st_nlink == 0 or facts.st_size == 0 or not whole:
            wrong.append([path.name, facts.st_nlink, facts.st_size, whole])
        got += 1
        os.close(file)
    return {"wrong": wrong, "got": got}


def racing(paths, seed, flag):
    """A process of race(), which tells what it saw when the flag falls."""
    answers, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            LIBC.prctl(1, signal.SIGKILL)
            os.write(told, json.dumps(race(paths, seed, flag)).encode())
        finally:
            os._exit(0)
    os.close(told)
    return pid, answers


def one_round(number, with_used_number, huge):
    chance = random.Random(SEED + number)
    stage = Round(chance, huge)
    try:
        stage.plant_here()
        stage.plant_huge()
        stage.plant_elsewhere()
        if with_used_number and not stage.use_a_number_again():
            print("SKIPPED: case: storm: no number could be used again")
            stage.lost.pop().unlink()
        before = {str(path): path.stat().st_ino for path in stage.live}
        stage.expect_findings()
        flag = mmap.mmap(-1, PAGE)
        flag[0] = 1
        # To rename a file changes its last change, and with it who may have made it.
        openers = [racing([path for path in stage.lost if path.parent in (SHM, HugePages.PLACE) and "link" not in path.name
                           and "again" not in path.name],
                          SEED + number * 100 + n, flag) for n in range(OPENERS)]
        for place in stage.places():
            stage.gc(place)
        flag[0] = 0
        got = 0
        for pid, answers in openers:
            with os.fdopen(answers, "rb") as text:
                seen = json.loads(text.read())
            os.waitpid(pid, 0)
            assert not seen["wrong"], seen["wrong"][:5]
            got += seen["got"]
        stage.expect_live_ones_whole()
        for place in stage.places():
            stage.gc(place)
        stage.expect_live_ones_whole()
        assert {str(path): path.stat().st_ino for path in stage.live} == before
        stage.expect_lost_ones_gone()
        return got
    finally:
        stage.crew.end()
        for shmid in segments_now():
            LIBC.shmctl(shmid, 0, None)
        for path in stage.huge_lost + stage.huge_live:
            path.unlink(missing_ok=True)
        clean()


@case
def gc_frees_all_that_is_lost_and_touches_nothing_live_whoever_opens_it():
    print(f"seed {SEED}, {ROUNDS} rounds")
    started, opened = time.monotonic(), 0
    # No program is known to leave files with its number on a hugetlbfs: the pattern is a user's.
    settings = tempfile.TemporaryDirectory()
    os.environ["XDG_CONFIG_HOME"] = settings.name
    Path(settings.name, "shmbroker").mkdir()
    Path(settings.name, "shmbroker", "patterns.toml").write_text(
        '[[pattern]]\nprogram = "storm"\nglob = "storm_{pid}_*"\nwhere = "hugetlb"\n', encoding="ascii")
    huge = HugePages(HUGE_LOST + HUGE_LIVE + HUGE_LIVE // 4)  # private mappings have a page of their own
    if huge.why:
        print(f"SKIPPED: case: storm: files on a hugetlbfs: {huge.why}")
    try:
        for number in range(ROUNDS):
            opened += one_round(number, number % 10 == 0, huge)
            if ROUNDS > 1:
                print(f"round {number}: {opened} opens, {time.monotonic() - started:.0f} s", flush=True)
    finally:
        huge.end()
    assert opened > 0


sys.exit(inside.main(__file__))
