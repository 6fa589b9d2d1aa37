# SPDX-License-Identifier: Apache-2.0
"""torch.multiprocessing.spawn, with ranks that end together.

The names, the arguments, the exceptions and their texts are those of torch, so that a program changes its import alone.
The ranks are treated as docs/spawn.md says, and not as torch does:

- the first failure in time is named, and every join tells the same one
- when join returns no process of the ranks is left, nor what they have started; also when the parent was killed
- a rank that ends before its function has returned has failed, with exit code 0 too, and of SIGINT or KeyboardInterrupt

The rules of torch for a target are kept. Arguments are pickled for each rank, the result is dropped, and the environment of
the ranks is that of the parent. `shmbroker.spawn` has results, and the variables of torchrun.

torch itself is asked for its classes and its words, whatever its version. Nothing here needs install().
"""
from __future__ import annotations

import functools
import importlib
import queue
import sys
import types
from typing import Any, Callable, Iterable, Mapping

from .. import process_errors, processes
from ..arguments import number
from ..process_errors import RankFailure

__all__ = ["spawn", "start_processes", "ProcessContext", "SpawnContext", "ProcessException", "ProcessRaisedException",
           "ProcessExitedException"]


# Not by `import ... as`: that would give the function which has the module's name. Taken once, before install() puts the
# names of this module there.
stock = importlib.import_module("torch.multiprocessing.spawn")
_stock_spawn = stock.spawn


class ProcessException(process_errors.ProcessException, stock.ProcessException):  # type: ignore[misc]
    """Ranks have failed. It is torch's, and has the attributes of shmbroker.ProcessException too."""

    __init__ = process_errors.ProcessException.__init__


class ProcessRaisedException(process_errors.ProcessRaisedException, ProcessException,
                             stock.ProcessRaisedException):  # type: ignore[misc]
    """The function of a rank raised an exception."""

    __init__ = process_errors.ProcessException.__init__


class ProcessExitedException(process_errors.ProcessExitedException, ProcessException,
                             stock.ProcessExitedException):  # type: ignore[misc]
    """A rank ended before its function had returned."""

    __init__ = process_errors.ProcessExitedException.__init__


_KINDS: Mapping[type[process_errors.ProcessException], type[ProcessException]] = {
    process_errors.ProcessException: ProcessException,
    process_errors.ProcessRaisedException: ProcessRaisedException,
    process_errors.ProcessExitedException: ProcessExitedException,
}


def _begin(address: Any) -> None:
    from ..mp import place
    place.adopt(address)
    sys.modules[__package__].install_in_child()


class _ErrorQueue:
    """The object that torch 1 has for each rank. It holds the traceback of a rank that raised."""

    def __init__(self, context: ProcessContext, number: int) -> None:
        self._context, self._number = context, number

    def empty(self) -> bool:
        return self._text() is None

    def get(self) -> str:
        """Does not wait for the ranks, whose text comes when all have ended."""
        text = self._text()
        if text is None:
            raise queue.Empty
        return text

    def _text(self) -> str | None:
        rank = self._context._first_rank + self._number
        return next((_traceback(one) for one in self._context.failures if one.rank == rank and one.kind == "raised"),
                    None)


def _traceback(failure: RankFailure) -> str:
    last = f"{failure.type}: {failure.text}" if failure.text else failure.type
    return f"{failure.trace}{last}\n"


class ProcessContext(processes.ProcessContext, stock.ProcessContext):  # type: ignore[misc]
    """The ranks of one call. join() waits for all of them, so one call of it does what a loop around torch's does."""

    _like_process = True

    @classmethod
    def _prelude(cls) -> tuple[Callable[..., Any], tuple[Any, ...]] | None:
        """Where this process has called install(), the ranks have it too, and are in the same group."""
        installed = getattr(sys.modules[__package__], "installed", None)
        if installed is None or not installed():
            return None
        from ..mp import place
        return _begin, (place.address(),)

    @property
    def sentinels(self) -> dict[int, int]:
        """A descriptor for each rank, readable once it has ended, with its number. Empty once they were joined."""
        if self._state != processes._RUNNING:
            return {}
        return {process.sentinel: number for number, process in enumerate(self.processes)}

    @property
    def error_queues(self) -> list[_ErrorQueue]:
        return [_ErrorQueue(self, number) for number in range(len(self.processes))]

    @property
    def error_files(self) -> list[str | None]:
        """torch 2 has the path of a file for each rank. There is no file here: texts come over the ranks' channel."""
        return [None] * len(self.processes)

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """True when all ranks have ended well, False when ranks are left after `timeout` seconds (0 or less: only looks).

        Raises the first failure, the same at every call. After True and after a failure no process is left.
        grace_period: how long the others may end by themselves after a failure, from now on.
        """
        return super().join(None if timeout is None else max(timeout, 0), grace_period)

    def _exception(self, failures: tuple[RankFailure, ...], sentence: str) -> ProcessException:
        error = super()._exception(failures, sentence)
        kind = _KINDS[type(error)]
        fields = error._fields()
        if type(error) is process_errors.ProcessRaisedException:
            fields = (fields[0].removesuffix("\n") + "\n", *fields[1:])  # torch's text ends as a traceback does
        return kind(*fields, failures=failures)


SpawnContext = ProcessContext  # its name before torch 1.4


def start_processes(fn: Callable[..., Any], args: Iterable[Any] = (), nprocs: int = 1, join: bool = True,
                    daemon: bool = False, start_method: str = "spawn", **options: Any) -> ProcessContext | None:
    """Calls fn(i, *args) in nprocs processes, for i from 0, by any start method: spawn, fork or forkserver.

    forkserver imports the modules of the program once, and copies that interpreter for each rank. daemon: the normal
    exit of this process ends ranks that still run, instead of waiting for them. options: those of shmbroker.spawn.
    """
    if number(nprocs, "nprocs") < 1:
        return None if join else ProcessContext(None, 0, 0, daemon)
    context = processes._start(ProcessContext, fn, args, nprocs, daemon, start_method, **options)
    if not join:
        return context
    processes._join_or_end(context)
    return None


def spawn(fn: Callable[..., Any], args: Iterable[Any] = (), nprocs: int = 1, join: bool = True, daemon: bool = False,
          start_method: str = "spawn", **options: Any) -> ProcessContext | None:
    """start_processes by the method spawn, whatever `start_method` is, of which torch warns."""
    # torch's own function has the words of the warning. Here it calls another start_processes.
    call = types.FunctionType(_stock_spawn.__code__, {
        **_stock_spawn.__globals__, "start_processes": functools.partial(start_processes, **options)})
    return call(fn, args, nprocs, join, daemon, start_method)  # type: ignore[no-any-return]
