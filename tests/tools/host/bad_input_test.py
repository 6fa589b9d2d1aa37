#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Bad input to the verbs that look at the host: a clear sentence, and nothing removed. Usage: bad_input_test.py TOOL
SCHEMAS"""
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import inside
from inside import HERE, PAGE, SHM, TOOL, Holder, Skip, as_nobody, case, checked, dead_pid, plant, tool, tool_json

LOOKING = (["leaks"], ["gc"], ["doctor"], ["list", "--all"], ["list", "--all", "--tree"], ["map", str(os.getpid())])
AS_NOBODY = 'setpriv --reuid 65534 --regid 65534 --clear-groups "$@"'
HOSTILE = [b"torch_%d_\x1b[2J\x1b]0;x\x07", b"torch_%d_a\nshmbroker: fake line", b"torch_%d_\xff\xfe\xc0\xaf",
           b"torch_%d_\xe2\x80\xae\xe2\x81\xa6", b"torch_%d_\x9b31m", b"torch_%d_ * ?[a]", b"torch_%d_\\x0a", b"torch_%d_\n"]


def in_a_mount_namespace(script, *words, **options):
    """`script` with sh in a mount namespace of its own, then the tool; a Skip where this kernel refuses the mount."""
    ended = subprocess.run(["unshare", "--mount", "sh", "-c", f"{{ {script}; }} || exit 99\nexec \"$@\"", "sh", TOOL, *words],
                           capture_output=True, timeout=120, check=False, **options)
    if ended.returncode == 99:
        raise Skip(ended.stderr.decode().strip())
    return ended


def screen(words, columns=80, rows=24, **environment):
    """The output of the tool on a terminal of this size, and its exit status."""
    pid, terminal = pty.fork()
    if pid == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        os.execve(TOOL, [TOOL, *words], {"PATH": os.environ["PATH"], "TERM": "xterm", **environment})
    out = b""
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:
            break
        if not part:
            break
        out += part
    os.close(terminal)
    return out, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def raw_bytes(text):
    """Bytes that a terminal would obey: all control bytes but the line ends, and invalid UTF-8."""
    text.decode("utf-8")
    without_colours = re.sub(rb"\x1b\[[0-9]*m", b"", text)
    return re.findall(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\xc2[\x80-\x9f]", without_colours)


@case
def a_proc_of_no_processes_is_said_and_nothing_goes():
    path = plant(f"torch_{dead_pid()}_1_1")
    for words in (["leaks"], ["gc", "--yes", *HERE], ["doctor"], ["list", "--all"], ["map", "1"]):
        ended = in_a_mount_namespace("mount -t tmpfs none /proc", *words)
        assert ended.returncode == 1 and b"shows no processes" in ended.stderr, (words, ended)
    assert path.exists()


@case
def a_proc_that_may_not_be_listed_is_said_and_nothing_goes():
    path = plant(f"torch_{dead_pid()}_1_1")
    os.chown(path, 65534, 65534)
    ended = in_a_mount_namespace("mount -t tmpfs -o mode=0700 none /proc && set -- " + AS_NOBODY, "gc", "--yes")
    assert ended.returncode == 1 and b"/proc" in ended.stderr and b"Permission denied" in ended.stderr, ended
    assert path.exists()


@case
def hidepid_is_said_and_a_creator_that_may_be_hidden_is_not_dead():
    own, other = plant(f"torch_{dead_pid()}_1_1"), plant(f"torch_{dead_pid()}_2_1")
    os.chown(own, 65534, 65534)
    # A new instance of proc (Linux 5.8): to remount the one that is there would change the machine's.
    script = "mount -t proc -o hidepid=2 proc /proc && set -- " + AS_NOBODY
    for words in (["leaks", "--json", *HERE], ["gc", "--yes", "--json", *HERE]):
        ended = in_a_mount_namespace(script, *words)
        document = checked(ended.stdout)
        assert not document["saw_all"] and any("hidepid" in it for it in document["not_seen"]), document
        assert own.exists() and other.exists(), ended
        if words[0] == "leaks":
            verdicts = {it["name"]: it["verdict"] for it in document["objects"]}
            assert verdicts == {own.name: "idle", other.name: "unseen"}, verdicts


@case
def processes_that_end_while_they_are_read_disturb_nothing():
    churn = subprocess.Popen(["sh", "-c", "while :; do (sleep 0.001 & sleep 0.002 & true); done"],
                             stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        with Holder(plant("live"), "mapped") as holder:
            lost = plant(f"torch_{dead_pid()}_1_1")
            for _ in range(15):
                code, document = tool_json("leaks", *HERE)
                assert code == 6 and [it["name"] for it in document["objects"]] == [lost.name], document
                assert not any("a read failed" in it for it in document["not_seen"]), document["not_seen"]
            assert tool("gc", "--yes", *HERE).returncode == 0
            assert not lost.exists() and Path(holder.path).exists()
    finally:
        os.killpg(churn.pid, signal.SIGKILL)
        churn.wait()


@case
def hostile_names_are_never_raw_and_always_exact():
    pid = dead_pid()
    for name in HOSTILE:
        with open(b"/dev/shm/" + name % pid, "wb") as file:
            file.write(b"x" * PAGE)
    for words in (*LOOKING, ["leaks", "--each"], ["leaks", "-q"], ["gc", "-q"], ["leaks", "--why", "torch_*"],
                  ["gc", "torch_*"]):
        shown, _ = screen(words, 200, 50, LANG="C.UTF-8")
        assert not raw_bytes(shown), (words, shown)
        assert not raw_bytes(tool(*words).stdout), words
        assert b"\nshmbroker: fake line" not in shown
    _, document = tool_json("leaks", "--each", *HERE)
    exact = {bytes.fromhex(it["name_hex"]) if "name_hex" in it else it["name"].encode() for it in document["objects"]}
    assert exact == {name % pid for name in HOSTILE}, exact
    for it in document["objects"]:
        assert ("id_hex" in it) == ("name_hex" in it)


@case
def each_id_that_a_listing_prints_means_that_object_alone():
    pid = dead_pid()
    paths = [b"/dev/shm/" + name % pid for name in HOSTILE] + [b"/dev/shm/*", b"/dev/shm/idle"]
    for path in paths:
        Path(os.fsdecode(path)).write_bytes(b"x")
    ids = [line for line in tool("list", "--all", "-q", *HERE).stdout.split(b"\n") if line]
    assert len(ids) == len(paths), ids
    # Two of these names print alike: the bytes of one are what the other's control byte is shown as.
    for word in ids:
        before = len(list(SHM.iterdir()))
        ended = tool("gc", "--yes", word)
        assert ended.returncode == 0 and len(list(SHM.iterdir())) == before - 1, (word, ended)
    assert not list(SHM.iterdir())


@case
def a_bare_name_that_means_two_objects_removes_none():
    (SHM / "one").mkdir()
    for path in (SHM / "twin", SHM / "one" / "twin"):
        path.write_bytes(b"x")
    private = subprocess.Popen(["unshare", "--mount", "sh", "-c",
                                "mount -t tmpfs none /dev/shm && echo x > /dev/shm/twin && echo ready && exec sleep 100"],
                               stdout=subprocess.PIPE)
    try:
        assert private.stdout.readline() == b"ready\n"
        ended = tool("gc", "--yes", "twin")
        assert ended.returncode == 2 and b"means 2 objects" in ended.stderr, ended
        assert (SHM / "twin").exists() and Path(f"/proc/{private.pid}/root/dev/shm/twin").exists()
        assert tool("gc", "--yes", "/dev/shm/twin").returncode == 0
        assert not (SHM / "twin").exists() and Path(f"/proc/{private.pid}/root/dev/shm/twin").exists()
    finally:
        private.kill()
        private.wait()


@case
def a_terminal_of_ten_columns_and_three_rows_is_enough_for_every_verb():
    plant(f"torch_{dead_pid()}_1_1")
    for words in LOOKING:
        for size in ((10, 3), (1, 1), (0, 0)):
            shown, code = screen(words, *size)
            assert code in (0, 6, 7) and shown, (words, size, code, shown)
    shown, _ = screen(["leaks", *HERE], 10, 3)
    lines = re.sub("\x1b\\[[0-9]*m", "", shown.decode()).split("\r\n")
    table = [line for line in lines if line.startswith(("OBJ", "tor", "(no"))]
    assert len(table) == 3 and all(len(line) <= 10 for line in table), shown


@case
def no_terminal_and_a_closed_output_end_with_a_sentence():
    plant(f"torch_{dead_pid()}_1_1")
    for words in LOOKING:
        with open("/dev/full", "wb") as full:
            ended = subprocess.run([TOOL, *words], stdout=full, stderr=subprocess.PIPE, check=False, timeout=60)
        assert ended.returncode == 1 and b"cannot write to stdout" in ended.stderr, (words, ended)
        ended = subprocess.run([TOOL, *words], stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=60,
                               env={"PATH": "/nowhere"})
        assert ended.returncode in (0, 6, 7) and b"\x1b" not in ended.stdout, (words, ended)


@case
def a_filter_with_an_error_shows_its_place_and_removes_nothing():
    path = plant(f"torch_{dead_pid()}_1_1")
    for text, place in (("kind=file sise>1", 11), ("size>1Q", 6), ("size>", 6), ('object="a', 8), ("kind>1", 5), ("!", 1),
                        ("j\u00f6=1 x", 1), ("age<soon", 5), ("links=two", 7)):
        for words in (["leaks"], ["gc", "--yes"], ["list", "--all"], ["map", str(os.getpid())]):
            ended = tool(*words, "-f", text)
            assert ended.returncode == 2 and not ended.stdout, (words, text, ended)
            lines = ended.stderr.decode().split("\n")
            assert lines[0].startswith(f"shmbroker: filter, at character {place}: "), lines
            assert lines[1] == "  " + text and lines[2] == "  " + " " * (place - 1) + "^", lines
    assert tool("gc", "--yes", "-S", "nothing").returncode == 2
    assert tool("leaks", "-o", "nothing").returncode == 2
    assert path.exists()


@case
def on_a_read_only_mount_nothing_goes():
    path = plant(f"torch_{dead_pid()}_1_1")
    ended = in_a_mount_namespace("mount -o remount,ro,bind /dev/shm", "gc", "--yes", *HERE)
    assert ended.returncode == 4 and b"Read-only file system" in ended.stdout and path.exists(), ended
    ended = in_a_mount_namespace("mount -o remount,ro,bind /dev/shm", "doctor")
    assert ended.returncode == 6 and b"is mounted read-only" in ended.stdout, ended


@case
def a_shared_memory_folder_of_another_user_is_said_and_left_alone():
    path = plant(f"torch_{dead_pid()}_1_1")
    os.chmod(SHM, 0o700)
    try:
        for words in (["leaks"], ["gc", "--yes"], ["list", "--all"]):
            ended = tool(*words, **as_nobody())
            assert b"the files on /dev/shm cannot be read: Permission denied" in ended.stdout, (words, ended)
            assert ended.returncode in (6, 7), ended  # other users' segments may be lost, too
        assert path.exists()
        os.chmod(SHM, 0o755)  # it may be read, and nothing in it be renamed
        os.chown(path, 65534, 65534)
        ended = tool("gc", "--yes", *HERE, str(path), **as_nobody())
        assert ended.returncode == 4 and b"Permission denied" in ended.stdout and path.exists(), ended
    finally:
        os.chmod(SHM, 0o1777)


@case
def links_are_neither_followed_nor_listed():
    target = Path("/tmp") / f"shmbroker-test-{os.getpid()}"
    target.write_bytes(b"x" * PAGE)
    try:
        name = f"torch_{dead_pid()}_1_1"
        (SHM / name).symlink_to(target)
        (SHM / "folder").symlink_to("/tmp")
        assert tool_json("list", "--all", *HERE)[1]["objects"] == []
        assert tool("gc", "--yes", name).returncode == 5
        assert target.exists() and (SHM / name).is_symlink()
    finally:
        target.unlink()


@case
def devices_sockets_and_pipes_on_dev_shm_are_no_shared_memory():
    os.mkfifo(SHM / "torch_1_fifo")
    os.mknod(SHM / "device", 0o20600, os.makedev(1, 3))
    started = time.monotonic()
    assert tool_json("list", "--all", *HERE)[1]["objects"] == []
    assert tool("gc", "--yes", "--sole-tenant", *HERE).returncode in (0, 7)
    assert len(list(SHM.iterdir())) == 2 and time.monotonic() - started < 60


@case
def a_wrong_pattern_file_is_named_with_its_line_and_nothing_goes():
    path = plant(f"torch_{dead_pid()}_1_1")
    folder = Path("/tmp") / f"shmbroker-test-{os.getpid()}" / "shmbroker"
    folder.mkdir(parents=True)
    file = folder / "patterns.toml"
    environment = {**os.environ, "XDG_CONFIG_HOME": str(folder.parent)}
    try:
        for text, line in (("[[pattern]]\nprogram = 3\n", 2), ("[[pattern]\n", 1), ("x = 1\n", 1)):
            file.write_text(text, encoding="utf-8")
            ended = tool("gc", "--yes", *HERE, env=environment)
            assert ended.returncode == 2 and f"{file}:{line}:".encode() in ended.stderr and path.exists(), ended
        file.write_text('[[pattern]]\nprogram = "Mine"\nglob = "mine-*"\n', encoding="utf-8")
        plant("mine-1")
        ended = tool("leaks", "--json", "--stale-after", "0", "-f", "object=mine-1", env=environment)
        assert checked(ended.stdout)["objects"][0]["made_by"] == "Mine"
    finally:
        file.unlink()
        folder.rmdir()
        folder.parent.rmdir()


sys.exit(inside.main(__file__))
