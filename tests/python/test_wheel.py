# SPDX-License-Identifier: Apache-2.0
"""The wheel: what its files need, and what it can do in a venv that has nothing else."""
import importlib.machinery
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
WHEEL = os.environ.get("SHMBROKER_WHEEL", "")

needs_wheel = pytest.mark.skipif(not WHEEL, reason="SHMBROKER_WHEEL names no wheel (tools/wheel builds one)")


@pytest.fixture(scope="module")
def venv(tmp_path_factory):
    """Runs a command in a clean venv with the wheel, where no variable says where anything is."""
    place = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", place], check=True)
    subprocess.run([place / "bin/pip", "install", "-q", "--no-index", "--disable-pip-version-check", WHEEL], check=True)
    runtime = tmp_path_factory.mktemp("run")
    runtime.chmod(0o700)
    environment = {"PATH": f"{place}/bin:/usr/bin:/bin", "XDG_RUNTIME_DIR": str(runtime), "HOME": str(runtime)}

    def run(*command):
        done = subprocess.run(command, env=environment, cwd=runtime, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def test_what_is_built_here_runs_on_glibc_2_34_too():
    """The same sources, options of the linker and libraries as in the wheel."""
    import shmbroker
    sys.dont_write_bytecode = True
    loader = importlib.machinery.SourceFileLoader("wheel_tool", str(ROOT / "tools/wheel"))
    tool = importlib.util.module_from_spec(importlib.util.spec_from_loader("wheel_tool", loader))
    loader.exec_module(tool)
    with open("/proc/self/maps", encoding="ascii") as maps:
        library = next(line.split()[-1] for line in maps if "/libshmbroker.so" in line)
    daemon = os.environ["SHMBROKER_DAEMON"]
    files = [daemon, os.environ["SHMBROKER_TOOL"], library, str(Path(library).with_name("shmbroker-spawner")),
             sys.modules[shmbroker.Session.__module__].__file__]
    assert tool.too_new([tool.facts(file, file) for file in files]) == []


@needs_wheel
def test_each_file_runs_on_glibc_2_34_and_needs_nothing_else():
    done = subprocess.run(["/usr/bin/python3", ROOT / "tools/wheel", "--check", WHEEL], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert Path(WHEEL).name.startswith("shmbroker-") and "-cp311-abi3-manylinux_2_34_" in WHEEL
    assert len(done.stdout.splitlines()) == 5, done.stdout


@needs_wheel
def test_a_clean_venv_shares_memory_through_a_broker_of_the_wheel(venv):
    assert venv("python", "-c", "import shmbroker; s = shmbroker.SharedMemory('w', create=True, size=9); s.buf[0] = 7") == ""
    assert venv("python", "-c", "import shmbroker; s = shmbroker.SharedMemory('w'); print(s.buf[0]); s.unlink()") == "7\n"
    where = venv("python", "-c", "import os, shmbroker as s; print(os.readlink(f'/proc/{s.status().pid}/exe'))")
    assert where.endswith("site-packages/shmbroker/shmbrokerd\n")


@needs_wheel
def test_the_command_is_there_and_finds_the_fork_server(venv):
    assert "shmbrokerd" in venv("shmbroker", "status")
    assert sorted(venv("shmbroker", "run", "--nprocs", "2", "--", "sh", "-c", "echo $RANK").split("\n")) == [
        "", "[rank 0] 0", "[rank 1] 1"]


@needs_wheel
def test_the_import_brings_nothing_heavy(venv):
    loaded = venv("python", "-c", "import shmbroker, sys; print(*sys.modules)").split()
    assert {"numpy", "torch", "multiprocessing", "asyncio", "subprocess"} & set(loaded) == set()
