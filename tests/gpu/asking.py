# SPDX-License-Identifier: Apache-2.0
"""One question: a process that answers in lines on its stdout, until it ends or its time is over. Anything that it
leaves behind is ended with it: this process adopts the orphans of its descendants, so nobody can get away by a fork or
a new session.

A line is `+KEY<tab>VALUE` for a fact, `!fail<tab>SENTENCE` for what is wrong, `-skip<tab>SENTENCE` for what cannot be asked
here. Of other lines the last ones are kept, under `said`."""

import collections
import ctypes
import os
import select
import shutil
import signal
import subprocess
import time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
LINE, LINES, SAID = 2000, 200, 30  # kept of one answer: bytes of a line, facts, other lines
SKIPPED = 77  # the exit status of a program that cannot be asked here
_libc = ctypes.CDLL(None)

# A question: its name, the question, the longest time for an answer, command and environment beside ours. `needs` is the
# reason why it cannot be asked, or nothing.
Question = collections.namedtuple("Question", "name question limit_s command environment needs")


def question(name, text, limit_s, command, environment=None, needs=None):
    return Question(name, text, limit_s, list(command), environment or {}, needs)


class Stopped(Exception):
    """Somebody asked the run to stop."""


def adopt_orphans():
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent():
    """In a child before its exec: it must not outlive a runner that is killed."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _parents():
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", "rb") as file:
                    found[int(entry)] = int(file.read().rpartition(b")")[2].split()[1])
            except (OSError, ValueError):
                pass  # it has ended meanwhile
    return found


def descendants():
    parents, found, before = _parents(), {os.getpid()}, 0
    while len(found) != before:
        before = len(found)
        found |= {pid for pid, parent in parents.items() if parent in found}
    return found - {os.getpid()}


def end_descendants():
    """Ends every process below this one; those that not even SIGKILL ended within 15 s are the answer."""
    end = time.monotonic() + 15
    while True:
        left = descendants()
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            while os.waitpid(-1, os.WNOHANG)[0] != 0:
                pass
        except ChildProcessError:
            return []
        if time.monotonic() > end:
            return sorted(left)
        time.sleep(0.01)


def tail(path, size=2000):
    with open(path, "rb") as file:
        file.seek(max(os.path.getsize(path) - size, 0))
        return file.read().decode(errors="replace")


class Answer:
    def __init__(self, asked):
        self.asked = asked
        self.verdict, self.reasons, self.facts, self.said = None, [], [], collections.deque(maxlen=SAID)

    def take(self, line):
        line = line.decode(errors="replace")[:LINE]
        kind, (key, tab, value) = line[:1], line[1:].partition("\t")
        if kind == "+" and tab:
            if len(self.facts) < LINES:
                self.facts.append({"key": key, "value": value})
        elif kind in "!-" and tab:
            self.reasons.append(value)
            if self.verdict != "fail":
                self.verdict = "skip" if kind == "-" else "fail"
        elif line.strip():
            self.said.append(line)

    def fail(self, reason):
        self.verdict = "fail"
        self.reasons.append(reason)

    def as_json(self, seconds):
        if self.said:
            self.facts.append({"key": "said", "value": "\n".join(self.said)[-LINE:]})
        return {"name": self.asked.name, "question": self.asked.question, "verdict": self.verdict or "pass",
                "seconds": round(seconds, 2), "date": now(), "reasons": self.reasons, "facts": self.facts}  # fmt: skip


def now():
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def ask(asked, folder, limit_s, stopping=lambda: False):
    """The answer, or None where `limit_s` was less than the question's own limit and over. `folder` is made for it, and is
    gone afterwards."""
    if asked.needs:
        answer = Answer(asked)
        answer.take(b"-skip\t" + asked.needs.encode())
        return answer.as_json(0)
    answer, start, text = Answer(asked), time.monotonic(), b""
    os.mkdir(folder, 0o700)
    environment = {**os.environ, "TMPDIR": folder, "XDG_RUNTIME_DIR": folder, "PYTHONDONTWRITEBYTECODE": "1",
                   **asked.environment}  # fmt: skip
    try:
        child = subprocess.Popen(asked.command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                 env=environment, cwd=folder, start_new_session=True, preexec_fn=die_with_parent)
        late = False
        while True:
            # Its children may hold the pipe: only its own end, or the time, ends the wait.
            ended = child.poll() is not None
            ready = select.select([child.stdout], [], [], 0 if ended else 0.05)[0]
            part = os.read(child.stdout.fileno(), 65536) if ready else b""
            text += part
            *lines, text = text.split(b"\n")
            for line in lines:
                answer.take(line)
            text = text[-LINE:]
            if ended and not part:
                break
            if stopping():
                raise Stopped
            late = not ended and time.monotonic() - start > min(limit_s, asked.limit_s)
            if late:
                break
        answer.take(text)
        if late and limit_s < asked.limit_s:
            return None
        if late:
            answer.fail(f"not done after {asked.limit_s} s")
        elif child.returncode == SKIPPED and answer.verdict is None:
            answer.take(b"-skip\t" + (answer.said[-1] if answer.said else "it says no more").encode())
        elif child.returncode != 0 and answer.verdict is None:
            answer.fail(f"its process ended with status {child.returncode}")
        if answer.verdict == "fail":
            for root, _, files in os.walk(folder):
                for name in files:
                    if name.endswith(".log"):
                        answer.facts.append({"key": f"end of {name}", "value": tail(os.path.join(root, name))})
        return answer.as_json(time.monotonic() - start)
    finally:
        stuck = end_descendants()
        shutil.rmtree(folder, ignore_errors=True)
        if stuck:
            print(f"processes {stuck} did not end by SIGKILL", flush=True)
