#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The leak guard fails a program whose cases leak, names each of them, and blames no clean case. A run without a case
fails too."""
import os
import subprocess
import sys

EXPECTED = {
    "descriptor leaks": "left open: descriptor",
    "closes a stranger's descriptor": "closed what it did not open: descriptor 0",
    "mapping leaks": "left mapped: ",
    "memfd mapped privately leaks": "left mapped: /memfd:leaked",
    "zombie leaks": "left a child: ",
    "thread leaks": "left a thread: ",
    "books not empty": "1 region",
    "fixture reports": "a fixture's books",
}

environment = dict(os.environ)
# The leaks are meant; the sanitizers must not report them first.
environment["ASAN_OPTIONS"] = environment.get("ASAN_OPTIONS", "") + ":detect_leaks=0"
environment["TSAN_OPTIONS"] = environment.get("TSAN_OPTIONS", "") + ":report_thread_leaks=0"
environment.pop("MSAN_OPTIONS", None)


def run(*arguments):
    done = subprocess.run([sys.argv[1], *arguments], env=environment, stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=120)
    return done.returncode, done.stdout


def fail(text, output):
    sys.exit(f"{text}\n--- output of the leaking program:\n{output}")


status, output = run()
if status == 0:
    fail("the program with leaks ended with status 0", output)
blamed = [line.split(": ", 2) for line in output.splitlines() if line.startswith("LEAK: ")]
for case, text in EXPECTED.items():
    if not any(who == case and what.startswith(text) for _, who, what in blamed):
        fail(f"not named: {case!r} with {text!r}", output)
for _, who, what in blamed:
    if who not in EXPECTED:
        fail(f"blamed without reason: {who!r}: {what}", output)
if "SKIPPED: skips aloud: this machine lacks it" not in output:
    fail("the skip was not printed", output)
if "0 failed" not in output:
    fail("an assertion of the leaking program failed", output)

status, output = run("--test-case=clean case,killed child*")
if status != 0:
    fail(f"clean cases ended with status {status}", output)

status, output = run("--source-file=*renamed.cpp")
if status != 1 or "no case ran" not in output:
    fail(f"filters that match no case ended with status {status}", output)
print(f"guard named all {len(EXPECTED)} leaks and blamed nobody else")
