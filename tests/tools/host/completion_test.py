#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Completion scripts know each verb and each option of --help, and bash's completes. Usage: completion_test.py TOOL"""
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

TOOL = os.path.abspath(sys.argv[1])


def output(*words):
    return subprocess.run([TOOL, *words], capture_output=True, text=True, check=True).stdout


def complete(script, line):
    """The words that bash offers for the last word of `line`."""
    words = line.split(" ")
    program = (f"source {script}; COMP_WORDS=({' '.join(repr(word) for word in words)}); COMP_CWORD={len(words) - 1}; "
               "_shmbroker; printf '%s\\n' \"${COMPREPLY[@]}\"")
    environment = {**os.environ, "PATH": os.path.dirname(TOOL) + ":" + os.environ["PATH"]}
    return subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True,
                          env=environment).stdout.split()


def main():
    scripts = {shell: output("completion", shell) for shell in ("bash", "zsh", "fish")}
    verbs = re.findall(r"^  ([a-z]+) {2,}", output("--help"), re.MULTILINE)
    assert len(verbs) >= 12, verbs
    for verb in verbs:
        options = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", "\n".join(
            line for line in output(verb, "--help").splitlines() if re.match(r"^  +-", line))))
        assert "--help" in options, (verb, options)
        for shell, script in scripts.items():
            assert re.search(rf"\b{verb}\b", script), (shell, verb)
            for option in options:
                word = option if shell != "fish" else "-l " + option[2:]
                assert word in script, (shell, verb, option)
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "completion"
        script.write_text(scripts["bash"])
        assert complete(script, "shmbroker le") == ["leaks"]
        assert complete(script, "shmbroker gc --dr") == ["--dry-run"]
        assert complete(script, "shmbroker completion b") == ["bash"]
        assert str(os.getpid()) in complete(script, f"shmbroker map {os.getpid()}")
        inside = Path(folder) / "some-file"
        inside.touch()
        assert complete(script, f"shmbroker put {folder}/some") == [str(inside)]
    refused = subprocess.run([TOOL, "completion", "csh"], capture_output=True, text=True, check=False)
    assert refused.returncode == 2 and "bash, zsh or fish" in refused.stderr, refused
    return 0


sys.exit(main())
