# SPDX-License-Identifier: Apache-2.0
"""One object as one message of a queue: a stream, and behind it the buffers that its pickle refers to.

A message that was made holds all that it sends. So a put fails in its caller, before anything is sent, or arrives whole.
"""
from __future__ import annotations

import os
import time
import weakref

from .. import _core, errors
from . import memory, pickling, place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .channel import Channel

_PATIENCE = 0.2  # seconds


class Outgoing:
    """The arguments of `Queue.send`, and the arrays that go with them."""

    __slots__ = ("parts", "handed")

    def __init__(self, obj: Any, channel: Channel) -> None:
        self.handed: list[_core.Region] = []
        attached: list[Any] = []
        chunks, buffers = pickling.dump(obj, attached=attached, session=channel.session)
        size = len(chunks[0]) if len(chunks) == 1 else pickling.length(chunks)
        if not buffers and not attached and size <= place.SLOT >> 4:
            self.parts = chunks[0] if len(chunks) == 1 else b"".join(chunks)
            return
        try:
            if size <= place.SLOT >> 4:
                parts = [b"".join(chunks)]
            else:
                room = _room(channel, size)
                pickling.fill(room, chunks)
                parts = [_part(room)]
            while buffers:
                view = buffers.pop(0)
                region = memory.handed(view, channel.session)
                if region is None:
                    room = _room(channel, view.nbytes)
                    with memoryview(room) as target:
                        target[:] = view
                    parts.append(_part(room))
                else:
                    channel.let_go()  # for the next `empty`, as in _room
                    self.handed.append(region)
                    parts.append(_part(region))
            if attached:
                parts += reversed(attached)  # so their numbers count from the end, whatever the number of buffers
                _carriers.add(channel)
        except BaseException:
            self.fail()
            raise
        self.parts = parts

    def fail(self) -> None:
        """It was not sent."""
        for region in self.handed:
            memory.take_back(region)


def _room(channel: Channel, size: int) -> _core.Slot | _core.Region:
    """A slot where the pool has one that is free; else a region. OutOfShared where there is no memory for that."""
    if size <= place.SLOT:
        try:
            return channel.pool.acquire(size, timeout=0)
        except errors.Full:
            pass
    # Regions that have been received and dropped are still held by the lane they came through. The memory of one that is
    # let go is used again here, which takes a tenth of the time of new memory.
    channel.let_go()
    try:
        return _region(channel, size)
    except errors.OutOfShared:
        end = time.monotonic() + _PATIENCE
        while True:
            channel.let_go()
            try:
                return _region(channel, size)
            except errors.OutOfShared:
                if time.monotonic() > end:
                    raise
            time.sleep(0.02)


def _region(channel: Channel, size: int) -> _core.Region:
    # In the queue's own session: a queue whose broker has gone must say so, also where there is another broker.
    try:
        return channel.session.create(size, many_writers=True, uninitialised=True)
    except errors.SessionLost as error:
        raise place.whole(error) from None


_carriers: weakref.WeakSet[Any] = weakref.WeakSet()  # channels by which this process has sent attached regions
os.register_at_fork(after_in_child=_carriers.clear)  # the parent has sent them, perhaps at a broker that has gone


def let_go() -> None:
    """Gives back regions that were attached to messages which have been taken: they may be had again at once."""
    for channel in list(_carriers):
        try:
            channel.let_go()
        except errors.SessionLost:
            _carriers.discard(channel)  # its regions have gone with its broker


def _part(room: _core.Slot | _core.Region) -> Any:
    return _core.Part(room, write=True)


_held: weakref.WeakSet[Any] = weakref.WeakSet()


def held() -> list[Any]:
    """The slots of arrays that were received here and are in use."""
    return list(_held)


def load(message: bytes | _core.Message) -> Any:
    """The object. Its buffers are the caller's alone; they go back with the last array on them."""
    if isinstance(message, bytes):
        return pickling.loads(message)
    before, pickling.work.message = pickling.work.message, message
    try:
        with memoryview(message) as stream:
            obj = pickling.loads(stream, buffers=_buffers(message))
    except errors.SessionLost as error:
        raise errors.SessionLost("the item is lost: its memory was with the broker, which has gone. Make a new queue: it "
                                 "finds the next broker, or starts one") from error
    finally:
        pickling.work.message = before
    message.done()
    return obj


def _buffers(message: _core.Message) -> Any:
    """One after another, as the pickle asks for them: what lies behind them was attached by reducers."""
    for number in range(1, len(message)):
        taken = message.take(number, writable=True)
        _held.add(taken)
        yield taken
