# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests of the host verbs: a mount and IPC namespace with a /dev/shm of its own, so that every sum is
known; the tool; things to plant; cases. A test file ends with sys.exit(inside.main(__file__)). Its arguments: TOOL SCHEMAS
"""
import json
import mmap
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import jsonschema

warnings.simplefilter("ignore", DeprecationWarning)  # of RefResolver, where jsonschema is newer than Debian 12
TOOL, SCHEMAS = os.path.abspath(sys.argv[1]), Path(sys.argv[2]).resolve()
SHM = Path("/dev/shm")
PAGE = os.sysconf("SC_PAGESIZE")
cases = []


class Skip(Exception):
    pass


def case(function):
    cases.append(function)
    return function


def tool(*words, **options):
    return subprocess.run([TOOL, *words], capture_output=True, timeout=120, check=False, **options)


def checked(text):
    """The JSON document in `text`, after its schema has been applied."""
    document = json.loads(text)
    schema = json.loads((SCHEMAS / (document["schema"].replace("/", "-") + ".json")).read_text(encoding="utf-8"))
    validator = jsonschema.validators.validator_for(schema)
    resolver = jsonschema.RefResolver(base_uri=SCHEMAS.as_uri() + "/", referrer=schema)
    validator(schema, resolver=resolver).validate(document)
    return document


def tool_json(*words, **options):
    ended = tool(*words, "--json", **options)
    assert ended.stdout, ended.stderr
    return ended.returncode, checked(ended.stdout)


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


def as_nobody():
    return {"user": 65534, "group": 65534, "extra_groups": [], "env": {"PATH": os.environ["PATH"]}}


def until(happens, seconds=30):
    """Waits; a machine under load may take its time."""
    end = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


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


def run_cases():
    chosen, failed = os.environ.get("SHMB_HOST_CASE", ""), 0
    for function in cases:
        name = function.__name__.replace("_", " ")
        if chosen not in name:
            continue
        clean()
        try:
            function()
        except Skip as reason:
            print(f"SKIPPED: case: {name}: {reason}")
        except Exception as problem:  # the next case is worth knowing too
            failed += 1
            where = problem.__traceback__
            while where.tb_next is not None and where.tb_next.tb_frame.f_code.co_filename == function.__code__.co_filename:
                where = where.tb_next
            print(f"FAILED: {name}: line {where.tb_lineno}: {type(problem).__name__}: {problem}")
        else:
            print(f"passed: {name}")
        sys.stdout.flush()
    clean()
    return 1 if failed else 0


def main(script, own_pids=False):
    if os.environ.get("SHMB_HOST_TEST") == "inside":
        return run_cases()
    within = {**os.environ, "SHMB_HOST_TEST": "inside"}
    namespaces = ["unshare", "--mount", "--ipc"]
    setup = 'mount -t tmpfs -o mode=1777 tmpfs /dev/shm && exec "$@"'
    if own_pids:
        namespaces += ["--pid", "--fork", "--kill-child"]
        setup = "mount -t proc proc /proc && while umount -l /dev/shm 2> /dev/null; do :; done; " + setup
    probe = subprocess.run([*namespaces, "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"], capture_output=True, check=False)
    if probe.returncode != 0:
        print("SKIPPED: host verbs: no mount namespace is to be had here: " + probe.stderr.decode().strip())
        return 77
    return subprocess.run([*namespaces, "sh", "-c", setup, "sh", sys.executable, script, *sys.argv[1:]], env=within,
                          check=False).returncode
