# SPDX-License-Identifier: Apache-2.0
"""The kills of shared_memory_kills.py, in short."""
import subprocess
import sys
from pathlib import Path


def test_killed_programs_leave_their_names_and_nothing_else(broker):
    program = Path(__file__).with_name("shared_memory_kills.py")
    done = subprocess.run([sys.executable, program, "--kills", "40", "--seed", "7"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "40 kills" in done.stdout and done.stderr == ""
