# SPDX-License-Identifier: Apache-2.0
"""Calls of functions at other workers.

A function goes by reference: the worker that runs it imports it, or has it in its own main program. The name of a
function of C++ is a text: then arguments and result are plain values (plain.py).
"""
from __future__ import annotations

from typing import Any, Callable

import torch

from ... import _core, errors
from ...arguments import items, wrong
from . import failures, futures, message, plain, state
from .options import UNSET_RPC_TIMEOUT, nanoseconds
from .references import RRef, reference_in

Function = Callable[..., Any] | str
Worker = str | int | state.WorkerInfo


def _name_of(function: Any) -> str:
    name = getattr(function, "__qualname__", None) or getattr(function, "__name__", None) or type(function).__name__
    return f"{getattr(function, '__module__', None) or 'torch'}.{name}"[:200]


def _request(world: state.World, to: int, function: Function, args: Any, kwargs: Any) -> tuple[Any, ...]:
    """(function, data, regions, references, flags) for a call or a creation."""
    args = () if args is None else items(args, "args", "a tuple or list of arguments")
    if kwargs and not hasattr(type(kwargs), "keys"):
        raise wrong("kwargs", "a dict", kwargs)
    if isinstance(function, str):
        if kwargs:
            raise TypeError(f"the function {function!r} is called by its name, with arguments by position only")
        packed = plain.Packer(world.core, reference_in).pack(args).payload()
        on_object = args and isinstance(args[0], RRef) and args[0].owner().id == to
        return (function, *packed, _core.CALL_ON_OBJECT if on_object else 0)
    if not callable(function):
        raise TypeError("function should be callable.")
    return (_name_of(function), *message.pack(world.core, (function, args, kwargs or {})), 0)


def _call(to: Worker, function: Function, args: Any, kwargs: Any, timeout: float) -> tuple[Any, int]:
    world = state.current()
    rank, limit = world.info(to).id, nanoseconds(timeout, world.timeout)
    try:
        return world.core.call(rank, *_request(world, rank, function, args, kwargs), limit), limit
    except errors.Error as error:
        raise failures.of_broker(error, limit) from None


def rpc_sync(to: Worker, func: Function, args: Any = None, kwargs: Any = None,
             timeout: float = UNSET_RPC_TIMEOUT) -> Any:
    """Runs func(*args, **kwargs) at the worker `to`, and gives its result."""
    return futures.value_of(*_call(to, func, args, kwargs, timeout))


def rpc_async(to: Worker, func: Function, args: Any = None, kwargs: Any = None,
              timeout: float = UNSET_RPC_TIMEOUT) -> torch.futures.Future[Any]:
    """The same at once, as a torch.futures.Future."""
    return futures.Future(*_call(to, func, args, kwargs, timeout))


def remote(to: Worker, func: Function, args: Any = None, kwargs: Any = None,
           timeout: float = UNSET_RPC_TIMEOUT) -> RRef[Any]:
    """Runs func(*args, **kwargs) at the worker `to`, which keeps the result. Gives a reference to it at once."""
    world = state.current()
    rank, limit = world.info(to).id, nanoseconds(timeout, world.timeout)
    try:
        return RRef.adopt(world.core.create(rank, *_request(world, rank, func, args, kwargs), limit), world)
    except errors.Error as error:
        raise failures.of_broker(error, limit) from None


def on_value(how: str, rref: RRef[Any], name: str, args: Any, kwargs: Any, timeout: float) -> Any:
    """A method of the value of a reference, at its owner, once the value is made."""
    world = rref._open(f"{how}() on it")
    rank, limit = rref._reference.info()[4], nanoseconds(timeout, world.timeout)
    try:
        packed = message.pack(world.core, (name, args, kwargs), [rref._reference])
        request = (rank, name, *packed, _core.CALL_ON_OBJECT, limit)
        if how == "remote":
            return RRef.adopt(world.core.create(*request), world)
        call = world.core.call(*request)
    except errors.Error as error:
        raise failures.of_broker(error, limit) from None
    return futures.value_of(call, limit) if how == "rpc_sync" else futures.Future(call, limit)
