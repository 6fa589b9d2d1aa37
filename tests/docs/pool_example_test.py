#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An example of pools and queues does what it says, against a broker of its own, and leaves nothing with it: no pool, no
group, no byte. Usage: pool_example_test.py BROKER TOOL PROGRAM [ARGUMENT]..."""
import json
import os
import subprocess
import sys
import tempfile
import time


def left(tool, environment):
    """The objects that the broker's books still hold."""
    seen = subprocess.run([tool, "list", "--json"], env=environment, capture_output=True, text=True, timeout=30)
    if seen.returncode != 0:
        return seen.stderr
    books = json.loads(seen.stdout)
    held = {key: books[key] for key in ("pools", "queues", "regions", "groups") if books[key]}
    if books["broker"]["bytes"]:
        held["bytes"] = books["broker"]["bytes"]
    return held


def main():
    broker, tool, program, arguments = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]
    with tempfile.TemporaryDirectory(prefix="shmb-example-") as folder:
        ready, write_end = os.pipe()
        daemon = subprocess.Popen([broker, "--directory", folder + "/broker", "--ready-fd", str(write_end), "--log-level",
                                   "error"], pass_fds=[write_end])
        os.close(write_end)
        try:
            if os.read(ready, 1) != b"\n":
                sys.exit("the broker did not start")
            environment = {key: value for key, value in os.environ.items() if key != "SHMBROKER_GROUP"}
            environment["SHMBROKER_SOCKET"] = folder + "/broker/socket"
            done = subprocess.run([program, *arguments], env=environment, capture_output=True, text=True, timeout=150)
            print(done.stdout)
            if done.returncode != 0:
                sys.exit(f"status {done.returncode}: {done.stderr}")
            deaths = [line for line in done.stdout.splitlines() if "deaths" in line]
            if not deaths or " 0 deaths" in deaths[0] or deaths[0].startswith("0 deaths"):
                sys.exit("it says nothing about deaths, so nobody was killed")
            for _ in range(500):
                held = left(tool, environment)
                if not held:
                    break
                time.sleep(0.02)
            if held:
                sys.exit(f"left behind: {held}")
        finally:
            os.close(ready)
            daemon.terminate()
            status = daemon.wait(30)
        if status != 0:
            sys.exit(f"the broker ended with {status}")


if __name__ == "__main__":
    main()
