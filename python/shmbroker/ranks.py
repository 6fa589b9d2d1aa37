# SPDX-License-Identifier: Apache-2.0
"""The calls by which ranks reach each other. They reach the ranks of one `shmbroker.spawn` on one host.

A call that needs a rank that is gone raises PeerGone. Waits have a limit, 300 s unless `timeout` says another one.
"""
from __future__ import annotations

from typing import Any

from . import _core
from .arguments import number, seconds, text, wrong
from .errors import Invalid, NotFound

__all__ = ["rank", "local_rank", "world_size", "local_world_size", "barrier", "broadcast", "all_gather", "store"]

DEFAULT_TIMEOUT = 300.0


class _Me:
    known: tuple[int, int, int, int] | None = None


def _facts() -> tuple[int, int, int, int]:
    if _Me.known is None:
        told = _core.rank_enter(None)
        if told is None:
            raise NotFound("this process is no rank: shmbroker.spawn did not start it")
        _Me.known = told[:4]
    return _Me.known


def rank() -> int:
    """The number of this rank among those of all hosts."""
    return _facts()[0]


def local_rank() -> int:
    return _facts()[1]


def world_size() -> int:
    return _facts()[2]


def local_world_size() -> int:
    return _facts()[3]


def _limit(timeout: float) -> int:
    if timeout is None or not seconds(timeout, "timeout") > 0:
        raise Invalid("a wait for other ranks has a limit: give timeout in seconds, above 0")
    return int(min(float(timeout), 9e9) * 1e9) or 1


def _bytes(value: Any, what: str) -> Any:
    """Of bytes, or of another buffer that C can have as it is."""
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise wrong(what, "bytes", value)
    return bytes(value)


def _pack(value: Any, uses: int) -> bytes:
    """The first byte says whether a Region travels along."""
    from . import travel
    lent = []

    def lend(region: Any) -> Any:
        lent.append(region)
        return region.lend(write=not region.readonly, share=True, uses=uses)
    data = travel.pack(value, lend)
    return (b"R" if lent else b"-") + data


def _unpack(data: bytes) -> Any:
    from . import travel
    return travel.unpack(memoryview(data)[1:])


def _await_taken(data: bytes, name: str, timeout: float) -> None:
    """A ticket ends with the session of the rank that lends it, so that rank stays until all have attached."""
    if data.startswith(b"R"):
        _core.rank_barrier(name + "/taken", _limit(timeout))


def barrier(name: str = "", *, timeout: float = DEFAULT_TIMEOUT) -> None:
    """Returns when all ranks have called it. The n-th call of each rank under one name belongs together."""
    text(name, "name")
    _core.rank_barrier(name, _limit(timeout))


def broadcast(value: Any = None, root: int = 0, name: str = "", *, timeout: float = DEFAULT_TIMEOUT) -> Any:
    """All ranks call it and get the value of the local rank `root`: up to 1 MiB when pickled, and Regions. The root
    returns its own object."""
    text(name, "name")
    mine = local_rank() == number(root, "root", "the number of a local rank")
    packed = _pack(value, max(local_world_size() - 1, 1)) if mine else None
    data = _core.rank_broadcast(name, root, packed, _limit(timeout))
    arrived = value if mine else _unpack(data)
    _await_taken(data, name, timeout)
    return arrived


def all_gather(value: Any, name: str = "", *, timeout: float = DEFAULT_TIMEOUT) -> list[Any]:
    """All ranks call it and get the values of all by local rank: up to 16 MiB together when pickled."""
    text(name, "name")
    count = local_world_size()
    parts = _core.rank_all_gather(name, count, _pack(value, count), _limit(timeout))
    arrived = [_unpack(part) for part in parts]
    _await_taken(max(parts), name, timeout)
    return arrived


class _Store:
    """Small values by key, for all ranks: keys up to 1 KiB, values up to 1 MiB of bytes, 64 MiB in all."""

    def set(self, key: str, value: bytes) -> None:
        text(key, "key")
        _core.rank_set(key, _bytes(value, "value"))

    def get(self, key: str) -> bytes:
        """Raises NotFound where the key has no value."""
        text(key, "key")
        return _core.rank_get(key)

    def wait(self, key: str, *, timeout: float = DEFAULT_TIMEOUT) -> bytes:
        """The value, as soon as a rank has set it."""
        text(key, "key")
        return _core.rank_wait(key, _limit(timeout))

    def compare_exchange(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """Sets the key if it has the expected value (a key without one has b""). Returns the value that it has then."""
        text(key, "key")
        return _core.rank_compare_exchange(key, _bytes(expected, "expected"), _bytes(desired, "desired"))

    def delete(self, key: str) -> bool:
        """Whether it had a value."""
        text(key, "key")
        return _core.rank_delete(key)

    def add(self, key: str, amount: int = 1) -> int:
        """Adds to the decimal number there, 0 where there is none. Returns the sum."""
        text(key, "key")
        return _core.rank_add(key, number(amount, "amount"))


store = _Store()
