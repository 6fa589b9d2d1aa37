# SPDX-License-Identifier: Apache-2.0
"""torch.multiprocessing on the broker: `import shmbroker.torch.multiprocessing as mp`, and nothing of torch is changed.

It has every public name of torch.multiprocessing. Queue, SimpleQueue, JoinableQueue, Pipe, Pool and Process are those of
shmbroker.mp, and carry tensors in regions of the broker. `share_memory_()` stays torch's own: `shmbroker.torch.install()`
changes that, too, and the workers of a DataLoader.
"""
from __future__ import annotations

import importlib as _importlib
import multiprocessing as _std
import sys as _sys
from multiprocessing import queues as _std_queues
from typing import Any

import torch
import torch.multiprocessing as _stock

from .. import errors as _errors
from ..mp import context as _mp_context
from ..mp import pickling as _pickling
from ..mp import place as _place
from ..mp import process as _process
from ..mp import queues as _queues
from . import reductions as _reductions
from . import storage as _storage

_pickling.reducers[torch.UntypedStorage] = _reductions.reduce_storage
_pickling.reducers[torch.Tensor] = _pickling.reducers[torch.nn.Parameter] = _reductions.reduce_tensor

_WORKER = "torch.utils.data._utils.worker"  # the module of a DataLoader's workers
_CROWD = 60  # processes with one queue; more need a pipe, because a queue of the broker is shared by at most 64


class TensorQueue(_queues.Queue):
    """As multiprocessing.Queue, with tensors in regions of the broker."""

    def put(self, obj: Any, block: bool = True, timeout: float | None = None) -> None:
        try:
            super().put(obj, block, timeout)
        except Exception as error:
            # Without its broker the queue tells the training script by itself, and this worker ends.
            told = None if isinstance(error, _errors.SessionLost) else _told(obj, error)
            if told is None:
                raise
            super().put(told, block, timeout)


def _told(obj: Any, error: Exception) -> Any:
    """In a DataLoader's worker: what tells the training script, in place of a batch that could not be sent."""
    from queue import Full

    from torch.utils.data import get_worker_info
    worker = get_worker_info()
    if worker is None or isinstance(error, Full) or type(obj) is not tuple or len(obj) != 2:
        return None
    from torch._utils import ExceptionWrapper
    return obj[0], ExceptionWrapper(where=f"in DataLoader worker process {worker.id}")


class PipeQueue(_std_queues.Queue):  # type: ignore[type-arg]
    """The standard library's, for many workers of a DataLoader. Its thread tells of a batch that cannot be sent."""

    def _on_queue_feeder_error(self, e: BaseException, obj: Any) -> None:
        told = None
        if isinstance(e, Exception):
            try:
                raise e
            except Exception as error:
                told = _told(obj, error)
        if told is None:
            super()._on_queue_feeder_error(e, obj)  # type: ignore[misc]
        else:
            try:
                self.put(told)
            except ValueError:  # closed meanwhile
                super()._on_queue_feeder_error(e, obj)  # type: ignore[misc]


class _Installed:
    """A process whose child has what its parent has installed."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        from . import installed
        plain = super().__reduce_ex__(protocol)
        if not installed() or getattr(_process._packing, "process", None) is self:
            return plain
        return _open, plain[:2] if isinstance(plain, tuple) and len(plain) == 2 else (None, plain)

    def run(self) -> None:
        try:
            super().run()
        except _errors.SessionLost:
            # The broker of a DataLoader has gone. Its own queue tells the training script. A worker that failed now would
            # make torch's handler of SIGCHLD blame whatever loader is used next.
            if getattr(self._target, "__module__", "") != _WORKER:
                raise


def _open(function: Any, args: Any) -> Any:
    from . import install_in_child
    install_in_child()
    return function(*args)


class ForkProcess(_Installed, _process.ForkProcess):
    pass


class SpawnProcess(_Installed, _process.SpawnProcess):
    pass


class ForkServerProcess(_Installed, _process.ForkServerProcess):
    pass


class BaseContext(_mp_context.BaseContext):
    def Queue(self, maxsize: int = 0) -> Any:
        """Returns a queue object"""
        if _crowded():
            return PipeQueue(maxsize, ctx=_std.get_context(self._method()))
        return TensorQueue(maxsize, ctx=self.get_context())

    def _method(self) -> str:
        return self.get_context()._name

    def get_context(self, method: str | None = None) -> Any:
        if method is None:
            return self
        try:
            return _contexts[method]
        except KeyError:
            raise ValueError(f"cannot find context for {method!r}") from None


class ForkContext(BaseContext):
    _name = "fork"
    Process = ForkProcess


class SpawnContext(BaseContext):
    _name = "spawn"
    Process = SpawnProcess


class ForkServerContext(BaseContext):
    _name = "forkserver"
    Process = ForkServerProcess


_contexts: dict[str, Any] = {"fork": ForkContext(), "spawn": SpawnContext(), "forkserver": ForkServerContext()}


class Process(_Installed, _process.Process):
    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        return _default_context.get_context().Process._Popen(process_obj)

    @staticmethod
    def _after_fork() -> None:
        _default_context.get_context().Process._after_fork()


class DefaultContext(BaseContext):
    """Has the start method of `multiprocessing`, as torch.multiprocessing has."""

    Process = Process

    def get_context(self, method: str | None = None) -> Any:
        return super().get_context(_std.get_start_method() if method is None else method)


_default_context = DefaultContext()
_crowds: list[int] = []


def _crowded() -> bool:
    return bool(_crowds)


def _iterator(stock: Any) -> Any:
    """`__init__` of a DataLoader's iterator. More workers than a queue of the broker takes share pipes, as in stock torch.
    Their batches are in regions all the same."""

    def __init__(self: Any, loader: Any, *args: Any, **keywords: Any) -> None:
        crowd = loader.num_workers > _CROWD
        if crowd:
            _place.home()  # a new one where the broker has gone, before there are workers
            _crowds.append(loader.num_workers)
        try:
            stock(self, loader, *args, **keywords)
        finally:
            if crowd:
                _crowds.pop()

    __init__._shmbroker_stock = stock  # type: ignore[attr-defined]
    return __init__


def _try_get_data(stock: Any) -> Any:
    """Where the broker has gone, stock would blame the workers: they have ended, because they have no broker either."""

    def _try_get_data(self: Any, *args: Any, **keywords: Any) -> Any:
        try:
            return stock(self, *args, **keywords)
        except (_errors.SessionLost, RuntimeError) as error:
            if not isinstance(error, _errors.SessionLost) and not isinstance(error.__cause__, _errors.SessionLost):
                raise
        raise _storage.loader_lost()

    return _try_get_data


def _get_data(stock: Any) -> Any:
    """The thread that pins memory ends with the broker, and stock then tells of the thread."""

    def _get_data(self: Any, *args: Any, **keywords: Any) -> Any:
        try:
            return stock(self, *args, **keywords)
        except RuntimeError:
            channel = getattr(getattr(self, "_worker_result_queue", None), "_channel", None)
            if channel is None:
                raise
            try:
                _place.heed(channel.session)
            except _errors.SessionLost:
                raise _storage.loader_lost() from None
            raise

    return _get_data


NAMES = ("Queue", "SimpleQueue", "JoinableQueue", "Pipe", "Pool", "Process", "get_context")  # what install() replaces

_own = {name: getattr(_default_context, name) for name in NAMES if name != "Process"}
_SPAWN = ("spawn", "start_processes", "SpawnContext", "ProcessContext", "ProcessException", "ProcessRaisedException",
          "ProcessExitedException")
__all__ = sorted(set(_stock.__all__) | set(_SPAWN[:2]))


# The modules below torch.multiprocessing, for programs that import from them.
__path__: list[str] = []
_sys.modules[__name__ + ".spawn"] = _importlib.import_module("shmbroker.torch.spawn")
_sys.modules[__name__ + ".reductions"] = _stock.reductions


def __getattr__(name: str) -> Any:
    if name in _own:
        return _own[name]
    if name in _SPAWN:
        return getattr(_importlib.import_module("shmbroker.torch.spawn"), name)
    try:
        return getattr(_stock, name)
    except AttributeError:
        raise AttributeError(f"module 'shmbroker.torch.multiprocessing' has no attribute '{name}'") from None


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_own) | {name for name in dir(_stock) if not name.startswith("_")})
