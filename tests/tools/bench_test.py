#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The bench itself: every figure is there with its floor, its numbers agree with each other, its errors say what is wrong.

usage: bench_test.py SHMBROKER-BENCH SHMBROKERD PLOT.PY TABLE.PY
"""

import json
import math
import os
import re
import subprocess
import sys
import tempfile

PROGRAM, BROKER, PLOT, TABLE = sys.argv[1:5]
SIZES = ("4KiB", "1MiB", "64MiB")
EXPECTED = (
    [f"{what}.{size}" for what in ("create", "attach", "attach_read_only") for size in SIZES]
    + [f"create_populated.{size}" for size in ("4KiB", "1MiB")]
    + [f"requests.epoll.{what}.{count}" for what in ("plain", "descriptor") for count in (1, 16, 64)]
    + ["fresh.64MiB", "memory.idle", "memory.per_region", "storm.killed_clients", "restart.next_request"]
    + ["reclaim.64MiB", "reclaim.64MiB.4KiB_pages"]
    + [f"hop.inline.{how}" for how in ("spinning", "asleep")]
    + [f"hop.slot.{size}.{how}" for size in ("64B", "4KiB", "1MiB", "16MiB") for how in ("spinning", "asleep")]
    + [f"hop.claim.slot.{size}.spinning" for size in ("64B", "4KiB")]
    + ["hop.doorbell.asleep"]
    + [f"exhausted_pool.{what}.1000_slots" for what in ("none_free", "one_free")]
    + ["shared_core.inline", "regions_resent.1MiB"]
    + [f"latency.{how}.{where}.{load}" for how in ("spinning", "as_opened", "asleep") for where in ("pinned", "free")
       for load in ("idle", "busy")]
    + ["messages.spsc.1-1", "messages.spsc.1-1.32_at_a_time"]
    + [f"messages.mpmc.{who}" for who in ("1-1", "4-1", "1-4", "2-2", "4-4")]
    + [f"messages.broadcast.{who}" for who in ("1-1", "1-4", "1-16")]
    + ["hand_over.1MiB", "hand_over.16MiB", "waiting.100_wakes_a_second"]
    + [f"gpu.{what}.{count}" for what in ("publish", "open") for count in (1, 16, 126)]
    + [f"slots.{what}.{who}" for what in ("just_released", "32_held") for who in ("alone", "contended")]
    + [f"remote.{what}.{size}.{how}" for size in ("4KiB", "1MiB") for what in ("rpc_sync", "remote", "to_here")
       for how in ("spinning", "asleep")]
    + [f"tool.{verb}" for verb in ("leaks", "doctor", "list_all")]
    + [f"floods.{flood}.{whose}.epoll" for whose in ["same_user"] + ["other_user"] * (os.geteuid() == 0)
       for flood in ("connects", "sessions", "pools", "lists", "creates", "tickets", "watches")]
)


def run(*arguments, broker=BROKER):
    """Runs the bench; nothing of it may stay in its temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)  # a system broker of another user has its place in it
        done = subprocess.run([PROGRAM, "--broker", broker, *arguments], capture_output=True, text=True, timeout=110,
                              env=dict(os.environ, TMPDIR=folder), check=False)
        expect(not os.listdir(folder), f"left behind: {os.listdir(folder)}")
    return done


def expect(condition, sentence):
    if not condition:
        sys.exit(f"bench_test: {sentence}")


def check_record(record):
    name = record["name"]
    for key in ("value", "floor", "ratio", "min", "max"):
        expect(isinstance(record[key], (int, float)) and math.isfinite(record[key]), f"{name}: {key} is no number")
    for key in ("value", "floor"):
        expect(record[key] > 0, f"{name}: {key} is {record[key]}")
    expect(record["n"] >= 1, f"{name}: n is {record['n']}")
    expect(record["min"] <= record["value"] <= record["max"], f"{name}: value outside min and max")
    expect(math.isclose(record["ratio"], record["value"] / record["floor"], rel_tol=1e-6), f"{name}: ratio is another")
    expect(("adds" in record) == (record["unit"] in ("ns", "us", "ms")), f"{name}: adds is of times, and of all times")
    if "adds" in record:
        expect(math.isclose(record["adds"], record["value"] - record["floor"], abs_tol=1e-6), f"{name}: adds is another")
    bound = re.match(r"([<>])= ([0-9.]+)( x floor)?$", record["target"])
    if bound:
        measured = record["ratio"] if bound[3] else record["value"]
        met = measured <= float(bound[2]) if bound[1] == "<" else measured >= float(bound[2])
        expect(met == record["met"], f"{name}: met is {record['met']}, {measured} against {record['target']}")
    for who, value in record["peers"].items():
        expect(math.isfinite(value), f"{name}: {who} is no number")


def main():
    with tempfile.TemporaryDirectory() as folder:
        target = os.path.join(folder, "figures.json")
        shown = run("--quick", "--json", target)
        expect(shown.returncode == 0, f"--quick ended with {shown.returncode}: {shown.stdout}{shown.stderr}")
        with open(target, encoding="utf-8") as text:
            document = json.load(text)
        expect(document["schema"] == "shmbroker-bench-1", "another schema")
        for key in ("cpu", "kernel", "date"):
            expect(document[key], f"no {key}")
        names = [record["name"] for record in document["figures"]]
        expect(len(names) == len(set(names)), "a figure is there twice")
        missing = [name for name in EXPECTED if name not in names]
        expect(not missing, f"missing: {', '.join(missing)}")
        for record in document["figures"]:
            check_record(record)
            expect(record["name"] in shown.stdout, f"{record['name']} is not in the table")
        by_name = {record["name"]: record for record in document["figures"]}
        # Bytes do not depend on the machine's load. Without root the kernel's count of them is coarse.
        if os.geteuid() == 0:
            each = by_name["memory.per_reference"]
            expect(each["met"], f"a reference costs {each['value']} B; the unit test of the same promises {each['target']}")
        peers = by_name["fresh.64MiB"]["peers"]
        expect(peers.get("floor_4KiB_pages", 0) > 0 and peers.get("recycled", 0) > 0, "fresh.64MiB lacks its peers")
        table = subprocess.run([sys.executable, TABLE, target], capture_output=True, text=True, check=False)
        expect(table.returncode == 0, table.stderr)
        for record in document["figures"]:
            found = [line for line in table.stdout.splitlines() if line.startswith(f"| `{record['name']}` |")]
            expect(len(found) == 1, f"{record['name']} is in {len(found)} rows of the Markdown table")
            expect(("missed" in found[0]) != record["met"], f"{record['name']}: its row says the opposite of met")
        # Debian's package belongs to Debian's python, which need not be the first one in PATH.
        python = next((p for p in (sys.executable, "/usr/bin/python3") if os.path.exists(p) and
                       subprocess.run([p, "-c", "import matplotlib"], capture_output=True, check=False).returncode == 0), None)
        if python is None:
            print("SKIPPED: bench --plot: python3-matplotlib is not installed")
        else:
            drawn = subprocess.run([python, PLOT, target, folder], capture_output=True, text=True, check=False)
            expect(drawn.returncode == 0, drawn.stderr)
            for kind in "svg", "png":
                expect(os.path.getsize(os.path.join(folder, f"figures.{kind}")) > 1000, f"an empty plot: {kind}")

    unknown = run("nonsense")
    expect(unknown.returncode == 2 and "nonsense" in unknown.stderr, "an unknown family is not refused by name")
    expect(run("--engine", "steam").returncode != 0, "an unknown engine is not refused")
    away = run("memory", "--quick", broker="/nonexistent/shmbrokerd")
    expect(away.returncode == 1 and "/nonexistent/shmbrokerd" in away.stderr, "a missing broker is not named")


main()
