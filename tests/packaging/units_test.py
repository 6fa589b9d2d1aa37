#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The units of the system broker: systemd accepts them, finds them closed enough, and makes account and folder.

Usage: units_test.py ROOT SHMBROKERD. Skipped (77) where systemd's programs are missing. systemd itself need not run.
"""
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

MOST_EXPOSURE = 1.0


def run(*words):
    return subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def exposure(service):
    shown = run("systemd-analyze", "security", "--offline=true", "--no-pager", str(service))
    for line in shown.stdout.splitlines():
        if "Overall exposure level" in line:
            return float(line.split(": ", 1)[1].split()[0]), shown.stdout
    sys.exit(f"systemd-analyze security gave no level:\n{shown.stdout}")


def main():
    root, daemon = Path(sys.argv[1]), Path(sys.argv[2]).resolve()
    if not shutil.which("systemd-analyze"):
        print("skipped: systemd-analyze is not installed")
        return 77
    units = root / "packaging/systemd"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        service, socket = folder / "shmbroker.service", folder / "shmbroker.socket"
        text = (units / "shmbroker.service.in").read_text().replace("@daemon@", str(daemon))
        service.write_text(text)
        socket.write_text((units / "shmbroker.socket").read_text())

        # The judge first: a unit without the sandbox must be found open, and one with a wrong key must be refused.
        bare = folder / "bare.service"
        bare.write_text(f"[Service]\nExecStart={daemon}\n")
        assert exposure(bare)[0] > 9, "systemd-analyze security does not judge"
        bare.write_text(f"[Service]\nExecStart={daemon}\nNoSuchKey=1\n")
        assert "NoSuchKey" in run("systemd-analyze", "verify", "--man=no", str(bare)).stdout, "verify does not look"

        # Without this call the broker would serve without its own filter: systemd 252 has it in none of the sets above.
        filters = [line.split("=", 1)[1].split() for line in text.splitlines() if line.startswith("SystemCallFilter=")]
        assert any("seccomp" in words for words in filters), "the unit's filter keeps the broker from loading its own"

        level, table = exposure(service)
        assert level <= MOST_EXPOSURE, f"exposure {level} is over {MOST_EXPOSURE}:\n{table}"
        for unit in (service, socket):
            verified = run("systemd-analyze", "verify", "--man=no", str(unit))
            about = [line for line in verified.stdout.splitlines() if "shmbroker" in line]
            assert verified.returncode == 0 and not about, f"{unit.name}: {verified.stdout}"

        # Without root, or without these programs, this much was looked at.
        if os.geteuid() != 0 or not (shutil.which("systemd-sysusers") and shutil.which("systemd-tmpfiles")):
            print(f"exposure {level}; account and folder not tried: needs root, systemd-sysusers and systemd-tmpfiles")
            return 0
        host = folder / "host"
        (host / "etc").mkdir(parents=True)
        (host / "run").mkdir()
        made = run("systemd-sysusers", f"--root={host}", str(units / "shmbroker.sysusers"))
        assert made.returncode == 0, made.stdout
        line = next(line for line in (host / "etc/passwd").read_text().splitlines() if line.startswith("shmbroker:"))
        account = pwd.struct_passwd([int(word) if place in (2, 3) else word for place, word in enumerate(line.split(":"))])
        assert account.pw_uid != 0 and account.pw_shell.endswith("nologin"), line
        made = run("systemd-tmpfiles", f"--root={host}", "--create", str(units / "shmbroker.tmpfiles"))
        facts = (host / "run/shmbroker").stat()
        assert (facts.st_uid, facts.st_gid, facts.st_mode & 0o7777) == (account.pw_uid, account.pw_gid, 0o755), made.stdout
    print(f"exposure {level}, at most {MOST_EXPOSURE}; account and folder made")
    return 0


if __name__ == "__main__":
    sys.exit(main())
