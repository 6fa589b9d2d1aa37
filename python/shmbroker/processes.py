# SPDX-License-Identifier: Apache-2.0
"""`spawn` runs a Python function in N processes, the ranks, and makes sure that they end together (docs/spawn.md).

The signatures are those of torch.multiprocessing. The first failure in time is the cause. When join returns, no process
of the ranks is left, nor what they have started. The end of this process, of whatever kind, ends them.
"""
from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import signal
import sys
from typing import Any, Callable, Iterable, Literal, Mapping, TypeVar

from . import _core
from .arguments import items, number, seconds, text_or_none, wrong
from .errors import Closed, Invalid, NotFound, Timeout
from .process_errors import (ProcessException, ProcessExitedException, ProcessRaisedException, RankFailure, exception_of,
                             failure_of)

__all__ = ["spawn", "start_processes", "ProcessContext", "RankProcess", "RankFailure", "ProcessException",
           "ProcessExitedException", "ProcessRaisedException"]

StartMethod = Literal["spawn", "fork", "forkserver"]
Output = Literal["inherit", "null", "files", "prefix"]
_METHODS = ("spawn", "fork", "forkserver")
_OUTPUTS = ("inherit", "null", "files", "prefix")
_NO_GROUP = 1
_NO_WAIT = -2  # of the C interface, where 0 is the default of the call: in join no limit, and voluntary as it was
_RUNNING, _SUCCEEDED = 0, 1

# All that run, until they were joined: one that the program has dropped is joined, or ended, at exit.
_contexts: set[ProcessContext] = set()


def spawn(fn: Callable[..., Any], args: Iterable[Any] = (), nprocs: int = 1, join: bool = True, daemon: bool = False,
          start_method: StartMethod = "spawn", *, timeout: float | None = None, voluntary: float = 0.0,
          grace: float = 30.0, start_timeout: float = 60.0, env: Mapping[str, str] | None = None,
          directory: str | os.PathLike[str] | None = None, output: Output = "inherit",
          output_path: str | os.PathLike[str] | None = None, group: str | None = None, no_group: bool = False,
          limit_bytes: int = 0, socket: str | None = None, master_addr: str | None = None, master_port: int = 0,
          nnodes: int = 1, node_rank: int = 0) -> ProcessContext | None:
    """Calls fn(i, *args) in nprocs processes, for i from 0.

    join: waits, raises what made a rank fail, and returns None. Else returns a ProcessContext. daemon: the exit of this
    process ends ranks that still run, instead of waiting for them.

    timeout: with join: ends the ranks after so many seconds and raises Timeout. voluntary: how long the others may end
    by themselves after the first failure. grace: between SIGTERM and SIGKILL. start_timeout: for a rank's interpreter to
    start. env: further variables. output: "files" are OUTPUT_PATH.RANK.out and .err, "prefix" puts "[rank N]" before
    each line. group, limit_bytes: name and limit of the group that the ranks get at the broker; no_group: they get
    none. nnodes, node_rank: how many hosts do the same, and the number of this one; then give the master's address.
    """
    if timeout is not None and not join:
        raise Invalid("timeout is for join=True; give it to ProcessContext.join instead")
    wait = None if timeout is None else _nanoseconds(timeout, "timeout")
    context = _start(ProcessContext, fn, args, nprocs, daemon, start_method, voluntary=voluntary, grace=grace,
                     start_timeout=start_timeout, env=env, directory=directory, output=output, output_path=output_path,
                     group=group, no_group=no_group, limit_bytes=limit_bytes, socket=socket, master_addr=master_addr,
                     master_port=master_port, nnodes=nnodes, node_rank=node_rank)
    if not join:
        return context
    _join_or_end(context, wait, timeout)
    return None


def _join_or_end(context: ProcessContext, wait: int | None = None, timeout: float | None = None) -> None:
    """An exception that ends the wait ends the ranks too."""
    try:
        if context._join(0 if wait is None else wait, 0):
            return
    except ProcessException:
        raise
    except BaseException:
        context.terminate()
        context._join(0, 0, quiet=True)
        raise
    context.terminate()
    context._join(0, 0, quiet=True)
    raise Timeout(f"the ranks did not end within {timeout:g} s, and have been ended: give a longer timeout, or None")


def start_processes(fn: Callable[..., Any], args: Iterable[Any] = (), nprocs: int = 1, join: bool = True,
                    daemon: bool = False, start_method: StartMethod = "spawn", **options: Any) -> ProcessContext | None:
    """The same as spawn, under the name that torch.multiprocessing gives it."""
    return spawn(fn, args, nprocs, join, daemon, start_method, **options)


class RankProcess:
    """One rank, as a program sees a multiprocessing.Process."""

    def __init__(self, context: ProcessContext, number: int, pid: int) -> None:
        self._context, self._number, self.pid = context, number, pid
        self.rank = context._first_rank + number
        self.name = f"rank {self.rank}"
        self.daemon = context.daemon
        self._watch: int | None = None

    @property
    def exitcode(self) -> int | None:
        """None until all ranks have ended. Negative for a signal."""
        if not self._context._ended():
            return None
        failed = [one.exit_code for one in self._context.failures if one.rank == self.rank]
        return failed[0] if failed else 0

    def is_alive(self) -> bool:
        if self._context._ended():
            return False
        try:
            with open(f"/proc/{self.pid}/stat", "rb") as file:
                return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
        except OSError:
            return False

    @property
    def sentinel(self) -> int:
        """A descriptor that is readable once this rank has ended. It is there until the context was joined."""
        if self._watch is None:
            if self._context._state != _RUNNING:
                raise Closed(f"{self.name} has been joined, and its descriptor was closed")
            self._watch = _watch(self.pid)
        return self._watch

    def join(self, timeout: float | None = None) -> None:
        """Waits for the end of this rank alone."""
        if not self._context._ended():
            from multiprocessing import connection
            connection.wait([self.sentinel], None if timeout is None else seconds(timeout, "timeout"))

    def terminate(self) -> None:
        """SIGTERM to this rank alone. Its death is then a failure of the ranks."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if not self._context._ended():
            with contextlib.suppress(OSError):  # it has ended: what is watched then is no process
                signal.pidfd_send_signal(self.sentinel, number)

    def _close(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            os.close(watch)

    def __repr__(self) -> str:
        return f"<RankProcess {self.name}, pid {self.pid}>"


def _watch(pid: int) -> int:
    """A descriptor for the end of a rank. The supervisor takes the exit status of each rank at once, and then the kernel
    may give its number to another process. So a process that is not below our supervisor is not the rank."""
    try:
        watch = os.pidfd_open(pid)
        if _parent(_parent(_parent(pid))) == os.getpid():  # below supervisor and guard
            return watch
        os.close(watch)
    except ProcessLookupError:
        pass
    readable, other = os.pipe()
    os.close(other)
    return readable


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except OSError:
        return 0


class ProcessContext:
    """The ranks of one spawn. `processes` has them by local rank."""

    # As multiprocessing.Process treats a target: the environment of the ranks is that of this process, the arguments are
    # pickled for each rank, and the results are dropped.
    _like_process = False

    @classmethod
    def _prelude(cls) -> tuple[Callable[..., Any], tuple[Any, ...]] | None:
        """The function that a rank calls before its arguments are there, unless it is a copy of this process."""
        return None

    def __init__(self, ranks: _core.Processes | None, nprocs: int, first_rank: int, daemon: bool) -> None:
        self._ranks = ranks
        self._nprocs, self._first_rank, self.daemon = nprocs, first_rank, daemon
        self._owner = os.getpid()
        self._state = _SUCCEEDED if ranks is None else _RUNNING
        self._sentence = ""
        self._failures: tuple[RankFailure, ...] = ()
        self._packed: list[tuple[bool, bytes]] = []  # by local rank: whether regions travel along, and the result
        self._values: dict[int, Any] = {}
        self.processes = [RankProcess(self, number, pid) for number, pid in enumerate(ranks.pids() if ranks else ())]

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """True when all ranks have ended well, False when ranks are left after `timeout` seconds (0: only looks).

        Raises the first failure, the same at every call. After True and after a failure no process is left.
        grace_period: how long the others may end by themselves after a failure, from now on.
        """
        return self._join(0 if timeout is None else _nanoseconds(timeout, "timeout") or _NO_WAIT,
                          0 if grace_period is None else _nanoseconds(grace_period, "grace_period") or _NO_WAIT)

    async def join_async(self, timeout: float | None = None) -> bool:
        """As join, in an event loop of asyncio."""
        import asyncio

        from .aio import readable
        end = None if timeout is None else asyncio.get_running_loop().time() + seconds(timeout, "timeout")
        while not self.join(0):
            left = None if end is None else end - asyncio.get_running_loop().time()
            if left is not None and left <= 0:
                return False
            try:
                await asyncio.wait_for(readable(self.fileno()), left)
            except asyncio.TimeoutError:
                pass
        return True

    def _join(self, wait: int, voluntary: int, quiet: bool = False) -> bool:
        if not self._settle(wait, voluntary):
            return False
        if self._state == _SUCCEEDED or quiet:
            return True
        raise self._exception(self._failures, self._sentence)

    def _exception(self, failures: tuple[RankFailure, ...], sentence: str) -> ProcessException:
        return exception_of(failures, sentence, self._first_rank)

    def _settle(self, wait: int, voluntary: int) -> bool:
        """In a frame of its own: a traceback would keep the handle, and with it descriptors."""
        ranks = self._ranks
        if self._state != _RUNNING or ranks is None:
            return True
        state = ranks.join(wait, voluntary)
        if state == _RUNNING:
            return False
        told = ranks.failures()
        self._sentence = told[0][-1] if told else ""
        self._failures = tuple(failure_of(one) for one in told)
        if state == _SUCCEEDED:
            self._packed = [pickle.loads(ranks.result(number)) for number in range(self._nprocs)]
        self._state = state
        for process in self.processes:
            process._close()
        if not any(lent for lent, _ in self._packed):
            self._ranks = None  # and so its descriptors go; what was lent goes with it
        _contexts.discard(self)
        return True

    def _ended(self) -> bool:
        return self._join(_NO_WAIT, 0, quiet=True)

    @property
    def failures(self) -> tuple[RankFailure, ...]:
        """All failures in order of time; empty while ranks run, and after success."""
        self._ended()
        return self._failures

    def pids(self) -> list[int]:
        return [process.pid for process in self.processes]

    def fileno(self) -> int:
        """For select, poll and asyncio: readable once the ranks have ended, and there until join has told so. Never close
        it."""
        if self._ranks is None:
            raise Closed("the ranks have ended, and their descriptor was closed")
        return self._ranks.fileno()

    @property
    def sentinel(self) -> int:
        """The same descriptor, for multiprocessing.connection.wait."""
        return self.fileno()

    def terminate(self) -> None:
        """SIGTERM to all ranks, and SIGKILL after `grace`. Does not wait."""
        if self._ranks is not None:
            self._ranks.end(False)

    def kill(self) -> None:
        """SIGKILL to all ranks. Does not wait."""
        if self._ranks is not None:
            self._ranks.end(True)

    def result(self, local_rank: int = 0) -> Any:
        """The result of the function in a rank, once all have ended well. Raises as join does, or NotFound before."""
        if not 0 <= number(local_rank, "local_rank") < self._nprocs:
            raise Invalid(f"there is no local rank {local_rank}: those of this call are 0 to {self._nprocs - 1}")
        if not self._join(_NO_WAIT, 0):
            raise NotFound("the ranks still run: results are there when join has returned True")
        if local_rank not in self._values:
            self._values[local_rank] = self._unpack(local_rank)
        return self._values[local_rank]

    def results(self) -> list[Any]:
        """The results of all ranks by local rank."""
        return [self.result(number) for number in range(self._nprocs)]

    def _unpack(self, local_rank: int) -> Any:
        from . import travel
        lent, data = self._packed[local_rank]
        before = travel.use_session(self._ranks.session()) if lent and self._ranks is not None else None
        try:
            return travel.unpack(data)
        except Exception as error:
            raise Invalid(f"the result of rank {self._first_rank + local_rank} cannot be unpickled here: "
                          f"{travel.describe(error)}. Its class must be one that this program can import") from error
        finally:
            if lent:
                travel.use_session(before)


_Context = TypeVar("_Context", bound=ProcessContext)


def _start(kind: type[_Context], fn: Callable[..., Any], args: Iterable[Any], nprocs: int, daemon: bool,
           start_method: str, *, voluntary: float = 0.0, grace: float = 30.0, start_timeout: float = 60.0,
           env: Mapping[str, str] | None = None, directory: str | os.PathLike[str] | None = None,
           output: str = "inherit", output_path: str | os.PathLike[str] | None = None, group: str | None = None,
           no_group: bool = False, limit_bytes: int = 0, socket: str | None = None, master_addr: str | None = None,
           master_port: int = 0, nnodes: int = 1, node_rank: int = 0) -> _Context:
    from . import rank_main
    if rank_main.starting:
        raise RuntimeError(
            "shmbroker.spawn was called while a rank imports the main module. The module starts ranks again in each rank: "
            "put the call under `if __name__ == '__main__':`")
    if not callable(fn):
        raise TypeError(f"spawn calls a function; {fn!r} is none")
    args = items(args, "args", "a tuple or list of what the function gets behind the rank")
    nprocs, limit_bytes = number(nprocs, "nprocs"), number(limit_bytes, "limit_bytes")
    nnodes, node_rank = number(nnodes, "nnodes"), number(node_rank, "node_rank")
    master_port = number(master_port, "master_port")
    _check_hosts(nnodes, node_rank, master_port)
    if not 0 <= limit_bytes < 1 << 64:
        raise Invalid(f"limit_bytes is {limit_bytes}: bytes, and 0 for the limit that the broker's configuration gives")
    for value, what in ((group, "group"), (socket, "socket"), (master_addr, "master_addr")):
        text_or_none(value, what)
    variables = _variables(env)
    directory, output_path = _path(directory, "directory"), _path(output_path, "output_path")
    method, way = _choice(start_method, _METHODS, "start_method"), _choice(output, _OUTPUTS, "output")
    _drop_ended()
    if start_method == "fork":
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        departure, command, program = None, None, None
        entry = rank_main.fork_entry(fn, args, env, kind._like_process)
    else:
        departure = rank_main.depart(fn, args, nprocs, start_method, env, kind._like_process, kind._prelude())
        command, program, entry = departure.command, departure.command[0], None
    name = f"{getattr(fn, '__module__', '')}.{getattr(fn, '__qualname__', type(fn).__qualname__)}"
    try:
        ranks = _core.start_ranks(
            method, _NO_GROUP if no_group else 0, nprocs, nnodes, node_rank, way, output_path, name, b"", command,
            variables, directory, group, limit_bytes, socket, master_addr, master_port,
            _nanoseconds(voluntary, "voluntary"), _nanoseconds(grace, "grace") or _NO_WAIT,
            _nanoseconds(start_timeout, "start_timeout") or 1, _nanoseconds(start_timeout, "start_timeout") or 1, entry)
    finally:
        if departure is not None:
            departure.close()
    context = kind(ranks, nprocs, node_rank * nprocs, daemon)
    if not _contexts:
        atexit.unregister(_at_exit)
        atexit.register(_at_exit)
    _contexts.add(context)
    return context


def _drop_ended() -> None:
    for context in list(_contexts):
        if context._owner != os.getpid():
            _contexts.discard(context)  # this process is a copy of the one whose ranks they are
        else:
            context._ended()


def _at_exit() -> None:
    _drop_ended()
    for context in list(_contexts):
        if context.daemon:
            context.terminate()
    for context in list(_contexts):
        try:
            context._join(0, 0, quiet=True)
        except KeyboardInterrupt:
            context.terminate()
            context._join(0, 0, quiet=True)


def _choice(value: str, choices: tuple[str, ...], what: str) -> int:
    if value not in choices:
        raise Invalid(f"{what} is {value!r}: it is one of {', '.join(choices)}")
    return choices.index(value)


def _check_hosts(nnodes: int, node_rank: int, master_port: int) -> None:
    if nnodes < 1 or not 0 <= node_rank < nnodes:
        raise Invalid(f"node_rank is {node_rank} and nnodes {nnodes}: nnodes is how many hosts there are, 1 or more, and "
                      "node_rank the number of this one, from 0 to nnodes - 1")
    if not 0 <= master_port < 1 << 16:
        raise Invalid(f"master_port is {master_port}: a port is 1 to 65535, and 0 leaves it out")
    if nnodes > 1 and master_port == 0:
        raise Invalid(f"nnodes is {nnodes}: the ranks of all hosts meet at one port, and no host can choose it for the "
                      "others. Give the same master_addr and master_port on each")


def _path(path: str | os.PathLike[str] | None, what: str) -> str | None:
    if path is None:
        return None
    if not isinstance(path, (str, bytes, os.PathLike)):
        raise wrong(what, "a path (str or os.PathLike) or None", path)
    return os.fsdecode(path)


def _variables(env: Mapping[str, str] | None) -> list[str] | None:
    if env is None:
        return None
    if not hasattr(type(env), "items"):
        raise wrong("env", "a mapping of names to values, such as a dict, or None", env)
    texts = (str, bytes, os.PathLike)
    for name, value in env.items():
        if not isinstance(name, texts):
            raise wrong("a name in env", "a str", name)
        if not isinstance(value, texts):
            raise wrong(f"the value of {name!r} in env", "a str", value)
    return [f"{os.fsdecode(name)}={os.fsdecode(value)}" for name, value in env.items()]


def _nanoseconds(value: float, what: str) -> int:
    time = seconds(value, what)
    if not time >= 0:
        raise Invalid(f"{what} is {value!r}: seconds, 0 or more")
    return int(min(time, 9e9) * 1e9)
