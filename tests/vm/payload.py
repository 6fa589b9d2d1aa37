# SPDX-License-Identifier: Apache-2.0
"""The part that changes with each run: an installed tree of this source, and the tests with the unit that starts them.

The tree is a release build below /usr, as docs/security.md makes it (System mode from zero). The tests find it in
place, as an administrator would after `meson install`. The script `packages` gets the packages of tools/package
instead, and the same with the next version, to which it upgrades.
"""
import shutil
import subprocess
import sys
from pathlib import Path

import image

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = image.FOLDER / "system"
LOG = image.FOLDER / "system.log"
SETTINGS = ("--prefix=/usr", "--buildtype=release", "--unity=on", "--unity-size=100", "-Dtests=false", "-Dbench=false")

# StandardOutput: what a script prints beside its results is in the console's log.
UNIT = """[Unit]
Description=The cases {script}
After=multi-user.target
SuccessAction=poweroff-force
FailureAction=poweroff-force

[Service]
Type=oneshot
Delegate=yes
ExecStart=/usr/bin/python3 -B /test/start.py {script}
StandardOutput=journal+console
"""
SHELL = """[Unit]
Description=A shell on the console
After=multi-user.target
SuccessAction=poweroff-force
FailureAction=poweroff-force

[Service]
ExecStart=/bin/bash -i
StandardInput=tty-force
TTYPath=/dev/ttyS0
WorkingDirectory=/root
Environment=HOME=/root TERM=dumb
"""


def build():
    """Builds the tree that is installed in the machine."""
    print("   build", flush=True)
    with LOG.open("wb") as log:
        configure = [] if (BUILD / "build.ninja").exists() else [["meson", "setup", BUILD, *SETTINGS]]
        for command in [*configure, ["ninja", "-C", BUILD]]:
            if subprocess.run(command, cwd=ROOT, stdout=log, stderr=log).returncode != 0:
                log.flush()
                end = LOG.read_text(errors="replace")[-3000:]
                sys.exit(f"{end}\ntests/vm: the build failed; all of its output is in {LOG}")


def add_packages(into):
    """The packages in `this`, and in `next` the same files as version 99: what counts is how dpkg changes them."""
    packages = sorted((ROOT / "build/packages").glob("*.deb"))
    if not packages:
        sys.exit("tests/vm: there are no packages in build/packages: tools/package")
    (into / "this").mkdir(parents=True)
    (into / "next").mkdir()
    for package in packages:
        shutil.copy(package, into / "this")
        tree = into / "tree"
        subprocess.run(["dpkg-deb", "-R", package, tree], check=True)
        control = tree / "DEBIAN/control"
        facts = dict(line.split(": ", 1) for line in control.read_text().splitlines() if ": " in line)
        control.write_text(control.read_text().replace(facts["Version"], "99"))
        subprocess.run(["dpkg-deb", "-Znone", "-b", tree, into / "next" / f"{facts['Package']}.deb"], check=True,
                       stdout=subprocess.DEVNULL)
        shutil.rmtree(tree)


def archive(root, script):
    """One archive of the root and of this run's payload. Without a script it is a shell's."""
    folder = image.FOLDER / "payload"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if script == "packages":
        add_packages(folder / "packages")
    else:
        subprocess.run(["meson", "install", "-C", BUILD, "--no-rebuild", "--quiet", "--destdir", folder], check=True,
                       stdout=subprocess.DEVNULL)
    shutil.copytree(HERE / "guest", folder / "test", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(BUILD / "examples/main_job", folder / "test/main_job")
    shutil.copy(ROOT / "tests/exhaustion/exhaustion.py", folder / "test/exhaustion.py")
    units = folder / "etc/systemd/system"
    (units / "multi-user.target.wants").mkdir(parents=True)
    (units / "test.service").write_text(UNIT.format(script=script) if script else SHELL)
    (units / "multi-user.target.wants/test.service").symlink_to("../test.service")
    image.pack(folder, image.FOLDER / "payload.cpio", "--owner=+0:+0")
    both = image.FOLDER / "boot.cpio"
    with both.open("wb") as out:
        for part in (root, image.FOLDER / "payload.cpio"):
            with part.open("rb") as source:
                shutil.copyfileobj(source, out, 1 << 20)
    return both
