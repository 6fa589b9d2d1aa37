# SPDX-License-Identifier: Apache-2.0
"""Which questions each part asks, in which order. The gate comes first: what the design stands on, the riskiest for the
machine last. Figures are asked alone, so that nothing else runs beside them."""

import importlib.util
import json
import os
import subprocess
import sys

import asking
import regions
import torch_facts

HERE = os.path.dirname(os.path.abspath(__file__))
GATE = "T4 T1 T29 T30 T7 T31 T6 T11 T10 T9 T5 T8 T2 T27 T3".split()
GATE_REGIONS = "sleep T25 T27 66".split()
REST = "T12 T14 T15 T16 T17 T18 T27e T28 T13".split()
FIGURES = "P1 P2 P6 P7 P5 P8".split()
REGION_FIGURES = ["P3,P4"]
BARE = ("machine", "T3")  # asked without this runner holding the device open
PACKAGE_LIMIT_S = 400
PACKAGE_ON_FAKE = ("test_core_queues",)  # a check of this program; the build's own tests run the others
NOT_ON_FAKE = {
    "T5": "needs a driver that every user can load",
}


class Pack:
    """The folder that `pack` made, and whether its fake driver is asked instead of the real one."""

    def __init__(self, here=HERE, fake=False):
        self.here, self.fake = here, fake
        made = os.path.join(here, "made.json")
        if not os.path.exists(made):
            sys.exit(f"{here} is not a packed folder: make one by tests/gpu/pack, and call the `run` in it")
        with open(made, encoding="utf-8") as file:
            self.made = json.load(file)
        self.commit = self.made["commit"]
        self.facts = os.path.join(here, "gpu-facts")
        self.library = os.path.join(here, "package", "shmbroker", "libshmbroker.so.0")
        self.broker = os.path.join(here, *(("fake",) if fake else ("package", "shmbroker")), "shmbrokerd")
        self.environment = {"CUDA_MODULE_LOADING": "EAGER", "CUDA_CACHE_DISABLE": "1"}
        if fake:
            self.environment["LD_LIBRARY_PATH"] = os.path.join(here, "fake")
        self.listed = {}
        self.no_torch = None

    def probe(self):
        """Nothing, or why there is no driver to be asked."""
        command = [self.facts, "--probe"] + (["--fake"] if self.fake else [])
        try:
            done = subprocess.run(command, env={**os.environ, **self.environment}, capture_output=True, text=True,
                                  preexec_fn=asking.die_with_parent, timeout=120)  # fmt: skip
        except subprocess.TimeoutExpired:
            return "the driver does not answer within 120 s"
        return "" if done.returncode == 0 else done.stdout.strip() or f"gpu-facts ended with status {done.returncode}"

    def without_torch(self):
        """Why plain memory must stand for tensors, or nothing. Asked once: torch takes seconds to load."""
        if self.no_torch is None:
            code = "import torch; assert torch.cuda.is_available(), 'torch sees no GPU'"
            done = subprocess.run([sys.executable, "-B", "-c", code], capture_output=True, text=True, timeout=120,
                                  preexec_fn=asking.die_with_parent)  # fmt: skip
            said = done.stderr.strip().splitlines() or ["python ended without a word"]
            self.no_torch = "" if done.returncode == 0 else said[-1]
        return self.no_torch

    # ---------------------------------------------------------------------------------------- the questions

    def fact(self, name):
        if not self.listed:
            done = subprocess.run([self.facts, "--list"], capture_output=True, text=True, check=True)
            for line in done.stdout.splitlines():
                one, limit, text = line.split("\t")
                self.listed[one] = int(limit), text
        limit, text = self.listed[name]
        command = [self.facts] + (["--quick", "--wait", "200"] if self.fake else []) + [name]
        environment = {**self.environment, "FAKECUDA_CARD": f"{name}-{os.getpid()}"}
        return asking.question(name, text, limit, command, environment, NOT_ON_FAKE.get(name) if self.fake else None)

    def region(self, case):
        command = [sys.executable, "-B", os.path.join(self.here, "regions.py"), "--library", self.library,
                   "--broker", self.broker]  # fmt: skip
        needs = None
        if self.fake:
            command.append("--fake")
        elif self.without_torch():
            command.append("--plain")
            needs = self.no_torch if case in regions.ABOUT_TORCH else None
        environment = {**self.environment, "FAKECUDA_CARD": f"r{case}-{os.getpid()}"}
        return asking.question("regions " + case, regions.CASES[case][0], regions.LIMIT_S, command + [case], environment,
                               needs)  # fmt: skip

    def of_torch(self, case):
        needs = "needs a GPU: there is no torch for the fake driver" if self.fake else None
        command = [sys.executable, "-B", os.path.join(self.here, "torch_facts.py"), case]
        return asking.question("torch " + case, torch_facts.QUESTIONS[case], 90, command, needs=needs)

    def package(self, path):
        """A program that tries the package with this machine's Python and torch; a test of pytest where that is."""
        name = os.path.basename(path)[:-3]
        package = os.path.join(self.here, "package", "shmbroker")
        environment = {
            "PYTHONPATH": os.path.join(self.here, "package"),
            "LD_LIBRARY_PATH": package,
            "SHMBROKER_DAEMON": os.path.join(package, "shmbrokerd"),
            "SHMBROKER_SPAWNER": os.path.join(package, "shmbroker-spawner"),
            "SHMBROKER_TOOL": os.path.join(package, "shmbroker"),
        }
        command, needed = [sys.executable, "-B", path], ["torch"]
        if name.startswith("test_"):
            command = [sys.executable, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", path]
            needed = ["pytest", "numpy", "psutil"] + (["torch"] if "torch" in name else [])
        needs = None
        if self.fake and name not in PACKAGE_ON_FAKE:
            needed, needs = [], "takes minutes, and has nothing to do with the driver"
        for module in needed:
            if importlib.util.find_spec(module) is None:
                needs = f"this machine's Python has no {module}"
        return asking.question("package " + name, "the package with this machine's Python, without a GPU", PACKAGE_LIMIT_S,
                               command, environment, needs)  # fmt: skip

    def package_files(self):
        folder = os.path.join(self.here, "package-tests")
        found = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
        return [os.path.join(folder, one) for one in found if one.startswith(("anywhere", "test_"))]

    def questions(self, part):
        """Without asking anything yet: a generator, because some of them cost seconds to prepare."""
        if part == "gate":
            yield from map(self.fact, GATE)
            yield from map(self.region, GATE_REGIONS)
        elif part == "library":
            yield from (self.region(case) for case in regions.CASES if case not in REGION_FIGURES)
        elif part == "torch":
            yield from map(self.of_torch, torch_facts.CASES)
            yield from map(self.package, self.package_files())
        elif part == "rest":
            yield from map(self.fact, REST)
        else:
            yield from map(self.fact, FIGURES)
            yield from map(self.region, REGION_FIGURES)
