# SPDX-License-Identifier: Apache-2.0
"""Where the queues of this program live: one session for each group, shared by all queues of a process.

The first queue of a program makes a group, unless SHMBROKER_GROUP names one. Queues, connections and processes that are
pickled carry the broker's socket and the group's variable, so children are in the group of their parent, whatever their
start method. A forked child uses the session that it inherits. The group ends with its last process, however that ends.

With a broker that dies all this is gone. Objects that were made in its group raise SessionLost from then on. Later ones are
in a new session and group of the next broker, which is started if there is none.
"""
from __future__ import annotations

import os
import select
import threading

from .. import _core, errors

SMALL = 4096  # bytes; smaller buffers stay in the pickle
SLOT = 1 << 20  # bytes; a larger buffer goes as a region
_LOOK = 0.1  # seconds for an answer of a broker that may be stopped

Address = tuple  # (socket, group variable): what a child needs to be in the same group at the same broker

_lock = threading.Lock()
_places: dict[Address, _core.Session] = {}
_home: Address | None = None
_wish: str | None = None


def _fork() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_fork)


def _connect(address: Address) -> _core.Session:
    socket, group = address
    return _core.connect(socket, group=group)


def _answers(session: _core.Session) -> bool:
    try:
        session.ping()
    except (errors.SessionLost, errors.GroupEnded):
        return False
    return True


def home(*, ask: bool = True) -> tuple[_core.Session, Address]:
    """The session in which this process makes its queues. ask: makes a new one where its broker has gone."""
    global _home
    with _lock:
        if _home is not None:
            session = _places.get(_home)
            if session is None:
                try:
                    session = _places[_home] = _connect(_home)
                except (errors.NoBroker, errors.NotFound, errors.GroupEnded):
                    pass  # this process was to be in its parent's group, which has gone with its broker
            if session is not None and (not ask or _answers(session)):
                return session, _home
            _places.pop(_home, None)
            _home = None
        variable = os.environ.get("SHMBROKER_GROUP")
        if variable:
            session = _core.connect()
        else:
            session = _core.connect(no_group=True)
            name = _wish or f"mp-{os.getpid()}-{os.urandom(4).hex()}"
            group = session.create_group(name, adopt_existing=_wish is not None)
            session.join(group)
            variable = _core.group_variable(name, group.token)
        _home = (session.info().socket, variable)
        _places[_home] = session
        return session, _home


def prepare() -> None:
    """Before there are children that may send something large: a group that one of them made would end with it, and what
    it has sent too."""
    session = _places.get(_home) if _home is not None else None
    try:
        if session is None:
            home()
        else:
            heed(session)
    except errors.Error:
        pass  # a later sender of something large is told


def call(name: str) -> None:
    """The group that is made for this program has this name. Programs of a user that wish the same name share it."""
    global _wish
    _wish = name


def address() -> Address | None:
    """The facts by which a child joins the same group; None: no queue was made here, or its broker has gone."""
    session = _places.get(_home) if _home is not None else None
    return _home if session is None or _answers(session) else None


def variables() -> dict[str, str]:
    """The variables by which this process finds its broker. A fork server has those of the time of its start."""
    return {name: value for name, value in os.environ.items() if name.startswith("SHMBROKER_")}


def adopt(address: Address | None, found_by: dict[str, str] | None = None) -> None:
    """In a child process: its queues are to be in the group of its parent, or where the parent would make its own."""
    global _home
    if _home is None:
        _home = address
    if found_by is None:
        return
    for name in variables().keys() - found_by.keys():
        del os.environ[name]
    os.environ.update(found_by)


def visit(address: Address) -> _core.Session:
    """The session of another process' queue. It is also where a child process makes its own queues. SessionLost where
    the broker of that queue has gone."""
    global _home
    with _lock:
        session = _places.get(address)
        if session is not None and session.info().lost:
            session = None
        if session is None:
            try:
                session = _places[address] = _connect(address)
            except (errors.NoBroker, errors.NotFound, errors.GroupEnded) as error:
                raise errors.SessionLost("this was made at a broker, or in a group, that has gone, and is lost with it. "
                                         f"Make it again ({error})") from None
        if _home is None:
            _home = address
        return session


def address_of(session: _core.Session) -> Address:
    """By which other processes join the group of a session that is in use here."""
    for address, one in list(_places.items()):
        if one is session:
            return address
    raise errors.SessionLost("the broker of this has gone")


def new_region(size: int, *, many_writers: bool = True) -> _core.Region:
    """Memory in the group of this process. It still has its earlier contents."""
    session, _ = home(ask=False)
    try:
        return session.create(size, many_writers=many_writers, uninitialised=True)
    except (errors.SessionLost, errors.GroupEnded):  # since the last time: there may be another broker
        session, _ = home()
        return session.create(size, many_writers=many_writers, uninitialised=True)


def heed(session: _core.Session) -> None:
    """Raises SessionLost where the broker has gone. It is asked only if it has told of something, perhaps of its end. An
    event that somebody watches for stays for them."""
    look = select.poll()
    look.register(session, select.POLLIN)
    if not look.poll(0):
        return
    try:
        session.ping(timeout=_LOOK)
    except errors.Timeout:
        pass  # it is stopped, and has not gone


def whole(error: errors.Error) -> errors.Error:
    """The error with the advice that fits queues."""
    if isinstance(error, errors.SessionLost):
        return errors.SessionLost("the broker of this queue has gone. Make a new queue: it finds the next broker, or "
                                  "starts one. Items that wait in it and lie in none of the broker's memory can be taken")
    if isinstance(error, errors.OutOfShared) and error.slot == "participants":
        error.sentence += " A queue is shared by at most 64 processes: use several queues, or a Pool."
    return error
