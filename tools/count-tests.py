# SPDX-License-Identifier: Apache-2.0
"""Adds one stage's test cases to the results file and shows what failed.

count-tests.py TESTLOG.json STAGE RESULTS: a doctest program counts by its cases, any other test as one. A case that
skipped itself says so by a line "SKIPPED: <case>: <reason>".
"""
import json
import pathlib
import re
import sys

log, stage, results = sys.argv[1:4]


def what_failed(text):
    """The tail, and before it each paragraph of doctest that names a failed check: a test's own figures may be long."""
    lines = text.splitlines()
    tail = lines[-30:]
    told = [part for part in re.split(r"\n\s*\n", "\n".join(lines[:-30])) if re.search(r": (FATAL )?ERROR: |Sanitizer", part)]
    return "\n\n".join(told[:20]).splitlines() + ["..."] * bool(told) + tail


passed = failed = skipped = 0
path = pathlib.Path(log)
rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
for row in rows:
    out = row.get("stdout", "")
    summary = re.search(r"test cases:\s+(\d+) \|\s+(\d+) passed \|\s+(\d+) failed", re.sub(r"\x1b\[[0-9;]*m", "", out))
    skips = re.findall(r"^SKIPPED: (.*)$", out, re.M)
    bad = row["result"] not in ("OK", "SKIP", "EXPECTEDFAIL")
    if summary:
        good, wrong = int(summary[2]), int(summary[3])
        wrong = max(wrong, 1) if bad else wrong
        passed, failed, skipped = passed + max(good - len(skips), 0), failed + wrong, skipped + len(skips)
    elif row["result"] == "SKIP":
        skipped += 1
    else:
        passed, failed = passed + (not bad), failed + bad
    for reason in skips:
        print(f"   skipped: {reason}")
    if bad:
        print(f"   FAILED {row['name']} ({row['result']}, {row['duration']:.0f} s):")
        print("\n".join("     " + line[:2000] for line in what_failed(out + row.get("stderr", ""))))
if not rows:
    failed = 1
    print(f"   FAILED: {stage} ran no test")
print(f"   {stage}: {passed} passed, {failed} failed, {skipped} skipped")
with open(results, "a") as out:
    out.write(f"{stage}\t{passed}\t{failed}\t{skipped}\n")
