# SPDX-License-Identifier: Apache-2.0
"""Why ranks failed. The exceptions have the names and the sentences of torch.multiprocessing, and all the facts of
docs/spawn.md beside them. They survive pickling with all of them."""
from __future__ import annotations

from typing import Any, Literal, NamedTuple

from .errors import Error

Kind = Literal["raised", "exited", "signalled", "unfinished", "never_started", "supervisor_lost"]
KINDS: tuple[Kind, ...] = ("raised", "exited", "signalled", "unfinished", "never_started", "supervisor_lost")


class RankFailure(NamedTuple):
    """The failure of one rank."""

    kind: Kind
    rank: int  # among the ranks of all hosts; -1: of no rank
    pid: int
    exit_code: int  # of a signal: its number, negative
    signal: int  # 0: none
    signal_name: str  # "SIGABRT"; empty: none
    core: bool  # memory was dumped
    ended_by_us: bool  # it was ended because of another failure, and is no cause
    cut: bool  # the texts were longer than the 16 MiB that are carried
    user_ns: int
    system_ns: int
    max_rss_bytes: int
    time_ns: int  # when it was noticed, by CLOCK_MONOTONIC
    message: str  # the sentence, which begins with "rank N"
    type: str  # of the exception, such as "ValueError"
    text: str  # its str()
    trace: str  # its traceback, without the last line
    causes: tuple[tuple[str, str], ...]  # type and text of the exceptions that it came from, the last one first


class ProcessException(Error):
    """Ranks have failed. str() is the sentence of the first failure.

    error_index: its local rank, -1 if it belongs to no rank. pid: its process. failures: all of them in order of time.
    """

    status = "ranks_failed"

    def __new__(cls, msg: str, *more: Any, **fields: Any) -> ProcessException:
        return Exception.__new__(cls, msg)  # type: ignore[return-value]

    def __init__(self, msg: str, error_index: int = -1, pid: int = 0, *,
                 failures: tuple[RankFailure, ...] = ()) -> None:
        super().__init__(msg)
        self.msg, self.error_index, self.pid, self.failures = msg, error_index, pid, failures

    @property
    def error_pid(self) -> int:
        return self.pid

    @property
    def failure(self) -> RankFailure | None:
        """The first failure in time, which is the cause of the others."""
        return self.failures[0] if self.failures else None

    def _fields(self) -> tuple[Any, ...]:
        return self.msg, self.error_index, self.pid

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self._fields(), self.failures)


class ProcessRaisedException(ProcessException):
    """The function of a rank raised an exception. str() ends with the traceback that the rank had."""

    @property
    def remote_traceback(self) -> str:
        """The traceback of the rank, with the exception as its last line."""
        return self.msg.partition("terminated with the following error:\n")[2] or self.msg


class ProcessExitedException(ProcessException):
    """A rank ended before its function had returned: with an exit code, or of a signal.

    exit_code: negative for a signal. signal_name: such as "SIGKILL", or None.
    """

    def __init__(self, msg: str, error_index: int = -1, pid: int = 0, exit_code: int = 0,
                 signal_name: str | None = None, *, failures: tuple[RankFailure, ...] = ()) -> None:
        super().__init__(msg, error_index, pid, failures=failures)
        self.exit_code, self.signal_name = exit_code, signal_name

    def _fields(self) -> tuple[Any, ...]:
        return *super()._fields(), self.exit_code, self.signal_name


def _rebuild(kind: type[ProcessException], fields: tuple[Any, ...],
             failures: tuple[RankFailure, ...]) -> ProcessException:
    return kind(*fields, failures=failures)


def failure_of(told: tuple[Any, ...]) -> RankFailure:
    """One failure as `_core` describes it."""
    (kind, rank, pid, exit_code, signal, signal_name, core, ended_by_us, cut, user, system, rss, time, message, type_,
     text, trace, causes, _) = told
    return RankFailure(KINDS[kind - 1], rank, pid, exit_code, signal, signal_name, bool(core), bool(ended_by_us),
                       bool(cut), user, system, rss, time, message, type_, text, trace, tuple(causes))


def exception_of(failures: tuple[RankFailure, ...], sentence: str, first_rank: int) -> ProcessException:
    """The exception for the first failure; `sentence` is torch's for it."""
    first = failures[0]
    index = first.rank - first_rank if first.rank >= 0 else -1
    if first.kind == "raised":
        return ProcessRaisedException(sentence, index, first.pid, failures=failures)
    if first.kind in ("exited", "signalled", "unfinished"):
        return ProcessExitedException(sentence, index, first.pid, first.exit_code, first.signal_name or None,
                                      failures=failures)
    return ProcessException(sentence, index, first.pid, failures=failures)
