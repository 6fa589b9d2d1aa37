# SPDX-License-Identifier: Apache-2.0
"""Pipe: the connections of the standard library, whose large buffers travel in regions.

The socket carries an ordinary pickle. For large buffers it is a small one, with a ticket: the process that unpickles
it first gets the region. The broker holds it meanwhile, also when the sender has ended. If the receiver has gone, the
sender takes its tickets back when it notices, and when it closes the connection.
"""
from __future__ import annotations

import collections
import multiprocessing.connection as _base
import os
import pickle
import select
import socket
from multiprocessing.connection import *  # noqa: F403
from multiprocessing.reduction import DupFd, ForkingPickler

from .. import _core, errors
from . import memory, pickling, place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LARGE = 1 << 16  # bytes; smaller buffers and streams go through the socket
_LIFETIME = 86400.0  # seconds in which a receiver that lives fetches what was sent to it
_ALIGNMENT = 64


def __getattr__(name: str) -> Any:
    return getattr(_base, name)


class Envelope:
    """An object as a small pickle and regions with tickets. Unpickling it gives the object."""

    def __init__(self, obj: Any, *, lend: bool = False) -> None:
        self.tickets: list[Any] = []  # each with its session
        self._handed: list[_core.Region] = []
        self._theirs: list[Any] = []  # those that reducers have made
        before, pickling.work.tickets = pickling.work.tickets, self._theirs
        try:
            chunks, buffers = pickling.dump(obj, LARGE)
        except BaseException:
            self.fail()
            raise
        finally:
            pickling.work.tickets = before
        if not buffers and pickling.length(chunks) < LARGE:
            self.stream = b"".join(chunks)
            self.tickets = self._theirs
            return
        try:
            self._seal(chunks, buffers, lend)
        except BaseException:
            self.fail()
            raise

    def _seal(self, chunks: list[Any], buffers: list[memoryview], lend: bool) -> None:
        session, address = place.home()
        pieces: list[tuple[int, int, int]] = []  # number of the region, offset, length
        stream: Any = None
        size = pickling.length(chunks)
        total = 0
        if size < LARGE:
            stream = b"".join(chunks)
        else:
            stream = (0, 0, size)
            total = size
        copies = []
        regions: list[Any] = [None]
        for view in buffers:
            region = memory.handed(view, session)
            if region is not None:
                self._handed.append(region)
                pieces.append((len(regions), 0, view.nbytes))
                regions.append(region)
                continue
            total = -(-total // _ALIGNMENT) * _ALIGNMENT
            pieces.append((0, total, view.nbytes))
            copies.append((total, view))
            total += view.nbytes
        if total:
            regions[0] = region = session.create(total, many_writers=True, uninitialised=True)
            with memoryview(region) as target:
                if isinstance(stream, tuple):
                    pickling.fill(target[:size], chunks)
                for offset, view in copies:
                    target[offset:offset + view.nbytes] = view
        tickets: list[Any] = []
        for region in regions:
            if region is None:
                tickets.append(None)
                continue
            ticket = region.lend(write=True) if lend else region.ticket(write=True, lifetime=_LIFETIME)
            self.tickets.append((session, ticket))
            tickets.append(bytes(ticket))
        self.stream = pickle.dumps(_Sealed((address, tuple(tickets), stream, pieces)), 5)
        self.tickets += self._theirs

    def fail(self) -> None:
        """Nobody got it."""
        for region in self._handed:
            memory.take_back(region)
        revoke([*self.tickets, *self._theirs])


class _Sealed:
    def __init__(self, content: Any) -> None:
        self._content = content

    def __reduce__(self) -> Any:
        return _open, self._content


def _open(address: Any, tickets: Any, stream: Any, pieces: Any) -> Any:
    session = place.visit(address)
    views = [memoryview(session.attach(ticket, write=True)) if ticket else None for ticket in tickets]
    buffers = [views[number][offset:offset + length] for number, offset, length in pieces]
    if isinstance(stream, tuple):
        number, offset, length = stream
        stream = views[number][offset:offset + length]
    return pickling.loads(stream, buffers=buffers)


def revoke(tickets: Any) -> None:
    """Ends the tickets that nobody has used; the others have ended, or have gone with their broker."""
    for session, ticket in tickets:
        try:
            session.revoke(ticket)
        except (errors.NotFound, errors.SessionLost, errors.GroupEnded):
            pass
        except errors.Error:
            return  # a broker that does not answer is asked once


class Connection(_base.Connection):
    """As multiprocessing.connection.Connection."""

    _sent: Any = None  # tickets whose receiver may not have come yet

    def send(self, obj: Any) -> None:
        self._check_closed()
        self._check_writable()
        envelope = Envelope(obj)
        try:
            self._send_bytes(memoryview(envelope.stream))
        except BaseException as error:
            envelope.fail()
            if isinstance(error, (BrokenPipeError, ConnectionResetError)):
                self._forget()
            raise
        if envelope.tickets:
            if self._sent is None:
                self._sent = collections.deque(maxlen=1024)
            self._sent.extend(envelope.tickets)

    def _forget(self) -> None:
        sent, self._sent = self._sent, None
        if sent:
            revoke(sent)

    def _close(self, _close: Any = os.close) -> None:
        try:
            if self._sent:
                look = select.poll()
                look.register(self._handle, 0)
                if look.poll(0):  # the other end has been closed
                    self._forget()
        finally:
            _close(self._handle)


def Pipe(duplex: bool = True) -> tuple[Connection, Connection]:
    """As multiprocessing.Pipe."""
    place.prepare()
    if duplex:
        one, other = socket.socketpair()
        one.setblocking(True)
        other.setblocking(True)
        return Connection(one.detach()), Connection(other.detach())
    reader, writer = os.pipe()
    return Connection(reader, writable=False), Connection(writer, readable=False)


def _rebuild(file: Any, readable: bool, writable: bool) -> Connection:
    return Connection(file.detach(), readable, writable)


def _reduce(connection: Connection) -> Any:
    return _rebuild, (DupFd(connection.fileno()), connection.readable, connection.writable)


ForkingPickler.register(Connection, _reduce)
