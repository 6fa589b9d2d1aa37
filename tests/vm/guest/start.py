# SPDX-License-Identifier: Apache-2.0
"""Runs the cases of one script in the machine and writes a line for each to the second serial line. start.py SCRIPT"""
import importlib
import os
import sys
import time
import traceback
import tty

sys.path.insert(0, "/test")
import support  # noqa: E402

results = os.open("/dev/ttyS1", os.O_RDWR | os.O_NOCTTY)
tty.setraw(results)


def say(line):
    data = (line + "\n").encode()
    while data:
        data = data[os.write(results, data):]


def detail(text):
    for line in text.strip().splitlines()[-10:]:
        say(f"  | {line}")


def main():
    say("begin")
    importlib.import_module(f"{sys.argv[1]}_cases")
    for function in support.CASES:
        name = function.__name__.replace("_", " ")
        started = time.monotonic()
        try:
            function()
            say(f"ok {name} ({time.monotonic() - started:.1f} s)")
        except AssertionError as failure:
            say(f"FAIL {name}: {' '.join(str(failure).split())[:2000]}")
            detail(support.run("journalctl", "-n", "10", "--no-pager", "-o", "short-monotonic")[1])
        except Exception:
            say(f"FAIL {name}: an exception")
            detail(traceback.format_exc())
    say("end")


try:
    main()
except BaseException:
    detail(traceback.format_exc())
    say(f"FAIL {sys.argv[1]}: the cases could not be run")
    say("end")
