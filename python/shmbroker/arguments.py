# SPDX-License-Identifier: Apache-2.0
"""Checks of what a caller passes. A refusal names the argument, what it takes, and what it got instead.

The functions of `_core` check by themselves. These are for the functions in Python, where a wrong type would else come out
as an AttributeError, or as a sentence about operators.
"""
from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def wrong(what: str, takes: str, value: object) -> TypeError:
    return TypeError(f"{what} is {takes}, not {type(value).__name__!r}")


def text(value: Any, what: str, takes: str = "a str") -> None:
    if not isinstance(value, str):
        raise wrong(what, takes, value)


def text_or_none(value: Any, what: str, takes: str = "a str or None") -> None:
    if value is not None:
        text(value, what, takes)


def number(value: Any, what: str, takes: str = "an int") -> int:
    if not hasattr(type(value), "__index__"):
        raise wrong(what, takes, value)
    found: int = value.__index__()
    return found


def seconds(value: Any, what: str, takes: str = "a number of seconds") -> float:
    """Numbers of NumPy and torch are some, too."""
    if isinstance(value, (str, bytes, bytearray)):
        raise wrong(what, takes, value)
    try:
        return float(value)
    except (TypeError, ValueError):
        raise wrong(what, takes, value) from None
    except OverflowError:
        from .errors import Invalid
        raise Invalid(f"{what} is too large") from None


def items(value: Any, what: str, takes: str) -> tuple[Any, ...]:
    """Of a list, a tuple or whatever else can be iterated, but of no text."""
    if isinstance(value, (str, bytes, bytearray)):
        raise wrong(what, takes, value)
    try:
        iterator = iter(value)
    except TypeError:
        raise wrong(what, takes, value) from None
    return tuple(iterator)
