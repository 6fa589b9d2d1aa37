# SPDX-License-Identifier: Apache-2.0
"""Processes of the three start methods. Their large arguments travel in shared memory, and they are in our group.

A child may use a queue that its parent has closed meanwhile, and look at an array that its parent has dropped. So the
parent keeps both until the child has ended.
"""
from __future__ import annotations

import multiprocessing.context as _contexts
import multiprocessing.process as _base
import pickle
import threading
from multiprocessing.process import *  # noqa: F403

from . import channel, connection, place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_packing = threading.local()


def __getattr__(name: str) -> Any:
    return getattr(_base, name)


class _Packed:
    """Pickles a process with its large arguments apart."""

    def __init__(self, group: Any = None, target: Any = None, name: Any = None, args: Any = (), kwargs: Any = {}, *,
                 daemon: Any = None) -> None:
        super().__init__(group, target, name, args, kwargs, daemon=daemon)
        if target is not None and getattr(target, "__name__", "") == "_process_worker":
            from . import executor
            executor.carry(target, args)

    def __reduce_ex__(self, protocol: Any) -> Any:
        plain = super().__reduce_ex__(protocol)
        if _contexts.get_spawning_popen() is None or getattr(_packing, "process", None) is self:
            return plain
        _packing.process = self
        try:
            envelope = connection.Envelope(self, lend=True)
        finally:
            _packing.process = None
        from .context import _default_context
        return _open, (place.address(), place.variables(), _default_context.get_start_method(allow_none=True), envelope.stream)

    def _bootstrap(self, parent_sentinel: Any = None) -> Any:
        if self._start_method is not None:
            from .context import _default_context
            _default_context.set_start_method(self._start_method, force=True)
        return super()._bootstrap(parent_sentinel)


def _open(address: Any, variables: dict[str, str], method: str | None, stream: bytes) -> Any:
    from .context import _default_context
    place.adopt(address, variables)
    _default_context.set_start_method(method, force=True)
    return pickle.loads(stream)


class Process(_Packed, _contexts.Process):
    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        from .context import _default_context
        return _default_context.get_context().Process._Popen(process_obj)

    @staticmethod
    def _after_fork() -> None:
        from .context import _default_context
        _default_context.get_context().Process._after_fork()


class ForkProcess(_Packed, _contexts.ForkProcess):
    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        from multiprocessing.popen_fork import Popen
        kept = channel.in_use()
        popen = Popen(process_obj)
        popen._shmbroker_kept = kept
        return popen


class SpawnProcess(_Packed, _contexts.SpawnProcess):
    pass


class ForkServerProcess(_Packed, _contexts.ForkServerProcess):
    pass
