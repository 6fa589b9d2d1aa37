# SPDX-License-Identifier: Apache-2.0
"""Helps the cases of a guest: a list of cases, commands, waits that end, and what the broker says of itself."""
import json
import subprocess
import time
from pathlib import Path

SERVICE, SOCKET = "shmbroker.service", "shmbroker.socket"
PATH = "/run/shmbroker/socket"
CONFIG = Path("/etc/shmbroker.conf")
NOBODY, OTHER = 65534, 65533
CASES = []
PATIENCE = 240  # seconds; an emulated machine is slow, and beside other work slower


def case(function):
    """A case is a function; its name is its sentence. Cases run in the order in which they stand."""
    CASES.append(function)
    return function


def run(*words, user=None, stdin="", env=None):
    """Runs a command and gives its status and its output, both streams together."""
    prefix = ("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups") if user is not None else ()
    done = subprocess.run([*prefix, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, input=stdin,
                          timeout=PATIENCE * 2, env=env, cwd="/")
    return done.returncode, done.stdout


def good(*words, **options):
    """Runs a command that has to succeed, and gives its output."""
    status, output = run(*words, **options)
    assert status == 0, f"`{' '.join(words)}` gave {status}: {output.strip()[-800:]}"
    return output


def bad(*words, **options):
    """Runs a command that has to fail, and gives its output."""
    status, output = run(*words, **options)
    assert status != 0, f"`{' '.join(words)}` succeeded: {output.strip()[-800:]}"
    return output


def settles(condition, what):
    """Waits until the condition holds; its last value is in the failure."""
    end = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < end, f"{what}: still not after {PATIENCE} s"
        time.sleep(0.1)
    return value


def shown(unit, key):
    return good("systemctl", "show", "--value", "-p", key, unit).strip()


def state(unit):
    return shown(unit, "ActiveState")


def main_pid():
    return int(shown(SERVICE, "MainPID"))


def status(**options):
    return json.loads(good("shmbroker", "status", "--json", "--timeout", "60s", **options))["broker"]


def journal(since=None):
    """The log of the service, from a cursor on."""
    return good("journalctl", "-q", "-o", "cat", "--no-pager", "-u", SERVICE, "-u", SOCKET,
                *(["--after-cursor", since] if since else []))


def cursor():
    shown_ = good("journalctl", "-q", "-n", "0", "--show-cursor", "--no-pager")
    return shown_.partition("-- cursor: ")[2].strip()


def has(text, *parts):
    for part in parts:
        assert part in text, f"{part!r} is not in: {text.strip()[-1500:]}"


def at(verb):
    """The tool with the system's broker and no other, and with patience for a slow machine."""
    return "shmbroker", verb, "--socket", PATH, "--timeout", "60s"


def serves(user=NOBODY):
    """A whole round with the broker: a region is made, read and released."""
    good(*at("put"), "/etc/hostname", "--name", "round", user=user)
    assert good(*at("cat"), "round", user=user) == "guest\n"
    good(*at("release"), "round", user=user)


class DropIn:
    """A setting that an administrator adds to a unit, for one case."""

    def __init__(self, unit, text):
        self.file = Path(f"/run/systemd/system/{unit}.d/case.conf")
        self.text = text

    def __enter__(self):
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(self.text)
        good("systemctl", "daemon-reload")

    def __exit__(self, *what):
        self.file.unlink()
        self.file.parent.rmdir()
        good("systemctl", "daemon-reload")
