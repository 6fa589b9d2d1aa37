# SPDX-License-Identifier: Apache-2.0
"""A rank that fails because its connection to another rank broke is not the cause.

The kernel closes the sockets of a process before its death can be seen. So a rank that waits in gloo for a dead one gets
its error a little before the supervisor learns of the death, and would be the first failure in time. Such a rank waits
here until the supervisor has recorded the end of another rank, for 1 s at most, before it reports its own failure. In
that report the library then says that the failure may be an echo (docs/spawn.md).
"""
from __future__ import annotations

from . import _core, travel

_WAIT = 1_000_000_000
_TEXTS = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Socket closed", "Connection refused",
          "gloo/transport/", "tensorpipe/", "NCCL error", "remote process exited", "Connection was likely closed")


def may_echo(error: BaseException) -> bool:
    """Whether this is how a broken connection looks: to Python, and to torch, which tells it by the text alone."""
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        if isinstance(one, (ConnectionError, EOFError)):
            return True
        if isinstance(one, RuntimeError) and any(text in travel.text_of(one) for text in _TEXTS):
            return True
        one = one.__cause__ or one.__context__
    return False


def await_cause(local_world_size: int) -> None:
    """Returns once another rank is recorded as gone, or all of them wait here, or the time is over."""
    if local_world_size > 1:
        try:
            _core.rank_barrier("shmbroker/echo", _WAIT)
        except Exception:
            pass  # it is gone, or this rank is alone with its error
