# SPDX-License-Identifier: Apache-2.0
"""The emulated machine: starts qemu, reads the results from its second serial line, and ends it at a deadline."""
import os
import selectors
import subprocess
import time

import image

LONGEST_TAIL = 40  # lines of the console that a failed machine shows


def qemu(kernel, boot, console, *more):
    # mitigations: they guard nothing here and cost emulated time. panic: a dead machine ends instead of waiting.
    # no_timer_check: on a busy host the kernel would take the emulated timer for a broken one, and panic.
    words = ("quiet", "panic=-1", "mitigations=off", "no_timer_check", "systemd.show_status=0", f"console={console}")
    return ["qemu-system-x86_64", "-machine", "pc", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2",
            "-m", "2048", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-kernel", kernel,
            "-initrd", boot, "-append", " ".join(words), *more]


def shell(kernel, boot):
    return subprocess.run(qemu(kernel, boot, "ttyS0", "-serial", "mon:stdio")).returncode


def lines_until(stream, deadline):
    """Whole lines, until the stream ends or time is up."""
    rest = b""
    os.set_blocking(stream.fileno(), False)
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while (left := deadline - time.monotonic()) > 0:
            if not selector.select(left):
                continue
            data = stream.read(65536)
            if not data:
                return
            *whole, rest = (rest + data).split(b"\n")
            for line in whole:
                yield line.decode(errors="replace").rstrip("\r")


def run_script(kernel, boot, script, timeout):
    """One script of guest/ on the machine that systemd runs. Its console is a file."""
    console = image.FOLDER / f"{script}.console"
    return run(qemu(kernel, boot, "ttyS0", "-serial", f"file:{console}", "-serial", "stdio"), script, console, timeout)


def run(command, script, console, timeout):
    """Boots, shows each result, and gives how many cases passed and failed. `console`: a file, None if there is none."""
    started = time.monotonic()
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as guest:
        try:
            good = bad = 0
            ended = False
            for line in lines_until(guest.stdout, started + timeout):
                if line == "begin":
                    print(f"   booted in {time.monotonic() - started:.0f} s", flush=True)
                    continue
                ended = line == "end"
                if ended:
                    break
                good += line.startswith("ok ")
                bad += line.startswith("FAIL ")
                print(f"   {line}", flush=True)
            spent = time.monotonic() - started
            if not ended:
                why = f"no end within {timeout:.0f} s" if spent >= timeout else "it stopped before its end"
                if console and console.exists():
                    tail = console.read_text(errors="replace").splitlines()[-LONGEST_TAIL:]
                    print("\n".join(f"   | {line}" for line in tail))
                print(f"   FAIL {script}: the machine gave no whole result: {why}{f' ({console})' if console else ''}",
                      flush=True)
                bad += 1
            print(f"   {spent:.0f} s", flush=True)
        finally:
            try:
                guest.wait(10 if ended else 0)  # it switches itself off
            except subprocess.TimeoutExpired:
                guest.kill()
    return good, bad
