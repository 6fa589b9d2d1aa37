# SPDX-License-Identifier: Apache-2.0
"""Queues and events in an event loop of asyncio: its poll waits on their descriptors, so no thread waits.

A descriptor is readable when there may be something. A receive that finds nothing arms it again. So every waiter first
receives without waiting, and sleeps only after that said Empty.
"""
from __future__ import annotations

import asyncio
import weakref

from . import _core, errors
from .arguments import seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from typing import Any

# For each loop: the waiters of each descriptor. A loop has one reader for a descriptor, whoever waits.
_waiters: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[int, set[asyncio.Future[None]]]]
_waiters = weakref.WeakKeyDictionary()


def _wake(waiting: set[asyncio.Future[None]]) -> None:
    for future in waiting:
        if not future.done():
            future.set_result(None)


async def readable(descriptor: int) -> None:
    """Returns when it is, or may be."""
    loop = asyncio.get_running_loop()
    of_loop = _waiters.setdefault(loop, {})
    waiting = of_loop.get(descriptor)
    if waiting is None:
        waiting = of_loop[descriptor] = set()
        loop.add_reader(descriptor, _wake, waiting)
    future = loop.create_future()
    waiting.add(future)
    try:
        await future
    finally:
        waiting.discard(future)
        if not waiting and of_loop.get(descriptor) is waiting:
            del of_loop[descriptor]
            loop.remove_reader(descriptor)


async def _take(attempt: Callable[[], Any], nothing: type[errors.Error], descriptor: int, timeout: float | None) -> Any:
    loop = asyncio.get_running_loop()
    end = None if timeout is None else loop.time() + seconds(timeout, "timeout")
    while True:
        try:
            return attempt()
        except nothing:
            pass
        left = None if end is None else end - loop.time()
        if left is not None and left <= 0:
            raise errors.Timeout(f"nothing came within {timeout} s")
        try:
            await asyncio.wait_for(readable(descriptor), left)
        except asyncio.TimeoutError:
            end = loop.time()  # looks once more


async def receive(queue: _core.Queue, *, timeout: float | None = None) -> _core.Message:
    """Queue.receive_async."""
    return await _take(queue.get_nowait, errors.Empty, queue.fileno(), timeout)


async def next_event(session: _core.Session, *, timeout: float | None = None) -> _core.Event:
    """Session.next_event_async."""
    return await _take(lambda: session.next_event(timeout=0), errors.Timeout, session.fileno(), timeout)


async def messages(queue: _core.Queue) -> AsyncIterator[_core.Message]:
    """`async for message in queue`: ends when the queue is closed, or when its last writer has left, and nothing is
    left to take. A writer that died raises PeerGone."""
    import errno
    while True:
        try:
            yield await receive(queue)
        except errors.Closed:
            return
        except errors.PeerGone as gone:
            if gone.errno == errno.EOWNERDEAD:
                raise
            if queue.info().writers == 0:
                return
