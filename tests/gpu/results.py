# SPDX-License-Identifier: Apache-2.0
"""The results of one part: a JSON file that is whole at any moment, and a text of all parts beside it. A run goes on where
the one before it ended, if program, driver and kernel are the same."""

import json
import os

PARTS = ("gate", "library", "torch", "rest", "figures")
SAME = ("commit", "fake", "driver", "kernel")  # what two runs of one file must have in common
TIMES = 2  # so often is a question asked during which the run was killed


class Differs(Exception):
    pass


def write_whole(path, text):
    with open(path + ".part", "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.rename(path + ".part", path)


class Results:
    def __init__(self, folder, part, header):
        self.folder, self.part = folder, part
        self.path = os.path.join(folder, part + ".json")
        self.data = {"part": part, "machine": header, "runs": [], "asking": None, "tests": []}
        if os.path.exists(self.path):
            with open(self.path, encoding="utf-8") as file:
                old = json.load(file)
            for key in SAME:
                if old["machine"].get(key) != header.get(key):
                    raise Differs(f"{self.path} has results of another {key} ({old['machine'].get(key)}, now "
                                  f"{header.get(key)}): name another folder by --into, or remove the file")
            self.data.update(old, machine=header)
        self.data["runs"].append({"date": header["date"], "ended": "killed"})

    def write(self):
        write_whole(self.path, json.dumps(self.data, indent=1) + "\n")

    def is_answered(self, name):
        return any(one["name"] == name for one in self.data["tests"])

    def begin(self, name):
        """False: the run was killed twice while it was asked, which is an answer."""
        asking = self.data["asking"]
        times = asking["times"] if asking and asking["name"] == name else 0
        self.data["asking"] = {"name": name, "times": times + 1}
        self.write()
        return times < TIMES

    def add(self, test):
        self.data["asking"] = None
        self.data["tests"].append(test)
        self.write()

    def end(self, how, open_questions):
        if how != "killed":
            self.data["asking"] = None
        self.data["runs"][-1]["ended"] = how
        self.data["open"] = open_questions
        self.write()
        write_whole(os.path.join(self.folder, "report.txt"), report(self.folder))


def lines_of(test):
    yield f"{test['name']:<12} {test['verdict']:<5} {test['seconds']:7.1f} s  {test['question']}"
    for reason in test["reasons"]:
        yield f"    ! {reason}"
    for fact in test["facts"]:
        yield f"    {fact['key']}: {fact['value']}"


def report(folder):
    """Of all parts that are there, in their order."""
    lines = []
    for part in PARTS:
        path = os.path.join(folder, part + ".json")
        if not os.path.exists(path):
            continue
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
        lines.append(f"== {part}")
        if data["machine"]["fake"]:
            lines.append("ON THE FAKE DRIVER: nothing below says anything about a GPU or about NVIDIA's driver")
        lines += [f"{key}: {value}" for key, value in data["machine"].items()]
        for test in data["tests"]:
            lines += lines_of(test)
        if data.get("open"):
            lines.append(f"not asked yet: {', '.join(data['open'])}")
    return "\n".join(lines) + "\n"
