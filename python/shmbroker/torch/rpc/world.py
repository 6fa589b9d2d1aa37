# SPDX-License-Identifier: Apache-2.0
"""Joining a world and leaving it."""
from __future__ import annotations

import atexit
from typing import Any

from ... import _core, errors
from ...arguments import number, seconds, text, wrong
from . import failures, service, state
from .options import (DEFAULT_NUM_WORKER_THREADS, DEFAULT_SHUTDOWN_TIMEOUT, RpcBackendOptions,
                      TensorPipeRpcBackendOptions, meeting_point, nanoseconds)

_LONGEST = 10**9 * 86400 * 365  # ns: what stands for no limit where there must be one
_JOIN = 60 * 10**9
_MOST_THREADS = 256


def init_rpc(name: str, backend: Any = None, rank: int = -1, world_size: int | None = None,
             rpc_backend_options: RpcBackendOptions | None = None) -> None:
    """Joins the world that the workers of this host meet in. Returns when all have come.

    It waits for them for rpc_timeout, and 60 s at least: rpc_timeout is of calls, and programs start one after another.
    rank and world_size that are not given come from RANK and WORLD_SIZE.

    `backend` is accepted, whatever it names. Of the options count rpc_timeout, init_method and num_worker_threads.
    """
    text(name, "name", "a str, the name of this worker")
    rank = number(rank, "rank")
    if world_size is not None:
        world_size = number(world_size, "world_size", "an int or None")
    options: Any = TensorPipeRpcBackendOptions() if rpc_backend_options is None else rpc_backend_options
    for field in ("rpc_timeout", "init_method"):
        if not hasattr(options, field):
            raise wrong("rpc_backend_options", "a TensorPipeRpcBackendOptions or RpcBackendOptions", options)
    address, rank, size = meeting_point(options.init_method, rank, world_size)
    threads = getattr(options, "num_worker_threads", DEFAULT_NUM_WORKER_THREADS)
    if not 1 <= number(threads, "num_worker_threads") <= _MOST_THREADS:
        raise ValueError(f"num_worker_threads is 1 to {_MOST_THREADS}, not {threads}")
    timeout = seconds(options.rpc_timeout, "rpc_timeout")
    limit = nanoseconds(timeout, timeout)
    with state.joining:
        if state.current_or_none() is not None:
            raise RuntimeError("RPC is already initialized in this process: call shutdown() first")
        state.joined.clear()
        try:
            worker = _core.join_world(service.serve, name, address, rank, size, threads, None,
                                      _LONGEST if limit < 0 else max(limit, _JOIN), limit)
            state.enter(state.World(worker, timeout))
        except errors.Timeout as error:
            raise failures.RpcTimeout(str(error)) from None  # says who is missing
        except errors.Error as error:
            raise failures.of_broker(error) from None
        finally:
            state.joined.set()


def shutdown(graceful: bool = True, timeout: float = DEFAULT_SHUTDOWN_TIMEOUT) -> None:
    """Graceful: waits until every living worker has come here and no call is under way. `timeout` 0: no limit.

    The world is left also where it raises. References of this worker are given up.
    """
    world = state.current()
    limit = _LONGEST if timeout == 0 else nanoseconds(timeout, timeout)
    try:
        world.core.shutdown(not graceful, False, False, limit)
    except errors.Timeout as error:
        raise failures.RpcTimeout(str(error)) from None
    except errors.Error as error:
        raise failures.of_broker(error) from None
    finally:
        state.leave(world)
        world.core.close()


def get_worker_info(worker_name: str | None = None) -> state.WorkerInfo:
    """Of a worker by its name; of this one without."""
    world = state.current()
    return world.me if worker_name is None else world.info(worker_name)


def get_worker_infos() -> list[state.WorkerInfo]:
    return list(state.current().infos)


def get_rpc_timeout() -> float:
    """The timeout of calls that name none, in seconds."""
    return state.current().timeout


def _set_rpc_timeout(rpc_timeout_seconds: float) -> None:
    """For later calls of this worker; 0 for no limit."""
    world = state.current()
    limit = nanoseconds(rpc_timeout_seconds, rpc_timeout_seconds)
    world.timeout = float(rpc_timeout_seconds)
    world.core.set_timeout(limit)


def _debug_info() -> dict[str, int]:
    """Counters of this worker: values here, references to them in the books, its own references, and calls."""
    try:
        owned, users, held, pending, waiting, running = state.current().core.counters()
    except errors.Error as error:
        raise failures.of_broker(error) from None
    return {"num_owner_rrefs": owned, "num_forks": users, "num_held_rrefs": held, "num_pending_futures": pending,
            "num_waiting_calls": waiting, "num_running_calls": running}


def _end() -> None:
    """Before the interpreter ends: no thread of the library may ask for the GIL after that."""
    world = state.current_or_none()
    if world is not None and state.leave(world):
        world.core.close()


atexit.register(_end)
