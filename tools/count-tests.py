# SPDX-License-Identifier: Apache-2.0
"""Adds one stage's test cases to the results file and shows what failed; says before that which tests to run again.

count-tests.py --to-repeat TESTLOG.json: the names of the failed tests, one per line.
count-tests.py TESTLOG.json STAGE RESULTS [AGAIN.json]

A doctest program counts by its cases, any other test as one. A case that skipped itself says so by a line
"SKIPPED: <case>: <reason>".

AGAIN.json is the log of the failed tests' second run, alone. A test that passes there is unsteady: it is named, what it
said first is kept in unsteady-NAME.log two folders above TESTLOG.json, and it counts as it did alone. Three things are
never forgiven: a sanitizer's report, a crash, and more than three unsteady tests in one stage.
"""
import json
import pathlib
import re
import sys

MOST_UNSTEADY = 3
# More than these are not load. What is repeated takes its time again, and the stage has failed already.
MOST_REPEATED = 8
# What waits for too long aborts, or is killed for it; a wrong address is wrong on a quiet machine too.
CRASHES = (-4, -7, -8, -11)  # SIGILL, SIGBUS, SIGFPE, SIGSEGV
SANITIZER = re.compile(r"(ERROR|WARNING|FATAL): \w+Sanitizer|SUMMARY: \w+Sanitizer|runtime error: ")


def rows_of(log):
    """The last row of each test, by its name without the suites that meson puts before it."""
    path = pathlib.Path(log)
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {row["name"].split(" / ")[-1]: row for row in rows}


def is_bad(row):
    return row["result"] not in ("OK", "SKIP", "EXPECTEDFAIL")


def said(row):
    return row.get("stdout", "") + row.get("stderr", "")


def unforgivable(row):
    if found := SANITIZER.search(said(row)):
        return f"a sanitizer reported ({found[0].strip()})"
    if row.get("returncode") in CRASHES:
        return f"it was killed by signal {-row['returncode']}"
    return None


def counted(row):
    """Passed, failed and skipped cases of one run."""
    out = row.get("stdout", "")
    summary = re.search(r"test cases:\s+(\d+) \|\s+(\d+) passed \|\s+(\d+) failed", re.sub(r"\x1b\[[0-9;]*m", "", out))
    skips = re.findall(r"^SKIPPED: (.*)$", out, re.M)
    bad = is_bad(row)
    if summary:
        good, wrong = int(summary[2]), int(summary[3])
        return max(good - len(skips), 0), max(wrong, 1) if bad else wrong, skips
    if row["result"] == "SKIP":
        return 0, 0, skips or [f"{row['name']}: the whole test"]
    return int(not bad), int(bad), []


def what_failed(text):
    """The tail, and before it each paragraph of doctest that names a failed check: a test's own figures may be long."""
    lines = text.splitlines()
    tail = lines[-30:]
    told = [part for part in re.split(r"\n\s*\n", "\n".join(lines[:-30])) if re.search(r": (FATAL )?ERROR: |Sanitizer", part)]
    return "\n\n".join(told[:20]).splitlines() + ["..."] * bool(told) + tail


def show(row):
    print("\n".join("     " + line[:2000] for line in what_failed(said(row))))


def main():
    if sys.argv[1] == "--to-repeat":
        names = [name for name, row in rows_of(sys.argv[2]).items() if is_bad(row)]
        for name in names if len(names) <= MOST_REPEATED else []:
            print(name)
        return
    log, stage, results = sys.argv[1:4]
    rows = rows_of(log)
    again = rows_of(sys.argv[4]) if len(sys.argv) > 4 else {}
    kept_in = pathlib.Path(log).parent.parent
    unsteady = []
    passed = failed = skipped = 0
    for name, first in rows.items():
        row = first
        reason = None
        if is_bad(first) and name in again:
            row = again[name]
            reason = unforgivable(first)
            if not is_bad(row):
                kept = kept_in / f"unsteady-{re.sub(r'[^A-Za-z0-9._-]', '_', name)}.log"
                kept.write_text(said(first))
                if reason is None:
                    unsteady.append(name)
                    print(f"   unsteady: {name} failed once beside others ({first['result']}, "
                          f"{first['duration']:.0f} s), passed alone; its first output: {kept}")
        good, wrong, skips = counted(row)
        if reason is not None and not is_bad(row):
            wrong += 1
            print(f"   FAILED {name}: passed alone, but before that {reason}; its first output: {kept}")
            show(first)
        passed, failed, skipped = passed + good, failed + wrong, skipped + len(skips)
        for skip in skips:
            print(f"   skipped: {skip}")
        if is_bad(row):
            twice = ", twice" if row is not first else ""
            print(f"   FAILED {name} ({row['result']}, {row['duration']:.0f} s{twice}):")
            show(row)
    if len(unsteady) > MOST_UNSTEADY:
        failed += len(unsteady)
        print(f"   FAILED: {len(unsteady)} unsteady tests in one stage; more than {MOST_UNSTEADY} count as failures")
        for name in unsteady:
            print(f"   FAILED {name} beside others:")
            show(rows[name])
    if not rows:
        failed = 1
        print(f"   FAILED: {stage} ran no test")
    print(f"   {stage}: {passed} passed, {failed} failed, {skipped} skipped" + f", {len(unsteady)} unsteady" * bool(unsteady))
    with open(results, "a", encoding="utf-8") as out:
        out.write(f"{stage}\t{passed}\t{failed}\t{skipped}\t{' '.join(unsteady)}\n")


main()
