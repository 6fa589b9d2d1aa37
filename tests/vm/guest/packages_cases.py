# SPDX-License-Identifier: Apache-2.0
"""The Debian packages on a host that had none: installed, used, upgraded while clients run, removed, purged."""
import os
import subprocess
from pathlib import Path

from support import bad, case, good, has, main_pid, run, settles, state

SERVICE, SOCKET = "shmbroker.service", "shmbroker.socket"
PATH = "/run/shmbroker/socket"
NAMES = ("shmbroker", "libshmbroker0", "libshmbroker-dev", "python3-shmbroker", "shmbroker-doc")
NOBODY = 65534
USES = {**os.environ, "SHMBROKER_SOCKET": PATH}

# A client that lives through upgrade and restart. Each line that it reads is one step.
CLIENT = """
import sys, shmbroker
session = shmbroker.connect("/run/shmbroker/socket", group="upgrade", timeout=60)
kept = session.create(4096, name="kept")
memoryview(kept)[:5] = b"alive"
print("ready", flush=True)
for number, step in enumerate(sys.stdin):
    try:
        if step.strip() == "again":
            session = shmbroker.connect("/run/shmbroker/socket", group="upgrade", timeout=60)
        made = session.create(4096, name=f"region{number}")
        print("made", bytes(memoryview(kept)[:5]).decode(), flush=True)
    except shmbroker.Error as failure:
        print(type(failure).__name__, bytes(memoryview(kept)[:5]).decode(), str(failure), flush=True)
"""
CLIENTS = []


def files_of_the_host():
    """The files that packages and administrators change; no logs, tables of dpkg and backups of the account files."""
    found = set()
    for top in ("/etc", "/usr", "/var", "/lib"):
        for place, folders, files in os.walk(top):
            folders[:] = [name for name in folders if f"{place}/{name}" not in
                          ("/var/log", "/var/lib/dpkg", "/var/cache", "/var/tmp", "/var/lib/systemd")]
            found |= {f"{place}/{name}" for name in files + folders if not name.endswith(("-", ".lock"))}
    return found


BEFORE = files_of_the_host()
ACCOUNTS = Path("/etc/passwd").read_text()


def install(folder):
    return good("dpkg", "-i", *sorted(map(str, Path(f"/packages/{folder}").glob("*.deb"))))


def versions():
    return set(good("dpkg-query", "-W", "-f", "${Version}\n", *NAMES).split())


@case
def an_installation_makes_the_account_and_starts_nothing():
    install("this")
    assert "shmbroker:" in Path("/etc/passwd").read_text()
    assert os.stat("/run/shmbroker").st_uid != 0
    assert "disabled" in run("systemctl", "is-enabled", SOCKET)[1]
    assert state(SOCKET) == state(SERVICE) == "inactive"
    has(good("shmbroker", "--version"), "0.")
    assert Path("/usr/share/doc/shmbroker/docs/README.md").exists(), "the documents are missing"


@case
def the_job_of_the_quickstart_runs():
    good("systemctl", "enable", "--now", SOCKET)
    data = os.urandom(5 << 20)
    Path("/tmp/data").write_bytes(data)
    digest = good("sha256sum", "/tmp/data").split()[0]
    good("shmbroker", "put", "--timeout", "60s", "/tmp/data", "--name", "compiler", env=USES)
    good("/test/main_job", "checksum", "shell-0/compiler", digest, env=USES)
    good("/test/main_job", "exchange", env=USES)
    write = "shm = SharedMemory('numbers', create=True, size=80); shm.buf.cast('d')[:] = array('d', range(10))"
    read = "shm = SharedMemory('numbers'); print('sum:', sum(shm.buf.cast('d'))); shm.unlink()"
    head = "from array import array; from shmbroker import SharedMemory; "
    good("python3", "-c", head + write, env=USES)
    has(good("python3", "-c", head + read, env=USES), "sum: 45.0")
    good("/test/main_job", "read-only", PATH, "20002", env=USES)
    status, said = run("shmbroker", "run", "--name", "small", "--limit", "8M", "--", "/test/main_job", "create", "64",
                       env=USES)
    assert status == 4, said
    good("shmbroker", "release", "compiler", env=USES)


def client():
    words = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "python3", "-c", CLIENT)
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True, cwd="/")
    assert process.stdout.readline() == "ready\n", process.stdout.read()
    CLIENTS.append(process)
    return process


def step(process, word):
    process.stdin.write(word + "\n")
    process.stdin.flush()
    return process.stdout.readline()


@case
def an_upgrade_leaves_broker_and_clients_alone():
    process, pid = client(), main_pid()
    before = versions()
    told = install("next")
    has(told, "systemctl restart shmbroker.service")
    assert versions() == {"99"} != before
    assert main_pid() == pid and state(SERVICE) == state(SOCKET) == "active"
    assert step(process, "go").split() == ["made", "alive"]
    # New programs and the broker of before.
    good("shmbroker", "put", "--timeout", "60s", "/etc/hostname", "--name", "new", env=USES, user=NOBODY)
    has(good("shmbroker", "list", "--timeout", "60s", env=USES, user=NOBODY), "new", "kept")


@case
def after_a_restart_clients_see_a_clear_error_and_connect_again():
    process, pid = CLIENTS[0], main_pid()
    good("systemctl", "restart", SERVICE)
    assert main_pid() not in (0, pid)
    lost = step(process, "go")
    has(lost, "SessionLost alive", "broker")
    assert step(process, "again").split() == ["made", "alive"]
    process.stdin.close()
    assert process.wait(60) == 0


@case
def removal_stops_broker_and_socket():
    pid = main_pid()
    good("dpkg", "-r", *NAMES)
    assert not os.path.exists(f"/proc/{pid}") and not os.path.exists(PATH)
    bad("which", "shmbroker")


@case
def a_purge_leaves_nothing():
    Path("/etc/shmbroker.conf").write_text("[limits]\n")
    good("dpkg", "-P", *NAMES)
    settles(lambda: run("systemctl", "cat", SERVICE)[0] != 0, "systemd forgets the unit")
    left = files_of_the_host() - BEFORE
    assert not left, sorted(left)
    assert Path("/etc/passwd").read_text() == ACCOUNTS, "the account is left"
    assert not os.path.exists("/run/shmbroker")
    shown = run("dpkg-query", "-W", *NAMES)[1]
    assert "0." not in shown and "99" not in shown, shown
