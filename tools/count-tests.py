# SPDX-License-Identifier: Apache-2.0
"""Counts one stage's test cases, says which failed test gets a second chance, and closes a run of tools/test.

count-tests.py --to-repeat TESTLOG.json RESULTS: the name of the test to run again, alone; nothing when there is none.
count-tests.py TESTLOG.json STAGE RESULTS [AGAIN.json]: shows what failed and adds a line to RESULTS.
count-tests.py --total RESULTS: the forgiven test, if any, and then the line "N passed, N failed, N skipped". The exit
  status is 0 only if nothing failed and something passed.

A doctest program counts by its cases, any other test as one. A case that skipped itself says so by a line
"SKIPPED: <case>: <reason>".

A run forgives one test case. So a stage's failed test runs again only if it is the stage's only failure, and if no stage
before has forgiven one. A sanitizer's report or a crash is never forgiven and never run again. AGAIN.json is the log of
that second run. A test that passes there is forgiven: RESULTS names it, it counts as it did alone, and its first output is
kept in unsteady-NAME.log two folders above TESTLOG.json.

A line of RESULTS has these fields, parted by tabs: stage, passed, failed, skipped, what was forgiven (or nothing).
"""
import json
import pathlib
import re
import sys

# A wait that lasts too long aborts, or is killed for it. A wrong address is wrong on a quiet machine too.
CRASHES = (-4, -7, -8, -11)  # SIGILL, SIGBUS, SIGFPE, SIGSEGV
SANITIZER = re.compile(r"(ERROR|WARNING|FATAL): \w+Sanitizer|SUMMARY: \w+Sanitizer|runtime error: ")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def rows_of(log):
    """The last row of each test, by its name without the suites that meson puts before it."""
    path = pathlib.Path(log)
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {row["name"].split(" / ")[-1]: row for row in rows}


def results_of(path):
    """The fields of each line of RESULTS; the last one is empty where a stage forgave nothing."""
    path = pathlib.Path(path)
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [(line.split("\t") + [""])[:5] for line in lines]


def is_bad(row):
    return row["result"] not in ("OK", "SKIP", "EXPECTEDFAIL")


def said(row):
    return row.get("stdout", "") + row.get("stderr", "")


def may_repeat(row):
    return not SANITIZER.search(said(row)) and row.get("returncode") not in CRASHES and counted(row)[1] == 1


def counted(row):
    """Passed, failed and skipped cases of one run."""
    out = row.get("stdout", "")
    summary = re.search(r"test cases:\s+(\d+) \|\s+(\d+) passed \|\s+(\d+) failed", COLOUR.sub("", out))
    skips = re.findall(r"^SKIPPED: (.*)$", out, re.M)
    bad = is_bad(row)
    if summary:
        good, wrong = int(summary[2]), int(summary[3])
        return max(good - len(skips), 0), max(wrong, 1) if bad else wrong, skips
    if row["result"] == "SKIP":
        return 0, 0, skips or [f"{row['name']}: the whole test"]
    return int(not bad), int(bad), []


def failed_case(row):
    """The case that doctest names above its first failed check; nothing where the output names none."""
    case = ""
    for line in COLOUR.sub("", said(row)).splitlines():
        if line.startswith("TEST CASE:"):
            case = line.removeprefix("TEST CASE:").strip()
        elif case and re.search(r": (FATAL )?ERROR: ", line):
            return case
    return ""


def what_failed(text):
    """The tail, and before it each paragraph of doctest that names a failed check: a test's own figures may be long."""
    lines = text.splitlines()
    tail = lines[-30:]
    told = [part for part in re.split(r"\n\s*\n", "\n".join(lines[:-30])) if re.search(r": (FATAL )?ERROR: |Sanitizer", part)]
    return "\n\n".join(told[:20]).splitlines() + ["..."] * bool(told) + tail


def show(row):
    print("\n".join("     " + line[:2000] for line in what_failed(said(row))))


def to_repeat(log, results):
    bad = {name: row for name, row in rows_of(log).items() if is_bad(row)}
    if len(bad) == 1 and all(map(may_repeat, bad.values())) and not any(line[4] for line in results_of(results)):
        print(*bad)


def count(log, stage, results, again_log=None):
    rows = rows_of(log)
    again = rows_of(again_log) if again_log else {}
    forgiven = ""
    passed = failed = skipped = 0
    for name, first in rows.items():
        row = again.get(name, first) if is_bad(first) else first
        if is_bad(first) and not is_bad(row):
            kept = pathlib.Path(log).parent.parent / f"unsteady-{re.sub(r'[^A-Za-z0-9._-]', '_', name)}.log"
            kept.write_text(said(first))
            case = failed_case(first)
            forgiven = f"{name}{', case: ' + case if case else ''} ({kept})".replace("\t", " ")
            print(f"   forgiven: {name} failed beside others ({first['result']}, {first['duration']:.0f} s) and passed alone; "
                  f"its first output: {kept}")
        good, wrong, skips = counted(row)
        passed, failed, skipped = passed + good, failed + wrong, skipped + len(skips)
        for skip in skips:
            print(f"   skipped: {skip}")
        if is_bad(row):
            print(f"   FAILED {name} ({row['result']}, {row['duration']:.0f} s{', twice' * (row is not first)}):")
            show(row)
    if not rows:
        failed = 1
        print(f"   FAILED: {stage} ran no test")
    print(f"   {stage}: {passed} passed, {failed} failed, {skipped} skipped" + ", 1 forgiven" * bool(forgiven))
    with open(results, "a", encoding="utf-8") as out:
        out.write(f"{stage}\t{passed}\t{failed}\t{skipped}\t{forgiven}\n")


def total(results):
    lines = results_of(results)
    for line in lines:
        if line[4]:
            print(f"forgiven in {line[0]} (a defect to look into): {line[4]}")
    passed, failed, skipped = (sum(int(line[column]) for line in lines) for column in (1, 2, 3))
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or not passed else 0


if sys.argv[1] == "--to-repeat":
    to_repeat(*sys.argv[2:])
elif sys.argv[1] == "--total":
    sys.exit(total(*sys.argv[2:]))
else:
    count(*sys.argv[1:])
