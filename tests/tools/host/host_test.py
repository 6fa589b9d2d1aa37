#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The verbs that look at the host, as people run them. Usage: host_test.py TOOL SCHEMAS"""
import ctypes
import fcntl
import mmap
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
from pathlib import Path

import inside
from inside import HERE, PAGE, SEGMENTS, SHM, TOOL, Holder, Skip, as_nobody, case, checked, clean, dead_pid, plant, tool, tool_json


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
    assert "5 files torch_{pid}_*" in text and "20.0 KiB" in text, text
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
        assert found["rss"] == int(part.group(1)) * 1024


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
def columns_are_added_with_one_plus_or_with_several():
    plant("x-a")
    for words in ("+links,kind", "+links,+kind"):
        ended = tool("list", "--all", "-f", "file", "-o", words)
        assert ended.returncode in (0, 7) and re.search(rb"VERDICT +LINKS +KIND$", ended.stdout, re.M), ended
    ended = tool("list", "--all", "-o", "object,+links")
    assert ended.returncode == 2 and b"there is no field '+links'" in ended.stderr, ended


@case
def what_only_a_broker_knows_is_refused_beside_all():
    for words in (["--socket", "/nowhere"], ["--timeout", "1s"], ["--group", "g"], ["--all-groups"]):
        ended = tool("list", "--all", *words)
        assert ended.returncode == 2 and not ended.stdout, ended
        assert f"list --all asks no broker, so {words[0]} says nothing".encode() in ended.stderr, ended
    ended = tool("list", "--all", "--tree", "-o", "object")
    assert ended.returncode == 2 and b"--columns" in ended.stderr and b"--tree" in ended.stderr, ended


CLEARED = b"\x1b[H\x1b[2J"


@case
def watch_shows_each_change_on_a_terminal_and_leaves_the_terminal_as_it_was():
    plant("x-first")
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(TOOL, [TOOL, "list", "--all", "-f", "where=/dev/shm", "-w", "50ms"],
                  {"PATH": os.environ["PATH"], "TERM": "xterm", "LC_ALL": "C.UTF-8"})
    before, shown = termios.tcgetattr(terminal), b""

    def screen_has(name, is_there=True):
        """Reads on until a whole screen has the name, or has it no more."""
        nonlocal shown
        shown = b""
        while True:
            screens = shown.split(CLEARED)[1:-1]
            if screens and (name in screens[-1]) == is_there:
                return
            assert select.select([terminal], [], [], 60)[0], shown
            shown += os.read(terminal, 65536)

    try:
        screen_has(b"x-first")
        second = plant("x-second")
        screen_has(b"x-second")
        second.unlink()
        screen_has(b"x-second", False)
        assert b"x-first" in shown
        # No mode of the terminal is changed, so that a death at any moment leaves none behind.
        assert b"\x1b[?" not in shown and b"\x1b7" not in shown, shown
        os.write(terminal, b"\x03")  # ^C
        try:
            while os.read(terminal, 65536):
                pass
        except OSError:
            pass  # EIO: the process has closed its end
        status = os.waitpid(pid, 0)[1]
        pid = 0
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGINT, status
        assert termios.tcgetattr(terminal) == before
    finally:
        if pid != 0:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(terminal)


@case
def watch_without_a_terminal_writes_one_listing_after_the_other_until_nobody_reads():
    plant("x-first")
    for words, ends in ((["-q"], b"\n"), (["--json"], b"}\n")):
        watching = subprocess.Popen([TOOL, "list", "--all", "-f", "where=/dev/shm", "-w", "50ms", *words],
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        listings, text = [], b""
        while len(listings) < 3:
            line = watching.stdout.readline()
            assert line, watching.stderr.read()
            if line == b"\n":
                listings.append(text)
                text = b""
            else:
                text += line
        watching.stdout.close()
        assert watching.wait(60) != 0
        watching.stderr.close()
        assert all(b"\x1b" not in each and each.endswith(ends) and b"x-first" in each for each in listings), listings
    for words in ([], ["--each"]):
        ended = tool("leaks", *words, "-w", "soon")
        assert ended.returncode == 2 and b"--watch" in ended.stderr, ended


@case
def watch_ends_with_the_first_failure():
    ended = tool("list", "--all", "-w", "50ms", "-f", "sise>1")
    assert ended.returncode == 2 and b"there is no field" in ended.stderr, ended
    with Holder(plant("x-first"), "open") as holder:
        watching = subprocess.Popen([TOOL, "map", str(holder.pid), "-q", "-w", "50ms"], stdout=subprocess.PIPE,
                                    stderr=subprocess.PIPE)
        assert watching.stdout.readline() == b"/dev/shm/x-first\n"
    assert watching.wait(60) == 5
    assert b"process" in watching.stderr.read()
    watching.stdout.close()
    watching.stderr.close()


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
    ended = tool("leaks", **as_nobody())
    assert ended.returncode in (6, 7), ended
    assert b"not seen: " in ended.stdout
    ended = tool("gc", "--yes", str(path), **as_nobody())
    assert ended.returncode == 4 and path.exists(), ended
    ended = tool("gc", "--yes", "--json", *HERE, **as_nobody())
    assert path.exists() and not own.exists(), ended
    assert tool("map", "1", **as_nobody()).returncode == 4


@case
def a_process_that_is_not_there_is_not_found():
    assert tool("map", str(dead_pid())).returncode == 5
    assert tool("map", "0").returncode == 2
    assert tool("map").returncode == 2


@case
def what_is_no_process_id_is_said():
    for word in ("abc", "0", "-3", "1x", "99999999999"):
        ended = tool("map", "--", word)
        assert ended.returncode == 2 and f"'{word}' is no process id".encode() in ended.stderr, ended


@case
def a_file_system_without_a_limit_is_as_full_as_its_files():
    """statvfs(3) says nothing of it: a use of zero would not be true."""
    script = ("mount -t tmpfs -o nr_blocks=0 none /dev/shm && printf x > /dev/shm/a && "
              f"exec {TOOL} list --all --json -f where=/dev/shm")
    ended = subprocess.run(["unshare", "--mount", "sh", "-c", script], capture_output=True, check=False)
    (mount,) = [it for it in checked(ended.stdout)["mounts"] if it["path"] == "/dev/shm"]
    assert (mount["size"], mount["used"], mount["listed"]) == (0, PAGE, PAGE), mount


@case
def the_use_of_a_file_system_without_a_limit_whose_files_are_not_listed_is_unknown():
    script = f"mount -t tmpfs -o nr_blocks=0 none /mnt && printf x > /mnt/a && exec {TOOL} list --all --json"
    ended = subprocess.run(["unshare", "--mount", "sh", "-c", script], capture_output=True, check=False)
    (mount,) = [it for it in checked(ended.stdout)["mounts"] if it["path"] == "/mnt"]
    assert (mount["size"], mount["used"], mount["shared_memory"]) == (None, None, False), mount


def in_a_mount_namespace(path):
    """A process in a mount namespace of its own that holds the file. Gives it when it holds the file."""
    script = f"import signal; file = open('{path}', 'r+b'); print(flush=True); signal.pause()"
    process = subprocess.Popen(["unshare", "--mount", sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"\n"
    return process


@case
def map_ends_with_7_only_where_something_of_its_process_is_hidden():
    file = plant("seen")
    process = in_a_mount_namespace(file)
    own_mounts = f"/proc/{process.pid}/mountinfo"
    try:
        os.chown(file, 65534, 65534)
        # Of other users' processes nobody sees nothing: that hides peers, and nothing of its own process.
        mine = subprocess.Popen(["sleep", "100"], **as_nobody())
        code, document = tool_json("map", str(mine.pid), **as_nobody())
        mine.kill()
        mine.wait()
        assert code == 0 and not document["saw_all"] and document["process"]["not_seen"] == [], (code, document)
        code, document = tool_json("map", str(process.pid))
        assert code == 0 and document["process"]["not_seen"] == [], (code, document)
        # The first page of a process's memory cannot be read.
        subprocess.run(["mount", "--bind", f"/proc/{os.getpid()}/mem", own_mounts], check=True)
        code, document = tool_json("map", str(process.pid))
        (sentence,) = document["process"]["not_seen"]
        assert code == 7 and f"the mounts of process {process.pid} cannot be read" in sentence, (code, document)
        ended = tool("map", str(process.pid))
        assert ended.returncode == 7 and b"not seen: the mounts of process" in ended.stdout, ended
        assert tool("map", str(os.getpid())).returncode == 0
    finally:
        subprocess.run(["umount", own_mounts], check=False, stderr=subprocess.DEVNULL)
        process.kill()
        process.wait()


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


@case
def a_number_that_lives_in_a_container_is_a_creator_of_files_and_none_of_segments():
    number = dead_pid() + 1000  # of no process here
    while Path(f"/proc/{number}").exists():
        number += 1
    script = (f"mount -t proc proc /proc && echo {number - 1} > /proc/sys/kernel/ns_last_pid && "
              "{ sleep 100 & echo $!; wait; }")
    container = subprocess.Popen(["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script],
                                 stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        if container.stdout.readline() != f"{number}\n".encode():
            raise Skip("no number can be chosen in a PID namespace here")
        plant(f"torch_{number}_1_1")
        plant(f"torch_{number + 1}_1_1")
        _, document = tool_json("leaks", *HERE)
        verdicts = {it["name"]: it["verdict"] for it in document["objects"]}
        assert verdicts == {f"torch_{number}_1_1": "idle", f"torch_{number + 1}_1_1": "orphan"}, verdicts
        text = tool("leaks", "--why", f"torch_{number}_1_1").stdout.decode()
        assert f"is {number} in its PID namespace" in text, text
    finally:
        container.kill()
        container.wait()


@case
def list_says_which_bytes_are_in_memory_and_which_cgroup_pays():
    plant("a", 5)
    with Holder(SHM / "a", "mapped") as holder:
        words = ["list", "--all", *HERE, "-o", "object,touched,resident,cgroup,peers"]
        _, document = tool_json(*words)
        found = document["objects"][0]
        assert found["touched"] == found["resident"] == 5 * PAGE, found
        table = tool(*words).stdout.decode()
        assert re.search(r"^OBJECT +TOUCHED +RESIDENT +CGROUP +PEERS$", table, re.M), table
        assert f"{holder.pid}:" in table, table
        if os.access("/proc/kpagecgroup", os.R_OK) and os.geteuid() == 0:
            # Written by this process, so charged to this process's cgroup, whoever maps it.
            paths = [line.rstrip("\n").split(":", 2)[2] for line in open("/proc/self/cgroup", encoding="utf-8")
                     if ":memory:" in line or line.startswith("0::")]
            assert len(found["cgroups"]) == 1, found
            assert any(path.endswith(found["cgroups"][0]) for path in paths) or "gone or not mounted" in found["cgroups"][0], \
                (found, paths)
        else:
            assert found["cgroups_unknown"], found
    plain = tool_json("list", "--all", *HERE)[1]["objects"][0]
    assert "cgroups" not in plain and "cgroups_unknown" not in plain


@case
def without_rights_the_charged_cgroup_is_unknown_and_the_reason_is_said():
    path = plant("a", 2)
    os.chown(path, 65534, 65534)
    ended = tool("list", "--all", *HERE, "-o", "object,cgroup", **as_nobody())
    assert b"unknown" in ended.stdout and b"/proc/kpagecgroup cannot be read: Permission denied" in ended.stdout, ended


@case
def looking_at_pages_touches_none():
    with open(SHM / "holes", "wb") as file:
        file.truncate(1000 * PAGE)
        for page in (0, 500, 999):
            file.seek(page * PAGE)
            file.write(b"x")
    before = os.stat(SHM / "holes").st_blocks
    assert before * 512 == 3 * PAGE
    assert tool("list", "--all", "-o", "+resident,cgroup", *HERE).returncode in (0, 7)
    assert os.stat(SHM / "holes").st_blocks == before


@case
def what_the_tool_adds_up_is_what_the_kernel_counts():
    """The sums of the tool grow by exactly what is made here, once what others have made meanwhile is taken away. Shmem
    of /proc/meminfo moves with every process of the machine, so much is made here, and one part in 100 may be others'."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.shmat.restype = ctypes.c_void_p
    files, memfds, segments, anonymous = 7500, 5000, 2500, 1250
    made = files + memfds + segments + anonymous

    def totals():
        Path("/proc/sys/vm/stat_refresh").write_text("1", encoding="utf-8")  # the kernel's counts are per processor
        document = tool_json("list", "--all")[1]
        objects = {it["id"]: it["touched"] or 0 for it in document["objects"]}  # null: not to be found out
        unnamed = {name: size for name, size in objects.items() if name.startswith(("memfd:", "sysv:", "anonymous:"))}
        return document["totals"], objects, unnamed

    seen = []
    for _ in range(30):
        clean()
        before, _, unnamed_before = totals()
        plant("a", files)
        memfd = os.memfd_create("planted")
        os.write(memfd, b"x" * (memfds * PAGE))
        segment = libc.shmget(0, segments * PAGE, 0o1600)
        ctypes.memset(libc.shmat(segment, None, 0), 1, segments * PAGE)
        shared = mmap.mmap(-1, anonymous * PAGE)
        shared.write(b"x" * (anonymous * PAGE))
        after, objects, unnamed = totals()
        own = {f"memfd:{os.fstat(memfd).st_ino}": memfds, f"sysv:{segment}": segments}
        assert objects["/dev/shm/a"] == files * PAGE
        assert all(objects[name] == pages * PAGE for name, pages in own.items())
        (fresh,) = [name for name, size in unnamed.items()
                    if name.startswith("anonymous:") and name not in unnamed_before and size == anonymous * PAGE]
        own[fresh] = anonymous
        shared.close()
        libc.shmctl(segment, 0, None)
        os.close(memfd)
        others = sum(size for name, size in unnamed.items() if name not in own) - sum(unnamed_before.values())
        grown = [(after[key] - before[key]) // PAGE for key in ("mounted", "unmounted", "shmem")]
        if grown[0] == files and grown[1] == made - files + others // PAGE and abs(grown[2] - made) <= made // 100:
            return
        seen.append(grown)
    raise AssertionError(f"of {files} pages in files and {made - files} elsewhere: {seen[-5:]}")


@case
def a_file_without_a_name_still_counts_on_its_file_system():
    path = plant("a", 9)
    with Holder(path, "open"):
        path.unlink()
        _, document = tool_json("list", "--all")
        mount = next(it for it in document["mounts"] if it["path"] == "/dev/shm")
        assert mount["listed"] == mount["used"] == 9 * PAGE, mount
        found = [it for it in document["objects"] if it["kind"] == "deleted" and it["where"] == "/dev/shm"]
        assert [it["touched"] for it in found] == [9 * PAGE] and found[0]["verdict"] == "held", found
        assert tool("gc", "--yes", found[0]["id"]).returncode == 4


@case
def a_file_without_a_name_on_another_dev_shm_is_named_by_a_way_that_leads_there():
    """Its holder calls it /dev/shm/x, as it would a file of this /dev/shm."""
    script = ("import os, signal; file = os.open('/dev/shm/x', os.O_RDWR | os.O_CREAT); os.unlink('/dev/shm/x'); "
              "os.write(file, b'x'); print('ready', flush=True); signal.pause()")
    other = subprocess.Popen(["unshare", "--mount", "sh", "-c", 'mount -t tmpfs tmpfs /dev/shm && exec "$@"', "sh",
                              sys.executable, "-c", script], stdout=subprocess.PIPE)
    try:
        assert other.stdout.readline() == b"ready\n"
        assert tool_json("list", "--all", *HERE)[1]["objects"] == []
        found = [it for it in tool_json("list", "--all")[1]["objects"] if it["where"] == f"/proc/{other.pid}/root/dev/shm"]
        assert [(it["name"], it["kind"], it["verdict"]) for it in found] == [("x", "deleted", "held")], found
    finally:
        other.kill()
        other.wait()


@case
def a_segment_of_another_ipc_namespace_has_an_id_of_its_own():
    script = ("import ctypes, os, signal; print(ctypes.CDLL(None).shmget(0, 8192, 0o1600), flush=True); signal.pause()")
    other = subprocess.Popen(["unshare", "--ipc", sys.executable, "-c", script], stdout=subprocess.PIPE)
    here = ctypes.CDLL(None).shmget(0, 4096, 0o1600)
    try:
        there = int(other.stdout.readline())
        namespace = os.stat(f"/proc/{other.pid}/ns/ipc").st_ino
        ids = tool("list", "--all", "-q", "-f", "kind=sysv").stdout.decode().split()
        assert f"sysv:{here}" in ids and f"sysv:{there}@{namespace}" in ids, ids
        assert tool("gc", "--yes", f"sysv:{there}@{namespace}").returncode == 0
        ids = tool("list", "--all", "-q", "-f", "kind=sysv").stdout.decode().split()
        assert f"sysv:{here}" in ids and f"sysv:{there}@{namespace}" not in ids, ids
    finally:
        other.kill()
        other.wait()
        ctypes.CDLL(None).shmctl(here, 0, None)


class LeasesOff:
    """The switch is the machine's. It is put back whatever happens, also where the case is killed."""
    SWITCH = Path("/proc/sys/fs/leases-enable")

    def __enter__(self):
        # Two such cases beside each other would restore the wrong value.
        self.lock = open(self.SWITCH, encoding="ascii")
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        before = self.lock.read()
        # The guard puts it back when the pipe ends with this process.
        script = 'trap "" TERM INT HUP; read -r _; printf "$1" > "$2"'
        self.guard = subprocess.Popen(["setsid", "sh", "-c", script, "sh", before, self.SWITCH], stdin=subprocess.PIPE)
        try:
            self.SWITCH.write_text("0\n", encoding="ascii")
        except OSError as reason:
            self.__exit__()
            raise Skip(f"{self.SWITCH} cannot be written: {reason.strerror}") from None
        return self

    def __exit__(self, *_):
        self.guard.stdin.close()
        self.guard.wait()
        self.lock.close()


@case
def where_leases_are_off_gc_says_so_and_removes_nothing_unless_it_is_told_to_trust_proc():
    lost = [plant(f"torch_{dead_pid()}_{number}_1") for number in range(2)]
    names = [str(path) for path in lost]
    with LeasesOff(), Holder(plant("held"), "mapped") as holder:
        plain = tool("gc", "--yes", *HERE)
        refused = tool("gc", "--yes", *names)
        left = [path.exists() for path in lost]
        code, document = tool_json("gc", "--yes", *names)
        trusting = tool("gc", "--yes", "--without-lease", *names, "held")
        held_left = Path(holder.path).exists()
        check = next(it for it in tool_json("doctor")[1]["checks"] if it["name"] == "leases")
    # Without a lease the verdict is orphan only where all processes could be looked into.
    assert plain.returncode in (4, 7) and b"fs.leases-enable is 0: the kernel cannot be asked" in plain.stdout, plain
    assert refused.returncode == 4 and left == [True, True], refused
    assert refused.stdout.count(b"the kernel gives no lease (fs.leases-enable is 0)") == 2, refused
    assert b"--without-lease trusts /proc alone" in refused.stdout, refused
    assert b"freed 0 B in 0 objects; 2 left alone" in refused.stdout, refused
    assert code == 4 and [it["outcome"] for it in document["plan"]] == ["refused", "refused"], document
    assert trusting.returncode == 4 and held_left and not any(path.exists() for path in lost), trusting
    assert check["verdict"] == "WARN" and "fs.leases-enable" in check["advice"], check


@case
def gc_of_another_users_file_says_that_leases_are_its_owners():
    lost, pid = plant(f"torch_{dead_pid()}_1_1"), dead_pid()
    lost.chmod(0o666)
    own = plant(f"torch_{pid}_2_1")
    os.chown(own, 65534, 65534)
    ended = tool("gc", "--yes", str(lost), str(own), **as_nobody())
    assert ended.returncode == 4 and lost.exists() and not own.exists(), ended
    assert b"run as its owner or as root" in ended.stdout, ended
    ended = tool("gc", "--yes", "--without-lease", str(lost), **as_nobody())
    assert ended.returncode == 4 and lost.exists(), ended  # the folder is sticky: another user's file stays
    with Holder(plant("held"), "mapped") as holder:
        ended = tool("gc", "--yes", "--without-lease", "held")
        assert ended.returncode == 4 and Path(holder.path).exists(), ended


sys.exit(inside.main(__file__))
