# SPDX-License-Identifier: Apache-2.0
"""ProcessPoolExecutor: its arguments travel in shared memory.

The executor makes its queue of calls itself, from the standard library's class. It gives that to each worker which it
starts through our context, and there we learn of it. From then on a call is put as an envelope. A call that cannot be
pickled is put as it is, and the queue fails the call as it always does.
"""
from __future__ import annotations

import collections
import pickle
import sys
import weakref

from .connection import Envelope, revoke

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def carry(target: Any, args: Any) -> None:
    """If this is the worker of an executor: the calls to it carry their large buffers apart from now on."""
    executors = sys.modules.get("concurrent.futures.process")
    if executors is None or target is not getattr(executors, "_process_worker", None):
        return
    calls = args[0]
    if "put" not in vars(calls):
        calls.put = _Put(calls)


class _Put:
    """The `put` of a queue of calls."""

    def __init__(self, calls: Any) -> None:
        self._calls = weakref.ref(calls)
        self._sent: collections.deque[Any] = collections.deque(maxlen=1024)  # tickets whose worker may have died
        weakref.finalize(calls, revoke, self._sent).atexit = False

    def __call__(self, obj: Any, block: bool = True, timeout: float | None = None) -> None:
        calls = self._calls()
        if obj is not None:
            try:
                envelope = Envelope(obj)
            except Exception:
                pass  # the queue's own pickling fails, too, and tells the future of the call
            else:
                obj = _Carried(envelope.stream)
                self._sent.extend(envelope.tickets)
        type(calls).put(calls, obj, block, timeout)


class _Carried:
    def __init__(self, stream: bytes) -> None:
        self._stream = stream

    def __reduce__(self) -> Any:
        return pickle.loads, (self._stream,)
