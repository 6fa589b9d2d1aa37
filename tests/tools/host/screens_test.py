#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The screens that people see: the verbs that look at the host on terminals of two sizes, with colour and without, and
in a locale without UTF-8, captured by tmux and compared with screens/*.txt. SHMB_SCREENS=write replaces those files.

The processes live in a PID namespace of their own and have chosen numbers; ages have one digit; the kernel's count of
all shared memory is a file that is bound over /proc/meminfo. Usage: screens_test.py TOOL SCHEMAS
"""
import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import inside
from inside import PAGE, SHM, TOOL, Skip, case, plant, until

SCREENS = Path(__file__).resolve().parent / "screens"
SMALL, LARGE = (80, 24), (140, 40)
UTF8 = {"LC_ALL": "C.UTF-8"}


def number_of_next(pid):
    Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1), encoding="utf-8")


def child(pid, work):
    """A process with this number that does `work` and waits, if `work` gives True."""
    ready, told = os.pipe()
    number_of_next(pid)
    if os.fork() == 0:
        try:
            stays = work()
            os.write(told, b"r")
            while stays:
                signal.pause()
        finally:
            os._exit(0)
    os.close(told)
    assert os.read(ready, 1) == b"r" and (pid in children())
    os.close(ready)
    return pid


def children():
    text = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text(encoding="ascii")
    return [int(word) for word in text.split()]


def hold():
    file = os.open(SHM / "nccl-AbCdEf", os.O_RDWR)
    os.memfd_create("pipe-wire")
    os.write(os.memfd_create("buffers"), b"x" * (3 * PAGE))
    return file > 0


class World:
    """A host with one object of each kind of verdict. Afterwards no process of it is left."""

    def __enter__(self):
        libc = ctypes.CDLL(None)
        libc.shmat.restype = ctypes.c_void_p
        for number in range(5):
            plant(f"torch_4190001_{number}_1", 2)
        plant("nccl-AbCdEf", 8)
        plant("psm_0123abcd", 75)
        plant("j\u00f6rg's file with a name that is long enough to be cut in any table of eighty columns")
        plant("esc\x1b[2J")
        os.chown(SHM / "psm_0123abcd", 65534, 65534)
        self.pids = [child(5000, hold)]
        Path("/proc/sys/kernel/shm_next_id").write_text("98304", encoding="utf-8")
        gone = child(6000, lambda: ctypes.memset(libc.shmat(libc.shmget(0, 16 * PAGE, 0o1600), None, 0), 1, PAGE) is None)
        os.waitpid(gone, 0)
        return self

    def __exit__(self, *_):
        for pid in self.pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        inside.clean()
        libc = ctypes.CDLL(None)
        for line in Path("/proc/sysvipc/shm").read_text(encoding="ascii").splitlines()[1:]:
            libc.shmctl(int(line.split()[1]), 0, None)


def capture(words, size, environment):
    folder = Path(tempfile.mkdtemp(prefix="shmbroker-screens-", dir="/tmp"))
    tmux = ["tmux", *(["-u"] if environment.get("LC_ALL") == "C.UTF-8" else []), "-f", "/dev/null", "-S", str(folder / "tmux")]
    clean = {"PATH": os.environ["PATH"], "HOME": "/nowhere", "TERM": "xterm", "SHELL": "/bin/sh",
             "LC_ALL": "C.UTF-8" if environment["LC_ALL"] == "C.UTF-8" else "C"}
    quoted = " ".join("'" + word + "'" for word in
                      ["env", *(f"{name}={value}" for name, value in environment.items()), TOOL, *words])
    command = f"{quoted}; echo exit $?; echo > {folder}/done; exec sleep 100"
    try:
        subprocess.run([*tmux, "start-server", ";", "set", "-g", "status", "off", ";", "set", "-g", "default-terminal",
                        "screen", ";", "new-session", "-d", "-x", str(size[0]), "-y", str(size[1]), command],
                       check=True, env=clean, capture_output=True, timeout=60)
        until((folder / "done").exists)
        shown = [""]

        def settled():
            before = shown[0]
            shown[0] = subprocess.run([*tmux, "capture-pane", "-p", "-e", "-S", "-200"], check=True, env=clean,
                                      capture_output=True, timeout=60).stdout.decode("utf-8", "backslashreplace")
            return "exit " in shown[0] and shown[0] == before

        until(settled)
        return shown[0]
    finally:
        subprocess.run([*tmux, "kill-server"], check=False, capture_output=True, env=clean)
        shutil.rmtree(folder)


def normal(text):
    lines = [line.rstrip() for line in text.rstrip().split("\n")]
    # The tmpfs mounts of the machine are not part of the picture.
    if any(line.startswith("FILE SYSTEM") for line in re.sub("\x1b\\[[0-9;]*m", "", text).split("\n")):
        at = next(i for i, line in enumerate(lines) if "FILE SYSTEM" in line)
        lines[at:lines.index("", at)] = ["(the table of file systems)"]
    return re.sub(r"memfd:[0-9]+", "memfd:N", "\n".join(lines).replace("\x1b", "\\e")) + "\n"


def compare(name, words, size, **environment):
    for _ in range(10):
        with World():
            shown = normal(capture(words, size, environment))
        if not re.search(r"\s[0-9]{2,}s\s|\s[0-9]+m[0-9]*s?\s", shown):
            break  # else this machine took more than nine seconds, and ages have two digits
    file = SCREENS / f"{name}.txt"
    if os.environ.get("SHMB_SCREENS") == "write":
        SCREENS.mkdir(exist_ok=True)
        file.write_text(shown, encoding="utf-8")
    wanted = file.read_text(encoding="utf-8")
    shown, wanted = (re.sub(r"(?<=\s)[0-9]s(?=\s)", "0s", text) for text in (shown, wanted))
    assert shown == wanted, f"\n--- {file.name}\n{wanted}--- shown\n{shown}"


def needs():
    if shutil.which("tmux") is None:
        raise Skip("there is no tmux (tools/install-packages test)")
    for file in ("ns_last_pid", "shm_next_id"):
        if not os.access("/proc/sys/kernel/" + file, os.W_OK):
            raise Skip("the kernel does not let numbers of processes and segments be chosen")


VERBS = {"leaks": ["leaks", "--stale-after", "0"],
         "leaks-each": ["leaks", "--stale-after", "0", "--each"],
         "leaks-why": ["leaks", "--stale-after", "0", "--why", "psm_*", "--why", "nccl-*"],
         "gc": ["gc", "--stale", "--stale-after", "0"],
         "list-all": ["list", "--all"],
         "list-tree": ["list", "--all", "--tree"],
         "map": ["map", "5000"]}


@case
def each_verb_on_a_terminal_of_80_by_24():
    needs()
    for name, words in VERBS.items():
        compare(f"{name}-80x24", words, SMALL, **UTF8)


@case
def each_verb_on_a_terminal_of_140_by_40():
    needs()
    for name, words in VERBS.items():
        compare(f"{name}-140x40", words, LARGE, **UTF8)


@case
def without_colour_where_no_color_says_so_or_the_terminal_has_none():
    needs()
    compare("leaks-no-color", VERBS["leaks"], SMALL, NO_COLOR="1", **UTF8)
    compare("leaks-empty-no-color", VERBS["leaks"], SMALL, NO_COLOR="", **UTF8)


@case
def in_a_locale_without_utf8_a_name_is_ascii():
    needs()
    compare("leaks-each-ascii", VERBS["leaks-each"], LARGE, LC_ALL="C")
    compare("leaks-each-latin1", VERBS["leaks-each"], LARGE, LC_ALL="de_DE.ISO-8859-1")


@case
def doctor_fits_the_terminal():
    needs()
    for size in (SMALL, LARGE):
        with World():
            shown = re.sub("\x1b\\[[0-9;]*m", "", capture(["doctor"], size, UTF8))
        for name in ("daemon", "/dev/shm", "RemoveIPC", "open files", "io_uring", "sight"):
            assert re.search(f"^{name} +(ok|info|WARN|ERROR|unknown) ", shown, re.M), shown
        # No word is cut at the edge: each line of a reason begins behind the margin.
        for line in shown.rstrip().split("\n"):
            assert re.match(r"(\S.*|  +\S.*|)$", line) and len(line) <= size[0], (line, shown)


if os.environ.get("SHMB_HOST_TEST") == "inside":
    Path("/tmp").mkdir(exist_ok=True)
    with tempfile.NamedTemporaryFile("w", delete=False) as meminfo:
        meminfo.write("MemTotal: 1000000 kB\nShmem:              4096 kB\n")
    subprocess.run(["mount", "--bind", meminfo.name, "/proc/meminfo"], check=True)
    os.unlink(meminfo.name)
sys.exit(inside.main(__file__, own_pids=True))
