# SPDX-License-Identifier: Apache-2.0
"""Plain values for workers of C++, packed as shmbroker/remote.hpp packs them: msgpack, with buffers and references.

A buffer of more than 64 KiB lies in a region and is the two words [extension 16: its number, its length], which is
Bytes in C++. A reference is extension 17 with its number. Numbers count what came beside the bytes.
"""
from __future__ import annotations

import struct
from typing import Any, Callable

from ... import _core

INLINE = 65536  # SHMB_REMOTE_INLINE
_BYTES, _REFERENCE = 16, 17
_DEEPEST = 500


class Packer:
    """`refer`: gives the RemoteReference of an RRef, None for other values."""

    def __init__(self, world: _core.RemoteWorld, refer: Callable[[Any], Any]) -> None:
        self._world, self._refer = world, refer
        self._out = bytearray()
        self.regions: list[_core.Region] = []
        self.references: list[_core.RemoteReference] = []

    def payload(self) -> tuple[bytes, list[_core.Region], list[_core.RemoteReference]]:
        return bytes(self._out), self.regions, self.references

    def pack(self, value: Any, depth: int = 0) -> Packer:
        out = self._out
        if depth > _DEEPEST:
            raise ValueError(f"a plain value is nested more than {_DEEPEST} deep")
        if value is None:
            out.append(0xC0)
        elif value is True or value is False:
            out.append(0xC3 if value else 0xC2)
        elif isinstance(value, int):
            self._int(int(value))
        elif isinstance(value, float):
            out += struct.pack(">Bd", 0xCB, value)
        elif isinstance(value, str):
            text = value.encode()
            if len(text) < 32:
                out.append(0xA0 | len(text))
            else:
                self._size(len(text), 0xD9, 0xDA, 0xDB)
            out += text
        elif isinstance(value, (list, tuple)):
            self._array(len(value))
            for one in value:
                self.pack(one, depth + 1)
        elif isinstance(value, dict):
            if len(value) < 16:
                out.append(0x80 | len(value))
            else:
                self._size(len(value), None, 0xDE, 0xDF)
            for key, one in value.items():
                self.pack(key, depth + 1)
                self.pack(one, depth + 1)
        elif (reference := self._refer(value)) is not None:
            self._extension(_REFERENCE, len(self.references))
            self.references.append(reference)
        else:
            self._buffer(value)
        return self

    def _buffer(self, value: Any) -> None:
        try:
            view = memoryview(value).cast("B")
        except TypeError as error:
            raise TypeError(f"a value of type {type(value).__qualname__} is no plain value: workers of C++ take None, "
                            "bool, int, float, str, lists, tuples, dicts, contiguous buffers and references") from error
        if view.nbytes <= INLINE:
            self._size(view.nbytes, 0xC4, 0xC5, 0xC6)
            self._out += view
            return
        region = self._world.region(view.nbytes)
        with memoryview(region) as memory:
            memory[: view.nbytes] = view
        self._array(2)
        self._extension(_BYTES, len(self.regions))
        self._int(view.nbytes)
        self.regions.append(region)

    def _int(self, value: int) -> None:
        out = self._out
        if 0 <= value < 128:
            out.append(value)
        elif -32 <= value < 0:
            out.append(value & 0xFF)
        elif 0 <= value < 2**64:
            out += struct.pack(">BQ", 0xCF, value)
        elif -(2**63) <= value < 0:
            out += struct.pack(">Bq", 0xD3, value)
        else:
            raise OverflowError(f"{value} is not within the 64 bits of a plain value")

    def _array(self, count: int) -> None:
        if count < 16:
            self._out.append(0x90 | count)
        else:
            self._size(count, None, 0xDC, 0xDD)

    def _size(self, size: int, byte: int | None, two: int, four: int) -> None:
        if byte is not None and size < 256:
            self._out += struct.pack(">BB", byte, size)
        elif size < 65536:
            self._out += struct.pack(">BH", two, size)
        elif size < 2**32:
            self._out += struct.pack(">BI", four, size)
        else:
            raise OverflowError("a plain value has more than 4 GiB")

    def _extension(self, kind: int, number: int) -> None:
        self._out += struct.pack("<BBI", 0xD6, kind, number)  # the number is the machine's, which is little-endian


class Malformed(ValueError):
    """The bytes that came are no plain value."""


_FIXED = {0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: ">b", 0xD1: ">h", 0xD2: ">i",
          0xD3: ">q"}
_SIZES = {1: ">B", 2: ">H", 4: ">I"}


class Unpacker:
    """`adopt`: makes an RRef of a RemoteReference."""

    def __init__(self, content: tuple[bytearray, tuple[Any, ...], tuple[Any, ...]],
                 adopt: Callable[[Any], Any]) -> None:
        self._data, self._regions, self._references = content
        self._adopt = adopt
        self._at = 0

    def value(self) -> Any:
        if not self._data:
            return None  # what a function of C++ gives that returns nothing
        value = self._next(0)
        if self._at != len(self._data):
            raise Malformed("there are bytes behind the value")
        return value

    def _bytes(self, count: int) -> bytearray:
        taken = self._data[self._at : self._at + count]
        if len(taken) != count:
            raise Malformed("a plain value ends too early")
        self._at += count
        return taken

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._bytes(struct.calcsize(form)))[0]

    def _next(self, depth: int) -> Any:
        if depth > _DEEPEST:
            raise Malformed(f"a plain value is nested more than {_DEEPEST} deep")
        tag = self._bytes(1)[0]
        if tag < 0x80:
            return tag
        if tag >= 0xE0:
            return tag - 256
        if tag < 0x90:
            return self._map(tag & 15, depth)
        if tag < 0xA0:
            return self._array(tag & 15, depth)
        if tag < 0xC0:
            return self._text(tag & 31)
        if tag in _FIXED:
            return self._number(_FIXED[tag])
        if tag in (0xC0, 0xC2, 0xC3):
            return {0xC0: None, 0xC2: False, 0xC3: True}[tag]
        if 0xC4 <= tag <= 0xC6:
            return bytes(self._bytes(self._number(_SIZES[1 << (tag - 0xC4)])))
        if 0xD9 <= tag <= 0xDB:
            return self._text(self._number(_SIZES[1 << (tag - 0xD9)]))
        if tag in (0xDC, 0xDD):
            return self._array(self._number(_SIZES[2 << (tag - 0xDC)]), depth)
        if tag in (0xDE, 0xDF):
            return self._map(self._number(_SIZES[2 << (tag - 0xDE)]), depth)
        if tag == 0xD6:
            kind, number = struct.unpack("<BI", self._bytes(5))
            if kind == _REFERENCE and number < len(self._references):
                return self._adopt(self._references[number])
        raise Malformed(f"a plain value has the unknown tag {tag:#x}")

    def _text(self, length: int) -> str:
        return self._bytes(length).decode("utf-8", "surrogateescape")

    def _map(self, count: int, depth: int) -> dict[Any, Any]:
        return {self._next(depth + 1): self._next(depth + 1) for _ in range(count)}

    def _array(self, count: int, depth: int) -> Any:
        if count == 2 and self._data[self._at : self._at + 2] == bytes((0xD6, _BYTES)):
            number = struct.unpack("<I", self._bytes(6)[2:])[0]
            length = self._next(depth + 1)
            if number >= len(self._regions) or not isinstance(length, int):
                raise Malformed("a buffer has not come with its value")
            return memoryview(self._regions[number])[:length]
        return [self._next(depth + 1) for _ in range(count)]
