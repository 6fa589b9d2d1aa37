# SPDX-License-Identifier: Apache-2.0
"""`ShareableList`: a list of fixed length in shared memory, laid out as multiprocessing.shared_memory lays it out.

    8 bytes              number of items, N
    8 * (N + 1) bytes    where each item starts in the data, and where the data ends
    data                 the items, each in a multiple of 8 bytes
    8 * N bytes          the format of each item, as struct takes it
    N bytes              how the item becomes a value again (_VALUE, _STR, _BYTES, _NONE)

Another process may write at any time, so each access reads the tables again, but for the offsets, which never change.
"""
from __future__ import annotations

import struct
from functools import partial
from types import GenericAlias

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from .shared_memory import SharedMemory

    Item = int | float | bool | str | bytes | None

_WORD = 8
_VALUE, _STR, _BYTES, _NONE = range(4)
_FORMATS = {int: "q", float: "d", bool: "xxxxxxx?", type(None): "xxxxxx?x"}


def _encoded(item: Item) -> Any:
    return item.encode("utf-8") if isinstance(item, str) else item


def _kind(item: Item) -> int:
    if isinstance(item, str):
        return _STR
    if isinstance(item, bytes):
        return _BYTES
    return _NONE if item is None else _VALUE


def _format_of(item: Item) -> str:
    """Text gets what the standard library gives it, one word for each 8 characters begun or full, and more where its
    UTF-8 needs more."""
    if isinstance(item, (str, bytes)):
        return f"{_WORD * max(len(item) // _WORD + 1, -(-len(_encoded(item)) // _WORD))}s"
    return _FORMATS[type(item)]


def _decoded(value: Any, kind: int) -> Item:
    if kind == _STR:
        return value.rstrip(b"\x00").decode("utf-8")
    if kind == _BYTES:
        return value.rstrip(b"\x00")
    if kind == _NONE:
        return None
    if kind != _VALUE:
        raise ValueError(f"the memory holds no list: an item is of the unknown kind {kind}")
    return value


class ShareableList:
    """A list whose items are None, bool, int, float, str or bytes, and whose length never changes.

    With a sequence it is made, under `name` if there is one. With the name alone it is opened. Zero bytes at the end of
    str and bytes are lost, as in the standard library.
    """

    shm: SharedMemory

    def __init__(self, sequence: Iterable[Item] | None = None, *, name: str | None = None) -> None:
        from .shared_memory import SharedMemory
        if name is not None and sequence is None:
            self.shm = SharedMemory(name)
            self._list_len = len(self)
            self._allocated_offsets = list(struct.unpack_from(self._format_size_metainfo, self.shm.buf, _WORD))
            return
        items = list(sequence or ())
        formats = [_format_of(item) for item in items]
        if any(len(one) > _WORD for one in formats):
            raise ValueError("an item of str or bytes is longer than a ShareableList can hold")
        self._list_len = len(items)
        self._allocated_offsets = [0]
        for one in formats:
            self._allocated_offsets.append(self._allocated_offsets[-1] + struct.calcsize("=" + one))
        self.shm = SharedMemory(name, create=True, size=self._offset_back_transform_codes + self._list_len)
        memory = self.shm.buf
        struct.pack_into("q" + self._format_size_metainfo, memory, 0, self._list_len, *self._allocated_offsets)
        struct.pack_into("".join(formats), memory, self._offset_data_start, *map(_encoded, items))
        struct.pack_into(self._format_packing_metainfo, memory, self._offset_packing_formats,
                         *(one.encode() for one in formats))
        struct.pack_into(self._format_back_transform_codes, memory, self._offset_back_transform_codes, *map(_kind, items))

    def _position(self, position: int) -> int:
        position = position if position >= 0 else position + self._list_len
        if not 0 <= position < self._list_len:
            raise IndexError("index out of range")
        return position

    def _get_packing_format(self, position: int) -> str:
        place = self._offset_packing_formats + self._position(position) * _WORD
        return struct.unpack_from("8s", self.shm.buf, place)[0].rstrip(b"\x00").decode("ascii")

    def __getitem__(self, position: int) -> Item:
        position = self._position(position)
        (kind,) = struct.unpack_from("b", self.shm.buf, self._offset_back_transform_codes + position)
        place = self._offset_data_start + self._allocated_offsets[position]
        (value,) = struct.unpack_from(self._get_packing_format(position), self.shm.buf, place)
        return _decoded(value, kind)

    def __setitem__(self, position: int, value: Item) -> None:
        try:
            position = self._position(position)
        except IndexError:
            raise IndexError("assignment index out of range") from None
        start, end = self._allocated_offsets[position:position + 2]
        data = _encoded(value)
        if isinstance(value, (str, bytes)):
            if len(data) > end - start:
                raise ValueError("bytes/str item exceeds available storage")
            new = f"{end - start}s"
        else:
            new = _FORMATS[type(value)]
        # Not pack_into: it clears the memory before it refuses a value, such as an int of more than 64 bits.
        packed = struct.pack(new, data)
        place = self._offset_data_start + start
        self.shm.buf[place:place + len(packed)] = packed
        struct.pack_into("8s", self.shm.buf, self._offset_packing_formats + position * _WORD, new.encode())
        struct.pack_into("b", self.shm.buf, self._offset_back_transform_codes + position, _kind(value))

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(self.__class__, name=self.shm.name), ()

    def __len__(self) -> int:
        return struct.unpack_from("q", self.shm.buf, 0)[0]

    def __iter__(self) -> Iterator[Item]:
        return (self[position] for position in range(self._list_len))

    def __repr__(self) -> str:
        return f"{self.__class__.__name__}({list(self)}, name={self.shm.name!r})"

    @property
    def format(self) -> str:
        "The struct packing format used by all currently stored items."
        return "".join(self._get_packing_format(i) for i in range(self._list_len))

    @property
    def _format_size_metainfo(self) -> str:
        return "q" * (self._list_len + 1)

    @property
    def _format_packing_metainfo(self) -> str:
        return "8s" * self._list_len

    @property
    def _format_back_transform_codes(self) -> str:
        return "b" * self._list_len

    @property
    def _offset_data_start(self) -> int:
        return (self._list_len + 2) * _WORD

    @property
    def _offset_packing_formats(self) -> int:
        return self._offset_data_start + self._allocated_offsets[-1]

    @property
    def _offset_back_transform_codes(self) -> int:
        return self._offset_packing_formats + self._list_len * _WORD

    def count(self, value: object) -> int:
        "L.count(value) -> integer -- return number of occurrences of value."
        return sum(value == item for item in self)

    def index(self, value: object) -> int:
        """L.index(value) -> integer -- return first index of value.
        Raises ValueError if the value is not present."""
        for position, item in enumerate(self):
            if value == item:
                return position
        raise ValueError(f"{value!r} not in this container")

    __class_getitem__ = classmethod(GenericAlias)
