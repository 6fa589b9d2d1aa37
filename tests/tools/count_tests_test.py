#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/count-tests.py: what counts as passed, and that a run forgives one test and nothing else; and tools/test
around it, with a meson that only pretends, in a folder with a blank in its name. Usage: count_tests_test.py TOOLS
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

CASES = "[doctest] test cases: {} | {} passed | {} failed | 0 skipped\n"


def row(name, result="OK", out="", code=0):
    return {"name": f"shmbroker:unit+once / {name}", "result": result, "stdout": out, "stderr": "", "returncode": code,
            "duration": 1.5}


def doctest(name, good, wrong=0, out=""):
    return row(name, "FAIL" if wrong else "OK", out + CASES.format(good + wrong, good, wrong), 1 if wrong else 0)


def counted(first, again=None, before=""):
    """The text that it printed, the line of results, the files beside the logs, what was to be repeated, and how the
    run closed.

    `before` is what earlier stages left in RESULTS.
    """
    with tempfile.TemporaryDirectory(prefix="shmb count ") as name:
        stage = Path(name)
        logs = stage / "meson-logs"
        logs.mkdir()
        results = stage / "results"
        results.write_text(before)
        if first is not None:
            (logs / "testlog.json").write_text("".join(json.dumps(one) + "\n" for one in first))
        arguments = [str(logs / "testlog.json"), "gcc", str(results)]
        to_repeat = run("--to-repeat", arguments[0], arguments[2]).splitlines()
        if again is not None:
            (logs / "again.json").write_text("".join(json.dumps(one) + "\n" for one in again))
            arguments.append(str(logs / "again.json"))
        printed = run(*arguments)
        kept = {path.name: path.read_text() for path in stage.glob("unsteady-*")}
        line = results.read_text().removeprefix(before).rstrip("\n").split("\t")
        line[4] = line[4].replace(f" ({stage}/", " (")
        return printed, line, kept, to_repeat


def run(*arguments):
    done = subprocess.run([sys.executable, Path(sys.argv[1]) / "count-tests.py", *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=60)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return done.stdout


def a_program_counts_by_its_cases():
    skips = "SKIPPED: two users: not root\n"
    _, results, kept, to_repeat = counted([doctest("base", 7, out=skips), row("man"), row("gpu", "SKIP", code=77)])
    assert results == ["gcc", "7", "0", "2", ""], results
    assert not kept and not to_repeat


def a_failure_stays_one():
    printed, results, kept, to_repeat = counted([doctest("laws", 6, 1), row("man")], [doctest("laws", 6, 1)])
    assert to_repeat == ["laws"], to_repeat
    assert results == ["gcc", "7", "1", "0", ""] and not kept, results
    assert "FAILED laws" in printed and "twice" in printed, printed


def a_failure_that_was_not_repeated_stays_one():
    for again in (None, []):
        _, results, _, _ = counted([doctest("laws", 5, 2)], again)
        assert results == ["gcc", "5", "2", "0", ""], results


def a_program_that_ended_early_has_failed():
    _, results, _, _ = counted([row("laws", "TIMEOUT", "nothing yet", -15), row("wire", "FAIL", CASES.format(3, 3, 0), 1)])
    assert results == ["gcc", "3", "2", "0", ""], results


def the_one_that_passes_alone_is_named_with_its_case_and_kept():
    output = "TEST CASE:  fine\n\nx.cpp:1: MESSAGE: 4\n\nTEST CASE:  law 2: a stopped process\n\nx.cpp:9: ERROR: CHECK( late ) is NOT correct!\n"
    printed, results, kept, to_repeat = counted([doctest("laws", 6, 1, output), row("man")], [doctest("laws", 7)])
    assert to_repeat == ["laws"], to_repeat
    assert results == ["gcc", "8", "0", "0", "laws, case: law 2: a stopped process (unsteady-laws.log)"], results
    assert "forgiven: laws failed beside others" in printed, printed
    assert kept["unsteady-laws.log"].startswith("TEST CASE:  fine"), kept


def a_test_that_timed_out_gets_its_second_chance():
    _, results, _, to_repeat = counted([row("laws", "TIMEOUT", "nothing yet", -15)], [doctest("laws", 7)])
    assert to_repeat == ["laws"] and results == ["gcc", "7", "0", "0", "laws (unsteady-laws.log)"], results


def two_failures_in_one_stage_are_not_repeated():
    for first in ([doctest("laws", 5, 1), doctest("wire", 5, 1)], [doctest("laws", 5, 2)]):
        _, results, _, to_repeat = counted(first)
        assert not to_repeat and results[2] == "2", (to_repeat, results)


def a_run_forgives_once_over_all_its_stages():
    first = [doctest("laws", 5, 1)]
    assert counted(first, before="style\t1\t0\t0\nclang\t9\t2\t0\t\n")[3] == ["laws"]
    assert not counted(first, before="clang\t9\t0\t0\tbase (unsteady-base.log)\n")[3]


def a_sanitizer_is_believed_the_first_time():
    for report in ("==1==ERROR: AddressSanitizer: heap-use-after-free\n", "WARNING: ThreadSanitizer: data race\n",
                   "x.cpp:3:1: runtime error: load of misaligned address\n"):
        printed, results, _, to_repeat = counted([doctest("pools", 5, 1, report)])
        assert not to_repeat and results == ["gcc", "5", "1", "0", ""], results
        assert "FAILED pools" in printed and report in printed, printed


def a_crash_is_believed_the_first_time():
    for code, repeated in ((-11, []), (-7, []), (-6, ["pools"]), (-9, ["pools"])):
        _, _, _, to_repeat = counted([row("pools", "FAIL", "", code)])
        assert to_repeat == repeated, (code, to_repeat)


def no_test_is_a_failure():
    for first in (None, []):
        printed, results, _, to_repeat = counted(first)
        assert results == ["gcc", "0", "1", "0", ""] and "ran no test" in printed and not to_repeat, (results, printed)


MESON = """#!/bin/sh
echo "$@" >> "$FAKES/calls"
[ "$1" != setup ] || { mkdir -p "$2" && touch "$2/build.ninja"; exit; }
log=testlog
case "$*" in *"--logbase again"*) log=again ;; esac
mkdir -p "$3/meson-logs" && cp "$FAKES/$log" "$3/meson-logs/$log.json"
"""


def whole(first, again, *options):
    """tools/test over two stages with the same tests: its exit status, what it printed, what was asked of meson."""
    with tempfile.TemporaryDirectory(prefix="shmb test ") as name:
        fakes = Path(name)
        (fakes / "main/tools").mkdir(parents=True)
        for tool in ("test", "count-tests.py"):
            shutil.copy(Path(sys.argv[1]) / tool, fakes / "main/tools" / tool)
        for program, text in (("meson", MESON), ("ninja", "#!/bin/sh\n")):
            (fakes / program).write_text(text)
            (fakes / program).chmod(0o755)
        for log, rows in (("testlog", first), ("again", again)):
            (fakes / log).write_text("".join(json.dumps(one) + "\n" for one in rows))
        environment = {"PATH": f"{fakes}:{os.environ['PATH']}", "FAKES": name}  # no HOME either
        done = subprocess.run([fakes / "main/tools/test", "--no-install", *options, "clang", "epoll"], env=environment,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, cwd="/")
        calls = [line for line in (fakes / "calls").read_text().splitlines() if not line.startswith("setup")]
        return done.returncode, done.stdout.splitlines(), calls


def a_stage_that_passes_runs_once():
    status, printed, calls = whole([doctest("base", 7), doctest("proto", 2)], [])
    assert status == 0 and printed[-1] == "18 passed, 0 failed, 0 skipped", printed
    assert len(calls) == 2, calls


def one_failed_test_of_a_run_is_forgiven_and_named_before_the_last_line():
    status, printed, calls = whole([doctest("base", 6, 1), doctest("proto", 2)], [doctest("base", 7)])
    assert calls[1].endswith(" --logbase again base") and "--num-processes 1 " in calls[1], calls
    # The same failure in the second stage is the second one of the run.
    assert len(calls) == 3 and status == 1, calls
    assert printed[-1] == "17 passed, 1 failed, 0 skipped", printed
    assert printed[-2] == "forgiven in clang (a defect to look into): base (build/clang/unsteady-base.log)", printed


def what_fails_twice_fails_the_run():
    status, printed, _ = whole([doctest("base", 6, 1)], [doctest("base", 6, 1)])
    assert status == 1 and printed[-1] == "12 passed, 2 failed, 0 skipped", printed
    assert not printed[-2].startswith("forgiven"), printed


def strict_forgives_none():
    status, printed, calls = whole([doctest("base", 6, 1)], [doctest("base", 7)], "--strict")
    assert status == 1 and printed[-1] == "12 passed, 2 failed, 0 skipped", printed
    assert len(calls) == 2 and not any("forgiven" in line for line in printed), (calls, printed)


def an_earlier_forgiven_stage_leaves_the_exit_status_0():
    with tempfile.TemporaryDirectory(prefix="shmb count ") as name:
        results = Path(name) / "results"
        for text, status in (("gcc\t7\t0\t1\tbase (log)\nasan\t3\t0\t0\t\n", 0), ("gcc\t7\t1\t0\t\n", 1), ("", 1)):
            results.write_text(text)
            done = subprocess.run([sys.executable, Path(sys.argv[1]) / "count-tests.py", "--total", results], text=True,
                                  capture_output=True, timeout=60)
            assert done.returncode == status and not done.stderr, done


TESTS = [a_program_counts_by_its_cases, a_failure_stays_one, a_failure_that_was_not_repeated_stays_one,
         a_program_that_ended_early_has_failed, the_one_that_passes_alone_is_named_with_its_case_and_kept,
         a_test_that_timed_out_gets_its_second_chance, two_failures_in_one_stage_are_not_repeated,
         a_run_forgives_once_over_all_its_stages, a_sanitizer_is_believed_the_first_time,
         a_crash_is_believed_the_first_time, no_test_is_a_failure, a_stage_that_passes_runs_once,
         one_failed_test_of_a_run_is_forgiven_and_named_before_the_last_line, what_fails_twice_fails_the_run,
         strict_forgives_none, an_earlier_forgiven_stage_leaves_the_exit_status_0]
for test in TESTS:
    test()
print(f"{len(TESTS)} cases")
