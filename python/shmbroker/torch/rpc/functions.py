# SPDX-License-Identifier: Apache-2.0
"""Decorators of functions that other workers call."""
from __future__ import annotations

import functools
from typing import Any, Callable

_registered: dict[str, Callable[..., Any]] = {}


def async_execution(fn: Any) -> Any:
    """Of a function that returns a Future: its caller is answered when that is done, and no thread waits for it."""

    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    wrapper._wrapped_async_rpc_function = fn  # type: ignore[attr-defined]
    return wrapper


def register(name: str) -> Callable[[Any], Any]:
    """Lets workers call a function by a name, also those of C++. It takes and gives plain values, buffers, and RRefs."""

    def enter(fn: Any) -> Any:
        known = _registered.get(name, fn)
        # One of the same name replaces it: a module that is loaded again, or is the main program, too.
        if known is not fn and getattr(known, "__qualname__", 0) != getattr(fn, "__qualname__", 1):
            raise ValueError(f"another function is registered as {name!r} already")
        _registered[name] = fn
        return fn

    return enter


def find(name: str) -> Callable[..., Any] | None:
    return _registered.get(name)


def names() -> list[str]:
    return sorted(_registered)
