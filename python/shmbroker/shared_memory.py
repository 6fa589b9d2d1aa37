# SPDX-License-Identifier: Apache-2.0
"""`SharedMemory` and `ShareableList` as multiprocessing.shared_memory has them, on regions of the broker.

The differences: there is no resource tracker, so a process that exits destroys nothing that others use. Memory is there
when the constructor returns, so no access ends in SIGBUS. `close()` refuses while anything still uses the memory, and an
array over `buf` keeps the memory when the object goes. Memory that no process unlinks goes
with the keep of its group.
"""
from __future__ import annotations

import os
import sys
from types import SimpleNamespace, TracebackType

from . import connect
from .arguments import number, text
from .errors import Exists, GroupEnded, SessionLost
from .shareable_list import ShareableList

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    from ._core import Region, Session
    Answer = TypeVar("Answer")

__all__ = ["SharedMemory", "ShareableList"]

_NAME_BYTES = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")
_LONGEST_NAME = 96

_session: Session | None = None


def _ask(request: Callable[[Session], Answer]) -> Answer:
    """Makes a request of the session that all objects of this process share. A session that has ended is replaced."""
    global _session
    session = _session
    if session is not None:
        try:
            return request(session)
        except (SessionLost, GroupEnded):
            pass
    # Two threads may both come here. Both sessions work, and the one that is forgotten ends with its last region.
    session = _session = connect()
    return request(session)


def _make_filename() -> str:
    return "/psm_" + os.urandom(4).hex()


def _region_name(name: str) -> str:
    """The name of the region. POSIX ignores leading slashes. Names that a broker does not take get one that it takes."""
    text(name, "name", "a str or None")
    if "\0" in name:
        raise ValueError("embedded null character")
    plain = name.lstrip("/")
    if plain and len(plain) <= _LONGEST_NAME and plain[0] != "." and _NAME_BYTES.issuperset(plain):
        return plain
    if not plain or "/" in plain:
        raise ValueError(f"{name!r} is no name of shared memory: it has no characters, or a slash within it")
    from hashlib import blake2b
    digest = blake2b(plain.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()
    kept = "".join(character if character in _NAME_BYTES else "_" for character in plain[:64])
    return f"{kept.lstrip('.') or '_'}-{digest}"


def _references(holder: Any) -> int:
    region = holder._region
    return sys.getrefcount(region)


# What _references says of an object that its holder alone refers to.
_HELD_ALONE = _references(SimpleNamespace(_region=object()))


class SharedMemory:
    """Shared memory with a name. With create=True it is made, else the memory of that name is opened.

    Any process of this user finds it by its name, in the group that SHMBROKER_GROUP names or in `shell-UID`. The name
    is there until `unlink()`. track is accepted as Python 3.13 has it, and changes nothing: no process tracks anything.
    """

    # These let close() and unlink() work on an object whose constructor failed.
    _name: str | None = None
    _region: Region | None = None
    _buf: memoryview | None = None
    _size = 0

    def __init__(self, name: str | None = None, create: bool = False, size: int = 0, *, track: bool = True) -> None:
        if create:
            number(size, "size")
        if not size >= 0:
            raise ValueError("'size' must be a positive integer")
        if create and size == 0:
            raise ValueError("'size' must be a positive number different from zero")
        if name is None and not create:
            raise ValueError("'name' can only be None if create=True")
        if not create:
            place = _region_name(name)
            # Its pages are there. They are entered into this process' tables as it uses them, which may be few.
            region = _ask(lambda session: session.attach(place, write=True, populate=False))
        elif name is not None:
            region = self._create(_region_name(name), size)
        else:
            while True:
                name = _make_filename().removeprefix("/")
                try:
                    region = self._create(_region_name(name), size)
                    break
                except Exists:
                    continue
        self._name = "/" + name
        self._region = region
        self._size = region.size
        self._buf = memoryview(region)

    @staticmethod
    def _create(place: str, size: int) -> Region:
        # many_writers: else the first read-only user, such as `shmbroker cat`, would close writing for ever.
        return _ask(lambda session: session.create(size, name=place, many_writers=True, name_with_holders=False))

    def __enter__(self) -> SharedMemory:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return self.__class__, (self.name, False, self.size)

    def __repr__(self) -> str:
        return f"{self.__class__.__name__}({self.name!r}, size={self.size})"

    @property
    def buf(self) -> memoryview | None:
        "A memoryview of contents of the shared memory block."
        return self._buf

    @property
    def name(self) -> str:
        "Unique name that identifies the shared memory block."
        return self._name[1:]

    @property
    def size(self) -> int:
        "Size in bytes."
        return self._size

    def close(self) -> None:
        """Gives the memory back, in this object. BufferError while a view or an array uses it; nothing changes then.

        The memory goes with the last process that has it, once its name is gone.
        """
        region = self._region
        if region is None:
            return
        self._buf.release()
        # numpy.ndarray(buffer=) keeps the region and gives the buffer back, so the count of exports does not show it.
        del region
        if _references(self) > _HELD_ALONE:
            self._buf = memoryview(self._region)
            raise BufferError(f"cannot close {self.name!r}: an array or a view still uses its memory")
        self._region.close()
        self._region = self._buf = None

    def unlink(self) -> None:
        """Takes the name away. FileNotFoundError if it is gone already."""
        if self._name:
            place = _region_name(self.name)
            _ask(lambda session: session.unname(place))
