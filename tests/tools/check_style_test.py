#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/check-style in a small repository of its own: what it says of a wrong file, and of a program that is missing.
Usage: check_style_test.py TOOLS
"""
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

TOOLS = Path(sys.argv[1])
# The programs that the script itself calls, except the formatter.
PROGRAMS = ("bash", "cut", "dirname", "git", "grep", "head", "python3", "sort", "uniq")
SPDX = "// SPDX-License-Identifier: Apache-2.0\n"


def checked(source, *options, formatter):
    """The exit status of check-style, what it printed, and the source afterwards."""
    with tempfile.TemporaryDirectory(prefix="shmb style ") as name:
        home = Path(name)
        programs, repository = home / "bin", home / "repository"
        for folder in (programs, repository / "tools", repository / "proto"):
            folder.mkdir(parents=True)
        for program in PROGRAMS + ("clang-format-19",) * formatter:
            (programs / program).symlink_to(shutil.which(program))
        shutil.copy(TOOLS / "check-style", repository / "tools/check-style")
        shutil.copy(TOOLS.parent / ".clang-format", repository / ".clang-format")
        (repository / "proto/generate.py").write_text("# SPDX-License-Identifier: Apache-2.0\n")
        (repository / "some.cpp").write_text(source)
        environment = {"PATH": str(programs), "HOME": name}
        for command in (["git", "init", "-q"], ["git", "add", "."]):
            subprocess.run(command, cwd=repository, env=environment, check=True, timeout=60)
        done = subprocess.run([repository / "tools/check-style", *options], env=environment, capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, timeout=60)
        return done.returncode, done.stdout + done.stderr, (repository / "some.cpp").read_text()


def a_formatter_that_is_missing_is_named_with_how_to_install_it():
    for options in ([], ["--fix"]):
        status, printed, source = checked(SPDX + "int x;\n", *options, formatter=False)
        assert status == 1 and "clang-format-19 is missing" in printed, printed
        assert "tools/install-packages test" in printed and "not formatted" not in printed, printed
        assert source == SPDX + "int x;\n"


def without_a_formatter_the_rest_is_still_checked():
    _, printed, _ = checked("int x;\n", formatter=False)
    assert "some.cpp: no SPDX line" in printed, printed


def a_wrong_file_is_named_and_fixed():
    status, printed, _ = checked(SPDX + "int   x ;\n", formatter=True)
    assert status == 1 and "some.cpp" in printed and "not formatted" in printed, printed
    status, _, source = checked(SPDX + "int   x ;\n", "--fix", formatter=True)
    assert status == 0 and source == SPDX + "int x;\n", source


def what_is_right_passes_in_silence():
    status, printed, _ = checked(SPDX + "int x;\n", formatter=True)
    assert status == 0 and not printed, printed


TESTS = [a_formatter_that_is_missing_is_named_with_how_to_install_it, without_a_formatter_the_rest_is_still_checked]
if shutil.which("clang-format-19"):
    TESTS += [a_wrong_file_is_named_and_fixed, what_is_right_passes_in_silence]
else:
    print("SKIPPED: check-style of wrong files: clang-format-19 is not installed")
for test in TESTS:
    test()
print(f"{len(TESTS)} cases")
