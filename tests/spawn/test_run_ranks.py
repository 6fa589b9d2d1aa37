#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`shmbroker run --nprocs`: variables, shards, prefixes, progress on a terminal, the first failure and its status, usage.
Usage: test_run_ranks.py TOOL BROKER TRAIN"""
import array
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import termios
import time

problems = []


def is_gone(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().split()[2] == "Z"
    except (FileNotFoundError, ProcessLookupError):  # before the open, or between it and the read
        return True


def check(what, seen, expected):
    if seen != expected:
        problems.append(f"{what}: {seen!r}, not {expected!r}")


def main():
    tool, broker, train = sys.argv[1:4]
    with tempfile.TemporaryDirectory(prefix="shmb-run-") as folder:
        ready, write_end = os.pipe()
        daemon = subprocess.Popen([broker, "--directory", folder + "/b", "--ready-fd", str(write_end), "--log-level", "error"],
                                  pass_fds=[write_end])
        os.close(write_end)
        if os.read(ready, 1) != b"\n":
            sys.exit("the broker did not start")

        def run(*options, command=None, script="true"):
            done = subprocess.run([tool, "run", "--socket", folder + "/b/socket", *options, "--",
                                   *(command or ["sh", "-c", script])], capture_output=True, text=True, timeout=120)
            return done

        done = run("--nprocs", "3", "--num-shards", "2", "--shard-id", "1", "--master-addr", "h", "--master-port", "77",
                   script="echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $NODE_RANK $MASTER_ADDR $MASTER_PORT; echo e$RANK >&2")
        check("status", done.returncode, 0)
        check("variables", sorted(done.stdout.splitlines()),
              [f"[rank {r}] {r} {r - 3} 6 3 1 h 77" for r in (3, 4, 5)])
        check("stderr", sorted(done.stderr.splitlines()), [f"[rank {r}] e{r}" for r in (3, 4, 5)])

        check("no progress where nobody looks", "ranks have ended" in done.stderr, False)
        terminal, far_end = os.openpty()
        subprocess.run([tool, "run", "--socket", folder + "/b/socket", "--nprocs", "2", "--", "true"], stderr=far_end,
                       timeout=120, check=True)
        os.close(far_end)
        shown = b""
        try:
            while chunk := os.read(terminal, 4096):
                shown += chunk
        except OSError:  # what Linux says at the end of a terminal's output
            pass
        os.close(terminal)
        check("progress on a terminal", [b"1 of 2 ranks have ended" in shown, b"2 of 2 ranks have ended" in shown],
              [True, True])

        done = run("--nprocs", "2", "--no-prefix", script="printf 'no line end'")
        check("no prefix", done.stdout, "no line end" * 2)
        done = run("--nprocs", "2", script="printf 'no line end'")
        check("a line without end", sorted(done.stdout.splitlines()), ["[rank 0] no line end", "[rank 1] no line end"])
        done = run("--nprocs", "1", script="seq 100000")
        check("much output", done.stdout.splitlines()[-1:], ["[rank 0] 100000"])
        check("all of it", len(done.stdout.splitlines()), 100000)

        done = run("--nprocs", "3", "--grace", "100ms", script='if [ $RANK = 1 ]; then exit 7; fi; trap "" TERM; sleep 1000 & wait; wait')
        check("status of the first failure", done.returncode, 7)
        if "rank 1 terminated with exit code 7" not in done.stderr:
            problems.append(f"the first failure is not named: {done.stderr!r}")
        done = run("--nprocs", "2", script="kill -ABRT $$")
        check("status of a signal", done.returncode, 128 + 6)
        done = run("--nprocs", "2", command=["/nonexistent"])
        check("absent", (done.returncode, "cannot run" in done.stderr), (127, True))
        done = run("--nprocs", "2", command=[sys.executable, "-c", "import os; print(os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])"])
        check("python", sorted(done.stdout.splitlines()), ["[rank 0] 0 of 2", "[rank 1] 1 of 2"])
        done = run("--nprocs", "4", command=[sys.executable, train, "50"])
        check("a training script", (done.returncode, sorted(done.stdout.splitlines())),
              (0, [f"[rank {r}] rank {r} of 4: y = 3.0 x -2.0" for r in range(4)]))
        done = run("--nprocs", "2", "--init-method", "tcp://somewhere:7777", script="echo $MASTER_ADDR $MASTER_PORT")
        check("init method", sorted(done.stdout.splitlines()), [f"[rank {r}] somewhere 7777" for r in (0, 1)])

        # Nobody reads what they print: a rank's death ends the other all the same, and so does ours.
        for ending in ("a rank is killed", "run is killed"):
            never_read, full = os.pipe()
            job = subprocess.Popen([tool, "run", "--socket", folder + "/b/socket", "--nprocs", "2", "--", "sh", "-c",
                                    'echo $$ > "$0"/rank$RANK; while :; do echo "nobody reads this" >&2; done', folder],
                                   stderr=full, stdout=full)
            seen = -1
            for _ in range(600):  # until nothing is added any more
                time.sleep(0.1)
                size = array.array("i", [0])
                fcntl.ioctl(never_read, termios.FIONREAD, size)
                if size[0] == seen and size[0] >= 4096 and all(os.path.exists(f"{folder}/rank{r}") for r in (0, 1)):
                    break
                seen = size[0]
            else:
                problems.append("the pipe was never full")
            ranks = [int(open(f"{folder}/rank{r}").read()) for r in (0, 1)]
            os.kill(ranks[1] if ending == "a rank is killed" else job.pid, signal.SIGKILL)
            for _ in range(600):
                if all(is_gone(pid) for pid in ranks):
                    break
                time.sleep(0.1)
            else:
                problems.append(f"{ending}: ranks live on behind a pipe that is full")
            for _ in range(2):  # what is left to print is not waited for
                if job.poll() is None:
                    job.terminate()
                    time.sleep(0.2)
            try:
                job.wait(60)
            except subprocess.TimeoutExpired:
                problems.append(f"{ending}: run waits for a reader that reads nothing")
                job.kill()
            os.close(never_read)
            os.close(full)
            for r in (0, 1):
                os.remove(f"{folder}/rank{r}")

        for wrong in (["--nprocs", "0"], ["--nprocs", "-1"], ["--grace", "1s"], ["--nprocs", "2", "--shard-id", "1"],
                      ["--nprocs", "2", "--init-method", "h:1"], ["--nprocs", "2", "--init-method", "tcp://h:70000"],
                      ["--nprocs", "2", "--master-port", "0"], ["--nprocs", "2", "--grace", "soon"]):
            done = run(*wrong)
            check(f"refusal of {wrong}", (done.returncode, bool(done.stderr)), (125, True))
        daemon.terminate()
        check("the broker's end", daemon.wait(30), 0)
        os.close(ready)
    if problems:
        sys.exit("\n".join(problems))


main()
