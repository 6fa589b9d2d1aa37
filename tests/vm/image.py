# SPDX-License-Identifier: Apache-2.0
"""The system that boots: Debian's kernel for clouds and a root by debootstrap, kept in build/vm until their recipe
changes.

The mirror is the first one of this release that apt is configured with. It is asked of apt, and written nowhere. The
kernel is unpacked and never installed, so nothing of the host's own /boot is touched.
"""
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "build" / "vm"

# Programs that the tests call, and those that our packages need beside libc and libgcc.
PACKAGES = ("systemd-sysv", "kmod", "iproute2", "procps", "python3", "libssl3", "libstdc++6", "strace")
# Of the kernel's modules those of networks, and what these need: sch_netem, veth, wireguard.
MODULES = ("kernel/net", "kernel/drivers/net", "kernel/lib", "kernel/crypto", "kernel/arch/x86/crypto")
DOCUMENTATION = ("usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info", "var/cache/apt",
                 "var/lib/apt/lists")
# Their waits would be most of a boot, and nobody logs in.
MASKED = ("getty.target", "systemd-timesyncd.service",
          "apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_all.timer",
          "e2scrub_reap.service", "systemd-firstboot.service")


def words(*command, **options):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, **options).stdout.split()


def release():
    facts = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    return facts.get("VERSION_CODENAME", "").strip('"')


def mirror():
    """Address and release of Debian's archive as apt has it."""
    wanted = release()
    shown = subprocess.run(["apt-get", "indextargets", "--format", "$(SITE) $(CODENAME) $(COMPONENT)",
                            "Created-By: Packages"], check=True, stdout=subprocess.PIPE, text=True).stdout
    for line in shown.splitlines():
        site, codename, component = (line.split(" ") + ["", ""])[:3]
        if codename == wanted and component == "main":
            return site, wanted
    sys.exit(f"tests/vm: apt knows no archive of Debian's release {wanted!r}: run apt-get update first")


def step(what, *command, **options):
    """Runs a command whose output matters only if it fails."""
    print(f"   {what}", flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if done.returncode != 0:
        sys.exit(f"{done.stdout[-3000:]}\ntests/vm: {what} failed (status {done.returncode}): {command}")


def unpack_kernel(into, newest="linux-image-cloud-amd64"):
    """Downloads the kernel's package and gives the path of the kernel in it."""
    shown = words("apt-cache", "depends", "--no-recommends", "--no-suggests", newest)
    # The name without a number depends on the newest kernel.
    package = [word for word in shown if word.startswith("linux-image-")][-1]
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    step(f"kernel: {package}", "apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", package, cwd=into)
    archive = next(into.glob("*.deb"))
    step("kernel: unpack", "dpkg-deb", "-x", archive, into)
    archive.unlink()
    return next(into.glob("boot/vmlinuz-*"))


def add_modules(kernel, root):
    version = kernel.name.removeprefix("vmlinuz-")
    source, target = kernel.parent.parent / "lib/modules" / version, root / "usr/lib/modules" / version
    for folder in MODULES:
        if (source / folder).is_dir():
            shutil.copytree(source / folder, target / folder, dirs_exist_ok=True)
    for name in ("modules.builtin", "modules.builtin.modinfo", "modules.order"):
        shutil.copy(source / name, target / name)
    step("kernel: modules", "depmod", "-b", root, version)


def prepare(root):
    """Leaves out what only people read, and tells systemd that this is no first boot."""
    for folder in DOCUMENTATION:
        shutil.rmtree(root / folder, ignore_errors=True)
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "var/cache/apt/archives/partial").mkdir(parents=True, exist_ok=True)
    (root / "init").symlink_to("usr/lib/systemd/systemd")
    # Else systemd would enable every unit by its presets, and a case could not see that ours is disabled.
    (root / "etc/machine-id").write_text("5b6d7a2c1f4e4d0c9a8b7c6d5e4f3a2b\n")
    (root / "etc/hostname").write_text("guest\n")
    (root / "etc/fstab").write_text("")
    for unit in MASKED:
        link = root / "etc/systemd/system" / unit
        link.unlink(missing_ok=True)
        link.symlink_to("/dev/null")
    (root / "etc/.updated").touch()
    (root / "var/.updated").touch()


def pack(folder, archive, *options):
    """An archive as the kernel unpacks it; the order is that of the names."""
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
    with archive.open("wb") as out:
        subprocess.run(["cpio", "--null", "--create", "--format=newc", "--quiet", *options], cwd=folder, stdout=out,
                       input="\0".join(names).encode() + b"\0", check=True)


def ready():
    """The kernel and the archive of the root; made if there are none of this recipe."""
    recipe = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    kernel, archive, mark = FOLDER / "vmlinuz", FOLDER / "root.cpio", FOLDER / "recipe"
    if archive.exists() and kernel.exists() and mark.exists() and mark.read_text() == recipe:
        return kernel, archive
    for program in ("debootstrap", "qemu-system-x86_64", "cpio", "depmod"):
        if not shutil.which(program):
            sys.exit(f"tests/vm: {program} is missing: tools/install-packages vm")
    site, codename = mirror()
    FOLDER.mkdir(parents=True, exist_ok=True)
    mark.unlink(missing_ok=True)
    root = FOLDER / "root"
    # A debootstrap that was killed leaves it.
    subprocess.run(["umount", "--recursive", root / "proc"], stderr=subprocess.DEVNULL)
    shutil.rmtree(root, ignore_errors=True)
    unpacked = unpack_kernel(FOLDER / "kernel")
    step(f"root: debootstrap of {codename}", "debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}",
         codename, root, site)
    add_modules(unpacked, root)
    prepare(root)
    shutil.copy(unpacked, kernel)
    print("   root: archive", flush=True)
    pack(root, archive)
    shutil.rmtree(FOLDER / "kernel")
    mark.write_text(recipe)
    print(f"   root: {archive.stat().st_size / 2**20:.0f} MiB", flush=True)
    return kernel, archive
