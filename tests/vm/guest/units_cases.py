# SPDX-License-Identifier: Apache-2.0
"""The units under systemd: what an administrator does, in the order of docs/security.md, and what can be wrong."""
import os
import shutil
import stat
import subprocess
from pathlib import Path

from support import (CONFIG, NOBODY, OTHER, PATH, SERVICE, SOCKET, DropIn, at, bad, case, cursor, good, has, journal,
                     main_pid, run, serves, settles, shown, state, status)


def stop_all():
    """Nothing runs, and no fault of an earlier case is left."""
    run("systemctl", "stop", SOCKET, SERVICE)
    run("systemctl", "reset-failed", SOCKET, SERVICE)
    CONFIG.unlink(missing_ok=True)
    good("systemd-sysusers")
    good("chown", "shmbroker:shmbroker", "/run/shmbroker")


def back_to_work():
    """After a fault was mended, two commands bring the service back, and it serves."""
    run("systemctl", "reset-failed", SOCKET, SERVICE)
    good("systemctl", "restart", SOCKET)
    serves()


def fails_to_start():
    """A client comes, the start fails, and the client is told. Gives what was told to the administrator."""
    since = cursor()
    # The client waits at the socket until systemd gives the service up: five starts in ten seconds.
    code, told = run("shmbroker", "status", "--socket", PATH, "--timeout", "100s", user=NOBODY)
    assert code == 3, f"the tool ended with {code}: {told}"
    settles(lambda: state(SERVICE) == "failed", "the service is given up")
    return journal(since), told


@case
def account_and_folder_are_made_by_systemd():
    good("systemd-sysusers")
    good("systemd-tmpfiles", "--create")
    facts = os.stat("/run/shmbroker")
    line = next(line for line in Path("/etc/passwd").read_text().splitlines() if line.startswith("shmbroker:"))
    assert facts.st_uid == int(line.split(":")[2]) != 0, line
    good("systemctl", "daemon-reload")


@case
def enabling_the_socket_starts_no_broker():
    assert "disabled" in run("systemctl", "is-enabled", SOCKET)[1]
    good("systemctl", "enable", "--now", SOCKET)
    assert good("systemctl", "is-enabled", SOCKET).strip() == "enabled"
    assert state(SOCKET) == "active" and state(SERVICE) == "inactive"
    facts = os.stat(PATH)
    assert stat.S_ISSOCK(facts.st_mode) and stat.S_IMODE(facts.st_mode) == 0o666, oct(facts.st_mode)
    assert facts.st_uid == os.stat("/run/shmbroker").st_uid


@case
def the_first_client_starts_the_broker():
    serves()
    assert state(SERVICE) == "active" and shown(SERVICE, "NRestarts") == "0"
    has(shown(SERVICE, "StatusText"), "serving /run/shmbroker in system mode")
    told = status(user=NOBODY)
    assert told["pid"] == main_pid(), told


@case
def the_broker_has_one_capability_and_the_sandboxes_of_unit_and_program():
    facts = dict(line.split(":", 1) for line in Path(f"/proc/{main_pid()}/status").read_text().splitlines())
    resource = 1 << 24  # CAP_SYS_RESOURCE
    for key in ("CapEff", "CapPrm", "CapBnd"):
        assert int(facts[key], 16) == resource, f"{key} is {facts[key]}"
    assert facts["NoNewPrivs"].strip() == "1" and facts["Seccomp"].strip() == "2", facts
    assert int(facts["Seccomp_filters"]) >= 2, "only one of the unit's filter and the broker's own"
    uid = os.stat("/run/shmbroker").st_uid
    assert facts["Uid"].split() == [str(uid)] * 4, facts["Uid"]
    assert set(facts["Groups"].split()) <= set(facts["Gid"].split()), facts["Groups"]
    table = Path(f"/proc/{main_pid()}/limits").read_text()
    assert "1048576" in next(line for line in table.splitlines() if line.startswith("Max open files"))


@case
def the_units_filter_lets_the_broker_do_its_work():
    told = status(user=NOBODY)
    assert told["engine"] == "io_uring", told
    # SO_PEERPIDFD and the like are newer than the machine's kernel. The sandbox is not.
    assert not [loss for loss in told["losses"] if "seccomp" in loss], told["losses"]
    since = cursor()
    data = os.urandom(3 << 20)
    Path("/tmp/data").write_bytes(data)
    good(*at("put"), "/tmp/data", "--name", "job")
    digest = good("sha256sum", "/tmp/data").split()[0]
    environment = {**os.environ, "SHMBROKER_SOCKET": PATH}
    good("/test/main_job", "checksum", "shell-0/job", digest, env=environment)
    good("/test/main_job", "exchange", env=environment)
    good("shmbroker", "run", "--name", "limited", "--limit", "8M", "--", "true", env=environment)
    good(*at("release"), "job")
    # The unit's filter answers EPERM, which the broker would report.
    assert "failed" not in journal(since), journal(since)


@case
def a_reload_applies_the_new_limits():
    CONFIG.write_text("[limits]\nuid_regions = 3\n")
    pid, since = main_pid(), cursor()
    good("systemctl", "reload", SERVICE)
    settles(lambda: "limits applied again" in shown(SERVICE, "StatusText"), "the status after the reload")
    assert main_pid() == pid and state(SERVICE) == "active"
    has(journal(since), "limits applied again", str(CONFIG))
    for number in range(3):
        good(*at("put"), "/etc/hostname", "--name", f"r{number}", user=NOBODY)
    refused = bad(*at("put"), "/etc/hostname", "--name", "r3", user=NOBODY)
    has(refused, "3", str(CONFIG))


@case
def a_reload_with_an_error_keeps_limits_and_regions():
    CONFIG.write_text("[limits]\nuid_regions = 9\nno_such_key = 1\n")
    pid, since = main_pid(), cursor()
    run("systemctl", "reload", SERVICE)
    settles(lambda: "stay as they were" in shown(SERVICE, "StatusText"), "the status after the reload")
    has(journal(since), "no_such_key", f"{CONFIG}:3")
    assert main_pid() == pid and state(SERVICE) == "active"
    bad(*at("put"), "/etc/hostname", "--name", "r3", user=NOBODY)
    assert good(*at("cat"), "r2", user=NOBODY) == "guest\n"
    CONFIG.unlink()
    good("systemctl", "reload", SERVICE)
    settles(lambda: "defaults" in shown(SERVICE, "StatusText"), "the limits without a file")
    for number in range(3):
        good(*at("release"), f"r{number}", user=NOBODY)


@case
def clients_that_connect_during_a_restart_wait_and_get_no_error():
    run("systemctl", "reset-failed", SERVICE)  # forgets the starts of earlier cases
    pid = main_pid()
    ask = f"for i in 1 2 3 4 5; do shmbroker status --timeout 60s --socket {PATH} || exit 1; done"
    asking = [subprocess.Popen(["sh", "-c", ask],
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for _ in range(3)]
    for _ in range(3):
        good("systemctl", "restart", SERVICE)
    told = [one.communicate(timeout=120)[0] for one in asking]
    # One that was in a session while its broker ended is told so. It is none that waited for a connection.
    for one, text in zip(asking, told):
        assert one.returncode == 0 or "ended" in text or "lost" in text, text
    assert main_pid() not in (0, pid) and os.path.exists(PATH)
    serves()


@case
def a_stopped_broker_comes_back_with_the_next_client():
    good("systemctl", "stop", SERVICE)
    assert state(SERVICE) == "inactive" and state(SOCKET) == "active"
    has(journal(), "stopped by a signal")
    serves()
    assert state(SERVICE) == "active"


@case
def a_killed_broker_is_started_again():
    run("systemctl", "reset-failed", SERVICE)
    pid = main_pid()
    os.kill(pid, 9)
    settles(lambda: main_pid() not in (0, pid) and state(SERVICE) == "active", "a new broker")
    assert int(shown(SERVICE, "NRestarts")) >= 1
    serves()


@case
def a_unit_started_twice_is_one_broker_and_a_second_program_is_refused():
    pid = main_pid()
    good("systemctl", "start", SERVICE)
    good("systemctl", "start", SOCKET)
    assert main_pid() == pid
    second = bad("/usr/libexec/shmbroker/shmbrokerd", "--system")
    has(second, "another shmbrokerd", str(pid), "/run/shmbroker")
    copy = Path("/run/systemd/system/second.service")
    shutil.copy(shown(SERVICE, "FragmentPath"), copy)
    text = copy.read_text().replace("Requires=shmbroker.socket\n", "")
    copy.write_text(text.replace("Restart=on-failure", "Restart=no"))
    good("systemctl", "daemon-reload")
    bad("systemctl", "start", "second.service")
    has(shown("second.service", "StatusText"), "another shmbrokerd", str(pid))
    run("systemctl", "reset-failed", "second.service")
    copy.unlink()
    good("systemctl", "daemon-reload")
    assert main_pid() == pid
    serves()


@case
def a_missing_account_is_named_and_can_be_made():
    stop_all()
    for name in ("passwd", "group", "shadow", "gshadow"):
        file = Path("/etc") / name
        if file.exists():
            lines = file.read_text().splitlines(True)
            file.write_text("".join(line for line in lines if not line.startswith("shmbroker:")))
    since = cursor()
    bad("systemctl", "start", SOCKET)
    bad("systemctl", "start", SERVICE)
    has(journal(since), "shmbroker.socket: Failed to resolve user shmbroker", "Dependency failed for shmbroker.service")
    by_hand = bad("/usr/libexec/shmbroker/shmbrokerd", "--system")
    has(by_hand, "'shmbroker'", "--user")
    stop_all()
    back_to_work()


@case
def a_folder_of_another_owner_is_refused_with_both_owners():
    stop_all()
    os.chown("/run/shmbroker", OTHER, OTHER)
    good("systemctl", "start", SOCKET)
    logged, told = fails_to_start()
    has(logged, f"belongs to uid {OTHER}", "/run/shmbroker")
    has(told, PATH)
    stop_all()
    back_to_work()


@case
def a_folder_that_cannot_be_written_is_named():
    stop_all()
    with DropIn(SERVICE, "[Service]\nReadWritePaths=\nReadOnlyPaths=/run/shmbroker\n"):
        good("systemctl", "start", SOCKET)
        logged, _ = fails_to_start()
        has(logged, "read-only file system", "/run/shmbroker/broker.lock")
        stop_all()
    back_to_work()


@case
def a_socket_that_is_not_ours_is_refused_with_the_key_to_change():
    for lines, sentence in (("FileDescriptorName=web", "FileDescriptorName="),
                            ("ListenSequentialPacket=\nListenStream=/run/shmbroker/socket", "ListenSequentialPacket="),
                            ("ListenSequentialPacket=\nListenStream=127.0.0.1:7000", "no UNIX socket")):
        stop_all()
        with DropIn(SOCKET, f"[Socket]\n{lines}\n"):
            good("systemctl", "start", SOCKET)
            since = cursor()
            bad("systemctl", "start", SERVICE)
            settles(lambda: state(SERVICE) == "failed", "the service is given up")
            has(journal(since), "the service manager passed descriptor", sentence)
            stop_all()
    back_to_work()


@case
def a_configuration_with_an_error_is_named_at_start():
    stop_all()
    CONFIG.write_text("[limits]\nuid_regions = \"many\"\n")
    good("systemctl", "start", SOCKET)
    logged, _ = fails_to_start()
    has(logged, f"{CONFIG}:2", "uid_regions")
    stop_all()
    back_to_work()


@case
def a_stopped_socket_leaves_no_file_and_a_private_broker_takes_over():
    stop_all()
    settles(lambda: not os.path.exists(PATH), "the socket's file goes")
    told = bad("shmbroker", "status", "--socket", PATH, user=NOBODY)
    has(told, PATH)
    good("shmbroker", "put", "/etc/hostname", "--name", "mine", user=OTHER)
    assert status(user=OTHER)["mode"] == "private", status(user=OTHER)
    good("shmbroker", "release", "mine", user=OTHER)
    good("systemctl", "start", SOCKET)
    serves()


@case
def disabling_undoes_enabling():
    good("systemctl", "disable", "--now", SOCKET)
    good("systemctl", "stop", SERVICE)
    assert "disabled" in run("systemctl", "is-enabled", SOCKET)[1]
    assert state(SERVICE) == state(SOCKET) == "inactive"
    left = sorted(os.listdir("/run/shmbroker"))
    assert left in ([], ["broker.lock"]), left


@case
def the_unit_is_closed_enough_in_the_eyes_of_systemd():
    table = good("systemd-analyze", "security", "--offline=true", "--no-pager", shown(SERVICE, "FragmentPath"))
    line = next(line for line in table.splitlines() if "Overall exposure level" in line)
    assert float(line.split(": ", 1)[1].split()[0]) <= 1.0, table
