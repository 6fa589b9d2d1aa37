#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The recipes for containers and for Slurm, as far as a machine without Docker, Kubernetes and Slurm can try them.

Usage: containers_test.py ROOT SHMBROKER SHMBROKERD. The scripts run for real, against a broker of this build. Of the
manifests the test reads what a cluster would refuse, or what would take a client's protection away. As root it also
starts the broker by the entry point of the container, with the capabilities that the manifest gives it and no others.
"""
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT, TOOL, DAEMON = (Path(word).resolve() for word in sys.argv[1:4])
CONTAINERS, SLURM = ROOT / "packaging/containers", ROOT / "packaging/slurm"


def run(*words, **environment):
    done = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env={**os.environ, **environment}, stdin=subprocess.DEVNULL)
    return done.returncode, done.stdout


def capabilities_of_the_broker():
    """Those of the manifest, which are those of compose.yaml too; without PyYAML only by their text."""
    manifest, compose = (CONTAINERS / "kubernetes.yaml").read_text(), (CONTAINERS / "compose.yaml").read_text()
    try:
        import yaml
    except ImportError:
        print("python3-yaml is missing: the manifests are read as text only")
        line = next(line for line in manifest.splitlines() if "add: [" in line)
        return [word.strip() for word in line.split("[", 1)[1].split("]", 1)[0].split(",")]
    space, daemon, pod = yaml.safe_load_all(manifest)
    spec = daemon["spec"]["template"]["spec"]
    assert daemon["kind"] == "DaemonSet" and space["kind"] == "Namespace" and pod["kind"] == "Pod"
    assert daemon["spec"]["selector"]["matchLabels"] == daemon["spec"]["template"]["metadata"]["labels"]
    broker, client = spec["containers"][0], pod["spec"]["containers"][0]
    volumes = {one["name"]: one["hostPath"] for one in spec["volumes"] + pod["spec"]["volumes"]}
    for container, read_only in ((broker, False), (client, True)):
        (mount,) = container["volumeMounts"]
        assert mount["mountPath"] == volumes[mount["name"]]["path"] == "/run/shmbroker", mount
        assert mount.get("readOnly", False) == read_only, f"{container['name']}: a client could write there"
        security = container["securityContext"]
        assert security["allowPrivilegeEscalation"] is False and security["capabilities"]["drop"] == ["ALL"], security
    assert "add" not in client["securityContext"]["capabilities"]
    added = broker["securityContext"]["capabilities"]["add"]
    services = yaml.safe_load(compose)["services"]
    assert services["broker"]["cap_add"] == added and services["broker"]["cap_drop"] == ["ALL"]
    for name in ("writer", "reader"):
        assert services[name]["volumes"] == ["sockets:/run/shmbroker:ro"], services[name]
        assert not {"cap_add", "privileged", "ipc", "shm_size"} & set(services[name]), services[name]
    return added


def slurm(folder):
    """Prolog, task prolog and epilog with the variables that Slurm sets, and a user who lost a segment."""
    tools = folder / "bin"
    tools.mkdir()
    (tools / "shmbroker").symlink_to(TOOL)
    (tools / "systemctl").write_text("#!/bin/sh\nexit 0\n")
    (tools / "systemctl").chmod(0o755)
    path, socket = f"{tools}:{os.environ['PATH']}", str(folder / "broker/socket")
    environment = dict(PATH=path, SHMBROKER_SOCKET=socket, SLURM_JOB_ID="7", SLURM_JOB_USER="mara")

    code, said = run(SLURM / "prolog", **environment)
    assert code != 0 and "job 7" in said and socket in said, f"a node without a broker takes jobs: {code} {said}"
    broker = subprocess.Popen([DAEMON, "--directory", folder / "broker", "--log-level", "error"])
    try:
        end = time.monotonic() + 60
        while not os.path.exists(socket) and time.monotonic() < end:
            time.sleep(0.02)
        code, said = run(SLURM / "prolog", **environment)
        assert (code, said) == (0, ""), f"{code} {said}"
        code, said = run("sh", "-c", f"$({SLURM}/task-prolog) && unset nothing; echo $SHMBROKER_SOCKET", **environment)
        assert code == 0 and said.strip() == socket, said
    finally:
        broker.send_signal(signal.SIGTERM)
        broker.wait()

    # The epilog never fails, whatever it gets. The request to the tool stands in a file.
    asked = folder / "asked"
    (tools / "shmbroker").unlink()
    (tools / "shmbroker").write_text(f'#!/bin/sh\necho "$@" >> {asked}\necho "cannot see"\nexit 7\n')
    (tools / "shmbroker").chmod(0o755)
    for user, wanted in (("mara", "gc --yes --filter user=mara\n"), ("", ""), ("root", ""), ("a b", ""), ("$(id)", "")):
        asked.write_text("")
        code, said = run(SLURM / "epilog", **{**environment, "SLURM_JOB_USER": user})
        assert code == 0 and asked.read_text() == wanted, f"{user!r}: {code}, {asked.read_text()!r}, {said}"
    assert "cannot see" in run(SLURM / "epilog", **environment)[1]


def entry_point(folder, added):
    """The entry point as root with the capabilities of the manifest: the broker serves another user."""
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        print("skipped: the entry point of the container needs root and setpriv")
        return
    capabilities = ",".join("+" + name.lower() for name in added)
    # The account of the image may be missing here, so the script runs with names that stand for one.
    names = folder / "names"
    names.mkdir()
    (names / "chown").write_text('#!/bin/sh\n[ "$1" = shmbroker:shmbroker ] && exec /bin/chown 64321:64321 "$2"\n')
    (names / "chown").chmod(0o755)
    folder.chmod(0o755)
    directory = folder / "run"
    directory.mkdir()
    broker = subprocess.Popen(
        ["setpriv", f"--bounding-set=-all,{capabilities}", "--no-new-privs", CONTAINERS / "broker-entry",
         "--user", "64321", "--log-level", "error"],
        env={**os.environ, "PATH": f"{names}:{os.environ['PATH']}", "SHMBROKER_DIRECTORY": str(directory),
             "SHMBROKER_PROGRAM": str(DAEMON)})
    try:
        end = time.monotonic() + 60
        while not os.path.exists(directory / "socket") and time.monotonic() < end and broker.poll() is None:
            time.sleep(0.02)
        code, said = run("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", TOOL, "status", "--socket",
                         directory / "socket", "--timeout", "60s")
        assert code == 0 and "system, version" in said, f"{code} {said}"
        assert os.stat(directory).st_uid == 64321 and stat.S_IMODE(os.stat(directory).st_mode) == 0o755
        facts = dict(line.split(":\t", 1) for line in Path(f"/proc/{broker.pid}/status").read_text().splitlines())
        may = int(Path("/proc/self/status").read_text().split("CapBnd:\t", 1)[1].split()[0], 16)
        assert int(facts["CapEff"], 16) == may & 1 << 24, f"the broker keeps {facts['CapEff']}, not SYS_RESOURCE alone"
    finally:
        broker.send_signal(signal.SIGTERM)
        broker.wait()


def main():
    added = capabilities_of_the_broker()
    for script in (CONTAINERS / "broker-entry", *SLURM.iterdir()):
        code, said = run("sh", "-n", script)
        assert code == 0 and os.access(script, os.X_OK), f"{script}: {said}"
    with tempfile.TemporaryDirectory() as name:
        slurm(Path(name))
    with tempfile.TemporaryDirectory() as name:
        entry_point(Path(name), added)


if __name__ == "__main__":
    main()
