#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The script for real hardware, on the fake driver: the packed folder alone answers all parts; a question that hangs, a
run that is stopped or killed, and results of another program cost nothing but what they must. The packed files come
from a finished build. usage: packed_test.py BUILD [NAME OF A CASE]"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
GATE = ("T4 T1 T29 T30 T7 T31 T6 T11 T10 T9 T5 T8 T2 T27 T3".split()
        + ["regions " + case for case in ("sleep", "T25", "T27", "66")])  # fmt: skip
PARTS = ("gate", "library", "torch", "rest", "figures")

# Questions of a test's own for the same machinery: [name, limit in s, words for sh].
DRIVER = """
import importlib.machinery, importlib.util, json, sys, time
sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[1])
loader = importlib.machinery.SourceFileLoader("gpu_run", sys.argv[1] + "/run")
run = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_run", loader))
loader.exec_module(run)
folder, work, budget, commit, listed = sys.argv[2], sys.argv[3], float(sys.argv[4]), sys.argv[5], json.loads(sys.argv[6])
run.asking.adopt_orphans()
stop = run.Stop()
header = {"date": run.asking.now(), "commit": commit, "fake": True, "driver": "fake", "kernel": "k"}
questions = [run.asking.question(name, "a question", limit, ["sh", "-c", text]) for name, limit, text in listed]
try:
    found = run.results.Results(folder, "gate", header)
except run.results.Differs as wrong:
    sys.exit(str(wrong))
print(json.dumps(run.ask_all(questions, found, work, time.monotonic() + budget + run.SPARE_S, stop, lambda *_, **__: None)))
"""


def running(mark):
    """Processes that have these words in their command line."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{entry}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if mark in words:
                    found.append(words)
    return found


class Folders(unittest.TestCase):
    def setUp(self):
        self.top = Path(tempfile.mkdtemp(prefix="gpu-packed-"))
        self.addCleanup(shutil.rmtree, self.top, ignore_errors=True)
        self.results, self.work = self.top / "results", self.top / "work"
        self.results.mkdir()
        self.work.mkdir()

    def gate(self):
        return json.loads((self.results / "gate.json").read_text())

    def verdicts(self):
        return {one["name"]: one["verdict"] for one in self.gate()["tests"]}


class Asking(Folders):
    """The machinery, with questions that need no driver."""

    def start(self, listed, budget=60, commit="c"):
        command = [sys.executable, "-c", DRIVER, HERE, self.results, self.work, str(budget), commit, json.dumps(listed)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def ask(self, listed, **how):
        said, wrong = self.start(listed, **how).communicate(timeout=120)
        self.assertEqual(wrong, "")
        return json.loads(said)

    def wait_for(self, path):
        end = time.monotonic() + 60
        while not path.exists():
            self.assertLess(time.monotonic(), end, f"{path} never came")
            time.sleep(0.01)

    def test_a_question_that_hangs_is_stopped_and_the_others_are_answered(self):
        open_questions, how = self.ask([["a", 30, r"printf '+key\tone\n'"], ["b", 0.3, "sleep 1000"], ["c", 30, "exit 3"],
                                        ["d", 30, r"printf -- '-skip\tno such device\n'"],
                                        ["e", 30, r"printf '!fail\tbytes differ\n'; echo more"],
                                        ["f", 30, "echo no torch; exit 77"]])  # fmt: skip
        self.assertEqual((open_questions, how), ([], "done"))
        self.assertEqual(self.verdicts(), {"a": "pass", "b": "fail", "c": "fail", "d": "skip", "e": "fail", "f": "skip"})
        tests = {one["name"]: one for one in self.gate()["tests"]}
        self.assertEqual(tests["a"]["facts"], [{"key": "key", "value": "one"}])
        self.assertEqual(tests["b"]["reasons"], ["not done after 0.3 s"])
        self.assertEqual(tests["c"]["reasons"], ["its process ended with status 3"])
        self.assertEqual(tests["f"]["reasons"], ["no torch"])
        self.assertEqual(tests["e"]["facts"], [{"key": "said", "value": "more"}])

    def test_what_a_question_leaves_behind_ends_with_it(self):
        mark = f"98765.{os.getpid()}"
        left = f"setsid sleep {mark} & (setsid sh -c 'trap \"\" TERM HUP; sleep {mark}; :' &) ; touch there; mkdir -p a/b"
        self.ask([["ends", 30, left], ["hangs", 0.5, left + "; wait"]])
        self.assertEqual(self.verdicts(), {"ends": "pass", "hangs": "fail"})
        self.assertEqual(running(mark), [])
        self.assertEqual(list(self.work.iterdir()), [])

    def test_the_results_are_whole_after_each_answer(self):
        look = f"{sys.executable} -c 'import json; d = json.load(open(\"{self.results}/gate.json\")); " \
               "print(\"+seen\\t\" + d[\"tests\"][0][\"name\"] + \" \" + d[\"asking\"][\"name\"])'"  # fmt: skip
        self.ask([["first", 30, "true"], ["second", 30, look]])
        self.assertEqual(self.gate()["tests"][1]["facts"], [{"key": "seen", "value": "first second"}])
        self.assertEqual(sorted(one.name for one in self.results.iterdir()), ["gate.json", "report.txt"])

    def test_what_the_time_did_not_reach_is_asked_by_the_next_call_and_nothing_twice(self):
        count = f"echo x >> {self.top}/asked"
        listed = [["a", 30, count], ["b", 30, count + f"; [ -e {self.top}/later ] || sleep 1000"], ["c", 30, count]]
        self.assertEqual(self.ask(listed, budget=5), [["b", "c"], "out of time"])
        self.assertEqual((self.verdicts(), self.gate()["open"]), ({"a": "pass"}, ["b", "c"]))
        self.assertIn("not asked yet: b, c", (self.results / "report.txt").read_text())
        (self.top / "later").touch()
        self.assertEqual(self.ask(listed), [[], "done"])
        self.assertEqual(self.verdicts(), dict.fromkeys("abc", "pass"))
        self.assertEqual((self.top / "asked").read_text().count("x"), 4)  # b alone twice

    def test_a_stopped_run_leaves_whole_results_and_no_process(self):
        mark = f"87654.{os.getpid()}"
        for number in (signal.SIGTERM, signal.SIGINT):
            with self.subTest(signal=number):
                there = self.top / f"there{number}"
                process = self.start([["a", 30, "true"], ["b", 60, f"touch {there}; setsid sleep {mark}"],
                                      ["c", 30, "true"]])
                self.wait_for(there)
                process.send_signal(number)
                said, wrong = process.communicate(timeout=60)
                self.assertEqual((json.loads(said), wrong), ([["b", "c"], "stopped"], ""))
                self.assertEqual((self.verdicts(), self.gate()["asking"]), ({"a": "pass"}, None))
                self.assertEqual((running(mark), list(self.work.iterdir())), ([], []))

    def test_a_killed_run_goes_on_and_what_killed_it_twice_is_not_asked_again(self):
        mark = f"76543.{os.getpid()}"
        for turn in range(2):
            there = self.top / f"there{turn}"
            listed = [["a", 30, "true"], ["b", 60, f"touch {there}; exec sleep {mark}"], ["c", 30, "true"]]
            process = self.start(listed)
            self.wait_for(there)
            process.kill()
            process.communicate(timeout=60)
            self.assertEqual((self.verdicts(), self.gate()["asking"]), ({"a": "pass"}, {"name": "b", "times": turn + 1}))
            end = time.monotonic() + 30
            while running(mark):  # its question dies with it
                self.assertLess(time.monotonic(), end, running(mark))
                time.sleep(0.01)
            shutil.rmtree(self.work)
            self.work.mkdir()
        self.assertEqual(self.ask(listed), [[], "done"])
        self.assertEqual(self.verdicts(), {"a": "pass", "b": "fail", "c": "pass"})
        self.assertEqual(self.gate()["tests"][1]["reasons"], ["the run was killed 2 times while this was asked"])

    def test_results_of_another_program_are_not_added_to(self):
        self.ask([["a", 30, "true"]])
        said, wrong = self.start([["b", 30, "true"]], commit="other").communicate(timeout=60)
        self.assertIn("has results of another commit (c, now other): name another folder by --into", wrong)
        self.assertEqual((said, self.verdicts()), ("", {"a": "pass"}))


class Packed(Folders):
    """The folder, moved away from the tree and the build."""

    @classmethod
    def setUpClass(cls):
        cls.place = Path(tempfile.mkdtemp(prefix="gpu-pack-"))
        cls.addClassCleanup(shutil.rmtree, cls.place, ignore_errors=True)
        cls.folder = cls.place / "pack"
        done = subprocess.run([HERE / "pack", "--build", BUILD, "--into", cls.folder], capture_output=True, text=True)
        if done.returncode != 0:
            raise AssertionError(done.stdout + done.stderr)

    def run_part(self, part, *options, fake=True, **how):
        environment = {"PATH": "/usr/bin:/bin", "TMPDIR": str(self.work), "HOME": "/nonexistent"}
        command = [sys.executable, self.folder / "run", part, *(["--fake"] if fake else []), "--into", self.results]
        command += options
        return subprocess.run(command, cwd="/", env=environment, capture_output=True, text=True, timeout=300, **how)

    def contents(self):
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*"))

    def test_all_parts_are_answered_by_the_folder_alone(self):
        before, start = self.contents(), time.monotonic()
        for part in PARTS:
            with self.subTest(part=part):
                done = self.run_part(part)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                data = json.loads((self.results / f"{part}.json").read_text())
                self.assertEqual((data["open"], data["machine"]["fake"]), ([], True))
                for key in ("date", "commit", "driver", "kernel", "runtime", "persistence", "mig", "nodes"):
                    self.assertIn(key, data["machine"])
                self.assertIn("cuda_driver_version", data["machine"]["driver facts"])
                if part == "gate":
                    self.assertEqual([one["name"] for one in data["tests"]], GATE)
                if part not in ("gate", "torch"):
                    self.assertGreater(sum(one["verdict"] == "pass" for one in data["tests"]), 6)
        print(f"all parts: {time.monotonic() - start:.1f} s", file=sys.stderr)
        files = list(self.results.iterdir())
        self.assertEqual(sorted(one.name for one in files), sorted([*(f"{part}.json" for part in PARTS), "report.txt"]))
        self.assertLess(max(one.stat().st_size for one in files), 1 << 24)
        self.assertEqual((list(self.work.iterdir()), running(str(self.folder))), ([], []))
        self.assertEqual(self.contents(), before)

    def test_a_second_call_asks_nothing_again_and_a_short_one_goes_on(self):
        done = self.run_part("gate", "--only", "T1,T6", "--budget", "5.5")
        self.assertIn(done.returncode, (0, 75), done.stdout + done.stderr)
        done = self.run_part("gate", "--only", "T1,T6")
        self.assertEqual((done.returncode, self.verdicts()), (0, {"T1": "pass", "T6": "pass"}), done.stdout + done.stderr)
        dates = [one["date"] for one in self.gate()["tests"]]
        done = self.run_part("gate", "--only", "T1,T6")
        self.assertEqual((done.returncode, [one["date"] for one in self.gate()["tests"]]), (0, dates))
        self.assertEqual(list(self.work.iterdir()), [])

    def test_the_folder_of_a_run_that_was_killed_goes_with_the_next(self):
        with subprocess.Popen(["true"]) as ended:
            ended.wait()
        (self.work / f"shmbgpu-{ended.pid}-x").mkdir()
        (self.work / f"shmbgpu-{os.getpid()}-x").mkdir()  # of one that lives
        self.assertEqual(self.run_part("gate", "--only", "T6").returncode, 0)
        self.assertEqual([one.name for one in self.work.iterdir()], [f"shmbgpu-{os.getpid()}-x"])

    def test_two_runs_into_one_folder_are_refused(self):
        lock = os.open(self.results, os.O_RDONLY)
        self.addCleanup(os.close, lock)
        import fcntl
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = self.run_part("gate")
        self.assertEqual((done.returncode, list(self.results.iterdir())), (2, []))
        self.assertIn("another run writes into", done.stderr)

    @unittest.skipIf(os.path.exists("/dev/nvidiactl"), "this machine has a GPU")
    def test_without_a_gpu_a_part_says_so(self):
        done = self.run_part("gate", fake=False)
        self.assertEqual((done.returncode, done.stdout), (77, "no GPU to ask: no driver: libcuda.so.1 cannot be loaded\n"))

    def test_the_scripts_of_the_tree_send_to_pack(self):
        done = subprocess.run([HERE / "run", "gate", "--into", self.results], capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("make one by tests/gpu/pack", done.stderr)

    def check(self, folder):
        return subprocess.run([HERE / "pack", "--check", folder], capture_output=True, text=True)

    def test_a_program_that_needs_a_newer_libc_is_refused(self):
        self.assertEqual(self.check(self.folder).returncode, 0)
        copy = self.top / "pack"
        shutil.copytree(self.folder, copy)
        program = copy / "gpu-facts"
        program.write_bytes(program.read_bytes().replace(b"GLIBC_2.34", b"GLIBC_2.39"))
        (copy / "package" / "shmbroker" / "shmbrokerd").unlink()
        (copy / "big").write_bytes(b"")
        os.truncate(copy / "big", 60 << 20)
        done = self.check(copy)
        self.assertEqual(done.returncode, 1)
        self.assertIn("gpu-facts needs GLIBC_2.39, which is newer than 2.34", done.stderr)
        self.assertIn("package/shmbroker/shmbrokerd is missing", done.stderr)
        self.assertIn("MiB, more than 60", done.stderr)

    def test_a_folder_that_is_no_pack_is_left_alone(self):
        (self.results / "mine").write_text("x")
        done = subprocess.run([HERE / "pack", "--build", BUILD, "--into", self.results], capture_output=True, text=True)
        self.assertEqual((done.returncode, [one.name for one in self.results.iterdir()]), (1, ["mine"]))
        self.assertIn("holds something else than a pack", done.stderr)


if __name__ == "__main__":
    BUILD = Path(sys.argv.pop(1)).resolve()
    unittest.main()
