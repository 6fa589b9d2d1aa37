#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The verbs that look at the host, as people run them: in a mount and IPC namespace with a /dev/shm of its own, so that
every sum is known. Usage: host_test.py TOOL SCHEMAS
"""
import ctypes
import json
import mmap
import os
import re
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import jsonschema

warnings.simplefilter("ignore", DeprecationWarning)  # of RefResolver, where jsonschema is newer than Debian 12
TOOL, SCHEMAS = sys.argv[1], Path(sys.argv[2]).resolve()
SHM = Path("/dev/shm")
PAGE = 4096
cases = []


def case(function):
    cases.append(function)
    return function


def tool(*words, **options):
    return subprocess.run([TOOL, *words], capture_output=True, timeout=60, check=False, **options)


def tool_json(*words):
    ended = tool(*words, "--json")
    assert ended.stdout, ended.stderr
    document = json.loads(ended.stdout)
    schema = json.loads((SCHEMAS / (document["schema"].replace("/", "-") + ".json")).read_text(encoding="utf-8"))
    validator = jsonschema.validators.validator_for(schema)
    resolver = jsonschema.RefResolver(base_uri=SCHEMAS.as_uri() + "/", referrer=schema)
    validator(schema, resolver=resolver).validate(document)
    return ended.returncode, document


# The tool looks into other mount namespaces too, and gc must free nothing of this machine's.
HERE = ["-f", "where=/dev/shm"]
SEGMENTS = ["-f", "where=SysV"]


def plant(name, pages=1, directory=SHM):
    path = directory / name
    path.write_bytes(b"x" * (pages * PAGE))
    return path


def dead_pid():
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return child


class Holder:
    """A process that holds a file until the block ends."""

    def __init__(self, path, how):
        self.path, self.how = path, how

    def __enter__(self):
        ready, told = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            file = os.open(self.path, os.O_RDWR)
            if self.how == "mapped":
                memory = mmap.mmap(file, 0)
                os.close(file)
            os.write(told, b"r")
            signal.pause()
        os.read(ready, 1)
        os.close(ready)
        os.close(told)
        return self

    def __exit__(self, *_):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def clean():
    for path in sorted(SHM.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


@case
def an_empty_host_has_nothing_to_find():
    assert b"nothing to free" in tool("gc", *HERE).stdout
    code, document = tool_json("leaks", *HERE)
    assert document["objects"] == []
    lost = document["totals"]["lost_objects"]
    assert code == (6 if lost else 0 if document["saw_all"] else 7), document
    assert (b"nothing looks lost" in tool("leaks").stdout) == (lost == 0)


@case
def leaks_names_each_lost_object_with_its_evidence_and_exits_with_6():
    pid = dead_pid()
    orphan = plant(f"torch_{pid}_1_1", 3)
    stale = plant("psm_0123abcd", 2)
    os.utime(stale, (0, 0))
    os.system(f"touch -h -d '1970-01-02' {stale}")
    idle = plant("somebodys")
    with Holder(plant("nccl-abcdef"), "mapped"):
        code, document = tool_json("leaks", "--stale-after", "0", *HERE)
        verdicts = {it["name"]: it["verdict"] for it in document["objects"]}
        assert code == 6
        assert verdicts == {orphan.name: "orphan", stale.name: "stale", idle.name: "idle"}, verdicts
        assert document["totals"]["lost_objects"] >= 2
        assert document["totals"]["lost_touched"] >= 5 * PAGE
        text = tool("leaks", "--why", orphan.name).stdout.decode()
        assert "orphan" in text and f"no process {pid} lives" in text, text
        text = tool("leaks", "--why", "/dev/shm/nccl-abcdef").stdout.decode()
        assert "held" in text and "1 process holds it" in text, text
        assert tool("leaks", "--why", "no-such-name").returncode == 5


@case
def many_of_one_pattern_are_one_line_and_each_shows_them():
    pid = dead_pid()
    for number in range(5):
        plant(f"torch_{pid}_{number}_1")
    text = tool("leaks", *HERE).stdout.decode()
    assert "torch_{pid}_* (5 files)" in text and "20.0 KiB" in text, text
    text = tool("leaks", "--each", *HERE).stdout.decode()
    assert text.count(f"torch_{pid}_") == 5, text


@case
def gc_shows_a_plan_removes_only_with_yes_and_only_what_the_plan_says():
    pid = dead_pid()
    orphan, idle = plant(f"torch_{pid}_1_1", 3), plant("somebodys")
    stale = plant("psm_0123abcd")
    with Holder(plant(f"torch_{pid}_2_1"), "open") as held:
        for words in ([], ["--dry-run"], ["--json"], ["-q"]):
            ended = tool("gc", *HERE, *words)
            assert ended.returncode == 6, ended
            assert orphan.exists()
        ended = tool("gc", "--yes", *HERE)
        assert ended.returncode == 0, ended
        assert b"freed 12.0 KiB in 1 object" in ended.stdout, ended.stdout
        assert not orphan.exists() and idle.exists() and stale.exists() and Path(held.path).exists()
        assert tool("gc", "--yes", "--stale", "--stale-after", "0", *HERE).returncode == 0
        assert not stale.exists() and idle.exists()
        ended = tool("gc", "--yes", "somebodys", held.path)
        assert ended.returncode == 4, ended
        assert not idle.exists() and Path(held.path).exists()
        assert b"a process has it open or mapped" in ended.stdout
    assert tool("gc", "--yes", "--sole-tenant", *HERE).returncode == 0
    assert not list(SHM.iterdir())


@case
def dry_run_and_yes_together_are_a_usage_error_and_remove_nothing():
    path = plant(f"torch_{dead_pid()}_1_1")
    assert tool("gc", "--dry-run", "--yes").returncode == 2
    assert path.exists()


@case
def names_with_control_bytes_never_reach_a_terminal_and_are_exact_in_json():
    name = b"torch_%d_\x1b[2J\n\xff\xe2\x80\xae" % dead_pid()
    with open(b"/dev/shm/" + name, "wb") as file:
        file.write(b"x" * PAGE)
    for words in (["leaks"], ["leaks", "--each"], ["gc"], ["list", "--all"], ["list", "--all", "--tree"], ["leaks", "-q"],
                  ["leaks", "--why", "torch_*"]):
        ended = tool(*words)
        assert b"\x1b" not in ended.stdout and b"\xff" not in ended.stdout and b"\xae" not in ended.stdout, (words, ended.stdout)
    _, document = tool_json("leaks", *HERE)
    assert bytes.fromhex(document["objects"][0]["name_hex"]) == name
    assert tool("gc", "--yes", *HERE).returncode == 0
    assert not list(SHM.iterdir())


@case
def all_sums_agree_with_df_and_smaps_to_the_page():
    plant("a", 7)
    (SHM / "folder").mkdir()
    plant("b", 11, SHM / "folder")
    os.link(SHM / "a", SHM / "a2")
    sparse = SHM / "sparse"
    with open(sparse, "wb") as file:
        file.truncate(100 * PAGE)
        file.seek(50 * PAGE)
        file.write(b"x")
    with Holder(SHM / "a", "mapped") as holder:
        _, document = tool_json("list", "--all")
        mount = next(it for it in document["mounts"] if it["path"] == "/dev/shm")
        use = os.statvfs("/dev/shm")
        assert mount["used"] == (use.f_blocks - use.f_bfree) * use.f_frsize == 19 * PAGE, mount
        assert mount["listed"] == mount["used"], mount
        found = next(it for it in document["objects"] if it["id"] == "/dev/shm/sparse")
        assert found["bytes"] == 100 * PAGE and found["touched"] == PAGE
        _, document = tool_json("map", str(holder.pid))
        smaps = Path(f"/proc/{holder.pid}/smaps").read_text(encoding="utf-8")
        part = re.search(r"/dev/shm/a2?\n(?:.*\n)*?Rss: +(\d+) kB", smaps)
        found = next(it for it in document["objects"] if "/dev/shm/a" in it["id"])
        assert found["mapped"] == 7 * PAGE
        assert found["resident"] == int(part.group(1)) * 1024


@case
def columns_order_and_filter_choose_what_a_listing_shows():
    for number, name in enumerate(["c", "a", "b"]):
        plant(f"x-{name}", number + 1)
    words = ["list", "--all", "-f", "kind=file where=/dev/shm", "-o", "object", "-q"]
    assert tool(*words, "-S", "object").stdout.decode().split() == ["/dev/shm/x-a", "/dev/shm/x-b", "/dev/shm/x-c"]
    assert tool(*words, "-S", "touched").stdout.decode().split() == ["/dev/shm/x-b", "/dev/shm/x-a", "/dev/shm/x-c"]
    assert tool("list", "--all", "-f", "touched>4K file where=/dev/shm", "-q").stdout.decode().split() == ["/dev/shm/x-a", "/dev/shm/x-b"]
    ended = tool("list", "--all", "-f", "kind=file sise>1")
    assert ended.returncode == 2 and b"there is no field" in ended.stderr, ended
    text = tool("list", "--all", "-o", "object,size", "-f", "file").stdout.decode()
    assert re.search(r"^OBJECT +SIZE$", text, re.M), text


@case
def a_killed_gc_is_put_right_by_the_next():
    aside = SHM / ".shmbroker-gc-1-0011223344556677"
    aside.mkdir()
    plant("set-aside", 1, aside)
    plant(f"torch_{dead_pid()}_1_1")
    ended = tool("gc", "--yes", *HERE)
    assert b"it has its name back" in ended.stdout, ended
    assert (SHM / "set-aside").exists() and not aside.exists()


@case
def another_user_sees_what_it_may_and_removes_nothing_of_others():
    if os.geteuid() != 0:
        return
    path = plant(f"torch_{dead_pid()}_1_1")
    own = plant(f"torch_{dead_pid()}_2_1")
    os.chown(own, 65534, 65534)
    path.chmod(0o600)
    as_nobody = {"user": 65534, "group": 65534, "extra_groups": [], "env": {"PATH": os.environ["PATH"]}}
    ended = tool("leaks", **as_nobody)
    assert ended.returncode in (6, 7), ended
    assert b"not seen: " in ended.stdout
    ended = tool("gc", "--yes", str(path), **as_nobody)
    assert ended.returncode == 4 and path.exists(), ended
    ended = tool("gc", "--yes", "--json", *HERE, **as_nobody)
    assert path.exists() and not own.exists(), ended
    assert tool("map", "1", **as_nobody).returncode == 4


@case
def a_process_that_is_not_there_is_not_found():
    assert tool("map", str(dead_pid())).returncode == 5
    assert tool("map", "0").returncode == 2
    assert tool("map").returncode == 2


@case
def doctor_tells_each_check_with_a_verdict_and_counts_them():
    code, document = tool_json("doctor")
    names = [check["name"] for check in document["checks"]]
    for name in ["daemon", "access", "/dev/shm", "container", "RemoveIPC", "memlock", "open files", "huge pages",
                 "overcommit", "cgroup", "ptrace", "io_uring", "user namespaces", "leases", "CUDA", "sight"]:
        assert name in names, name
    plant(f"torch_{dead_pid()}_1_1")
    code, document = tool_json("doctor")
    assert code == 6
    check = next(check for check in document["checks"] if check["name"] == "/dev/shm")
    assert check["verdict"] == "WARN" and check["advice"] == "shmbroker leaks"


@case
def segments_that_a_dead_process_left_are_found_and_freed():
    libc = ctypes.CDLL(None, use_errno=True)
    child = os.fork()
    if child == 0:
        os._exit(0 if libc.shmget(0, 3 * PAGE, 0o1600) >= 0 else 1)
    assert os.waitpid(child, 0)[1] == 0
    code, document = tool_json("leaks", *SEGMENTS)
    segments = [it for it in document["objects"] if it["kind"] == "sysv"]
    assert code == 6 and len(segments) == 1 and segments[0]["verdict"] == "orphan", document
    assert tool("gc", "--yes", *SEGMENTS).returncode == 0
    assert not tool_json("list", "--all", *SEGMENTS)[1]["objects"]


def main():
    if os.environ.get("SHMB_HOST_TEST") != "inside":
        inside = {**os.environ, "SHMB_HOST_TEST": "inside"}
        probe = subprocess.run(["unshare", "--mount", "--ipc", "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"],
                               capture_output=True, check=False)
        if probe.returncode != 0:
            print("SKIPPED: host verbs: no mount namespace is to be had here: " + probe.stderr.decode().strip())
            return 77
        script = 'mount -t tmpfs -o mode=1777 tmpfs /dev/shm && exec "$@"'
        return subprocess.run(["unshare", "--mount", "--ipc", "sh", "-c", script, "sh", sys.executable, *sys.argv],
                              env=inside, check=False).returncode
    failed = 0
    for function in cases:
        clean()
        name = function.__name__.replace("_", " ")
        try:
            function()
        except Exception as problem:  # the next case is worth knowing too
            failed += 1
            print(f"FAILED: {name}: {type(problem).__name__}: {problem}")
        else:
            print(f"passed: {name}")
    clean()
    return 1 if failed else 0


sys.exit(main())
