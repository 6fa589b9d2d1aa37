# SPDX-License-Identifier: Apache-2.0
"""The random numbers of a rank that is a copy of the fork server are those that a fresh interpreter would have.

Copies of one generator draw the same numbers in each rank. So a generator that only the start of the interpreter has
seeded gets a new seed in each rank. A program that seeds one when its module is imported gets what it asked for. That is
so for `random`, `numpy.random` and torch's generator for the CPU.
"""
from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any


class Seeds:
    """Made before the program's modules are imported. It stands in sys.meta_path, and notes the state that a generator
    has when its own import is complete: no program has used it by then."""

    def __init__(self) -> None:
        self._fresh = {name: state() for name, state in _STATES.items() if name in sys.modules}
        self._program: dict[str, Any] = {}
        sys.meta_path.insert(0, self)  # type: ignore[arg-type]

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name not in _STATES:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def note(module: Any) -> None:
                execute(module)
                self._fresh[name] = _STATES[name]()
            loader.exec_module = note
        return spec

    def loaded(self) -> None:
        """The program's modules are there. A state that has changed is theirs."""
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        self._program = {name: _STATES[name]() for name in self._fresh}
        self._program = {name: state for name, state in self._program.items() if state != self._fresh[name]}

    def copied(self) -> None:
        """In a rank, which has the same states, but for `random`: Python itself has given that one a new seed."""
        if "random" in self._program:
            sys.modules["random"].setstate(self._program["random"])
        for name in self._fresh.keys() - self._program.keys():
            if name == "numpy.random":
                sys.modules[name].seed()
            elif name == "torch":
                sys.modules[name].default_generator.seed()


def _numpy() -> Any:
    kind, numbers, *rest = sys.modules["numpy.random"].get_state()
    return kind, numbers.tolist(), *rest


_STATES = {"random": lambda: sys.modules["random"].getstate(), "numpy.random": _numpy,
           "torch": lambda: sys.modules["torch"].default_generator.get_state().tolist()}
