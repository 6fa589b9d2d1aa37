# SPDX-License-Identifier: Apache-2.0
"""The facts that every result needs beside it: date, commit, driver, kernel, container runtime, persistence, MIG and
nodes. Nothing here holds the device open afterwards: NVIDIA's management library is loaded in a child."""

import ctypes
import glob
import importlib.metadata
import json
import os
import subprocess
import sys

import asking


def first_line(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.readline().strip()
    except OSError:
        return ""


def container_runtime():
    """By what each of them leaves where a program sees it."""
    found = []
    version = first_line("/proc/version")
    if "gVisor" in version or (os.path.isdir("/proc/driver/nvidia") and not os.path.isdir("/proc/driver/nvidia/gpus")):
        found.append("gVisor")
    for path, name in (("/.dockerenv", "docker"), ("/run/.containerenv", "podman"),
                       ("/var/run/secrets/kubernetes.io", "kubernetes")):  # fmt: skip
        if os.path.exists(path):
            found.append(name)
    try:
        with open("/proc/1/environ", "rb") as file:
            found += [one[10:].decode() for one in file.read().split(b"\0") if one.startswith(b"container=")]
    except OSError:
        pass
    vendor = first_line("/sys/class/dmi/id/sys_vendor")
    if vendor:
        found.append(f"machine of {vendor}")
    return ", ".join(dict.fromkeys(found)) or "none seen"


def card():
    """In this process, which ends after it."""
    library = ctypes.CDLL("libnvidia-ml.so.1")
    device, text = ctypes.c_void_p(), ctypes.create_string_buffer(96)
    persistence, mig, pending = ctypes.c_int(-1), ctypes.c_uint(), ctypes.c_uint()
    if library.nvmlInit_v2() != 0 or library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) != 0:
        sys.exit("the management library gives no device")
    found = {"driver": "", "persistence": "not told", "mig": "not told"}
    if library.nvmlSystemGetDriverVersion(text, 96) == 0:
        found["driver"] = text.value.decode()
    if library.nvmlDeviceGetPersistenceMode(device, ctypes.byref(persistence)) == 0:
        found["persistence"] = "on" if persistence.value else "off"
    if library.nvmlDeviceGetMigMode(device, ctypes.byref(mig), ctypes.byref(pending)) == 0:
        found["mig"] = "on" if mig.value else "off"
    return found


def ask_card():
    try:
        done = subprocess.run([sys.executable, "-B", __file__], capture_output=True, text=True, timeout=30, check=True,
                              preexec_fn=asking.die_with_parent)  # fmt: skip
        return json.loads(done.stdout)
    except (subprocess.SubprocessError, ValueError):
        return {"driver": "", "persistence": "not told", "mig": "not told"}


def version_of(package):
    """Without loading it."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def runs(program):
    """Whether a process of that name is there."""
    return any(first_line(path).startswith(program[:15]) for path in glob.glob("/proc/[0-9]*/comm"))


def header(commit, fake):
    told = {"driver": "fake", "persistence": "not told", "mig": "not told"} if fake else ask_card()
    persistence = told["persistence"] + (", nvidia-persistenced runs" if runs("nvidia-persistenced") else "")
    return {
        "date": asking.now(),
        "commit": commit,
        "fake": fake,
        "driver": told["driver"] or first_line("/proc/driver/nvidia/version") or "not told",
        "kernel": " ".join(os.uname()[i] for i in (0, 2, 3, 4)),
        "runtime": container_runtime(),
        "persistence": persistence,
        "mig": told["mig"],
        "nodes": sorted(glob.glob("/dev/nvidia*")),
        "python": sys.version.split()[0],
        "torch": version_of("torch"),
    }


if __name__ == "__main__":
    print(json.dumps(card()))
