# SPDX-License-Identifier: Apache-2.0
"""A ticket: 16 unguessable bytes that carry rights to a region. A process that shows them gets the rights."""


class Ticket(bytes):
    """The 16 bytes; `str(ticket)` is their text, 32 hex digits. It may be pickled and sent in any way."""

    __slots__ = ()

    def __new__(cls, token: bytes | str) -> "Ticket":
        """From 16 bytes, or from their text."""
        if not isinstance(token, (str, bytes, bytearray, memoryview)):
            raise TypeError("a ticket is made of its 16 bytes, or of its 32 hex digits as a str, not of "
                            f"{type(token).__name__!r}")
        if isinstance(token, str):
            token = bytes.fromhex(token) if len(token) == 32 else b""
        if len(token) != 16:
            raise ValueError("a ticket has 16 bytes, or 32 hex digits as text")
        return super().__new__(cls, token)

    def __str__(self) -> str:
        return self.hex()

    def __repr__(self) -> str:
        return f"Ticket('{self.hex()}')"

    def __reduce__(self) -> tuple[type["Ticket"], tuple[bytes]]:
        return Ticket, (bytes(self),)
