# SPDX-License-Identifier: Apache-2.0
"""The outcome of a call as torch's Future. A waiting thread serves in the library meanwhile, so a function that waits
for another call takes no thread away from this worker."""
from __future__ import annotations

import copy
from typing import Any, Callable

import torch

from ... import _core, errors
from . import failures

Content = tuple[bytearray, Any, Any]
_read: Callable[[Content], Any]


def set_reader(read: Callable[[Content], Any]) -> None:
    """How the bytes of an answer become a value."""
    global _read
    _read = read


def value_of(call: Any, limit: int | None, read: Callable[[Content], Any] | None = None) -> Any:
    """Waits for a call. `call` may be a failure that is known already."""
    if isinstance(call, tuple):
        raise failures.of_failure(call, limit)
    try:
        content, failure = call.wait(0)
    except errors.Error as error:
        raise failures.of_broker(error, limit) from None
    if failure is not None:
        raise failures.of_failure(failure, limit)
    return (read or _read)(content)


def _raise_again(error: BaseException) -> None:
    """A raised exception holds the frames that it has passed, and one of them holds the future. Python sees no cycle
    through a future of torch. So what the future keeps is never raised itself."""
    try:
        again = copy.copy(error)
    except Exception:  # noqa: BLE001 - a class of the user's, which cannot be made again from its arguments
        again = error
    # A copy has neither of them, and `raise ... from` sets the third.
    again.__cause__, again.__context__ = error.__cause__, error.__context__
    again.__suppress_context__ = error.__suppress_context__
    try:
        raise again
    finally:
        del again, error  # no cycle of the exception and this frame


class Future(torch.futures.Future):  # type: ignore[type-arg]
    def __init__(self, call: Any, limit: int | None, *, nothing: bool = False,
                 read: Callable[[Content], Any] | None = None) -> None:
        super().__init__()
        self._call: _core.RemoteFuture | None = None if isinstance(call, tuple) else call

        def finish() -> None:
            try:
                value = value_of(call, limit, (lambda _: None) if nothing else read)
            except BaseException as error:  # noqa: BLE001 - it is the outcome
                self._call = None
                self._set_unwrap_func(_raise_again)
                self.set_result(error.with_traceback(None))
            else:
                self._call = None
                self.set_result(value)

        if self._call is None:
            finish()
        else:
            call.then(finish)

    def wait(self) -> Any:
        call = self._call
        if call is not None:
            call.settle(0)
        return super().wait()
