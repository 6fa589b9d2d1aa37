# SPDX-License-Identifier: Apache-2.0
"""The part that changes with each run: what the packages of tools/package install, and the tests with the unit that
starts them.

The tests find the files in place, as an administrator would. The script `packages` gets the packages themselves instead,
and the same with the next version, to which it upgrades. Packages of another source are refused: they are compared with
the tarball from which they were made.
"""
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import image

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PACKAGES = ROOT / "build/packages"
SYSTEM = image.FOLDER / "system"
# Parts of the source on which no package depends, but for the text of its documents.
UNUSED = ("tests/", "docs/", "NEWS.md", "README.md", "CONTRIBUTING.md")

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


def check_packages():
    """The packages must be of this source, except for UNUSED."""
    sources = sorted(PACKAGES.glob("*.orig.tar.xz"))
    if not sources or not list(PACKAGES.glob("*.deb")):
        sys.exit(f"tests/vm: there are no packages in {PACKAGES}: tools/package")
    with tarfile.open(sources[-1]) as source:
        for member in source:
            path = member.name.partition("/")[2]
            if not member.isfile() or path.startswith(UNUSED):
                continue
            now = ROOT / path
            if not now.is_file() or now.read_bytes() != source.extractfile(member).read():
                sys.exit(f"tests/vm: {path} has changed since the packages were made: tools/package")


def build():
    """Unpacks what the packages install, and compiles the job of the README against it."""
    check_packages()
    print("   packages", flush=True)
    shutil.rmtree(SYSTEM, ignore_errors=True)
    for package in sorted(PACKAGES.glob("*.deb")):
        subprocess.run(["dpkg-deb", "-x", package, SYSTEM], check=True)
    # In the root /lib is a link to /usr/lib, in whose place the kernel would put a folder.
    shutil.copytree(SYSTEM / "lib", SYSTEM / "usr/lib", symlinks=True, dirs_exist_ok=True)
    shutil.rmtree(SYSTEM / "lib")
    library = next(SYSTEM.glob("usr/lib/*/libshmbroker.so"))
    sources = sorted((ROOT / "examples/main_job").glob("*.cpp"))
    image.step("examples/main_job", "g++", "-std=c++20", "-O2", "-pthread", "-I", SYSTEM / "usr/include", *sources,
               library, "-lcrypto", "-o", image.FOLDER / "main_job")


def add_packages(into):
    """The packages in `this`, and in `next` the same files as version 99: what counts is how dpkg changes them."""
    packages = sorted(PACKAGES.glob("*.deb"))
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
        shutil.copytree(SYSTEM, folder, symlinks=True, dirs_exist_ok=True)
    shutil.copytree(HERE / "guest", folder / "test", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(image.FOLDER / "main_job", folder / "test/main_job")
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
