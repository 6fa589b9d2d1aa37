# SPDX-License-Identifier: Apache-2.0
"""Pool: that of the standard library over our queues, which also tells of tasks whose worker died.

A worker writes on a board which task it has, before the queue forgets that task. When a worker has ended, all results that
it had sent are taken first. If its task is still open then, the task fails with WorkerDied. A task that a worker had not
noted yet goes to another worker. So each task has one outcome, and nobody waits for ever. When the broker has gone, it is
the outcome of all tasks that are open, and of those that come.
"""
from __future__ import annotations

import multiprocessing.pool as _base
import multiprocessing.queues
import os
import struct
import threading
import time
from multiprocessing import ProcessError, context, util
from multiprocessing.pool import *  # noqa: F403
from queue import Empty

from .. import _core, errors
from ..arguments import number
from . import message, place
from .channel import Channel, parent_has_ended
from .queues import SimpleQueue

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MOST = 60  # workers; a queue is shared by at most 64 processes
_TASK = struct.Struct("=q")
_WAKE = "wake"
_NOBODY = (-1, 0, None)
_GONE = (errors.SessionLost, errors.NoBroker, errors.GroupEnded, errors.Broken)  # the queues of the pool are over
_REST = 0.02  # seconds


def __getattr__(name: str) -> Any:
    return getattr(_base, name)


class WorkerDied(ProcessError):
    """The worker process ended while it ran the task. Nobody knows how far the task had come."""

    def __init__(self, pid: int | None, exitcode: int | None) -> None:
        super().__init__(pid, exitcode)
        self.pid, self.exitcode = pid, exitcode

    def __str__(self) -> str:
        if self.exitcode is not None and self.exitcode < 0:
            how = f"was killed by signal {-self.exitcode}"
        else:
            how = f"ended with exit code {self.exitcode}"
        return f"the worker process {self.pid} {how} while it ran this task. Other tasks go on with a new worker"


class Board:
    """A region with one place for each worker: job + 1 and number of its task, or 0."""

    def __init__(self) -> None:
        session, self._address = place.home()
        self._region = session.create(4096, many_writers=True)
        self._view = memoryview(self._region)
        self._view[:] = bytes(4096)

    def __getstate__(self) -> Any:
        context.assert_spawning(self)
        return self._address, tuple(self._region.id)

    def __setstate__(self, state: Any) -> None:
        self._address, identity = state
        self._region = place.visit(self._address).attach(_core.RegionId(identity), write=True)
        self._view = memoryview(self._region)

    def is_whole(self) -> bool:
        """Whether its broker is there."""
        try:
            self._region.session.ping()
        except errors.Error:
            return False
        return True

    def note(self, number: int, job: int, index: int) -> None:
        _TASK.pack_into(self._view, number * 16 + 8, index)
        _TASK.pack_into(self._view, number * 16, job + 1)

    def clear(self, number: int) -> None:
        _TASK.pack_into(self._view, number * 16, 0)

    def read(self, number: int) -> tuple[int, int] | None:
        job, = _TASK.unpack_from(self._view, number * 16)
        index, = _TASK.unpack_from(self._view, number * 16 + 8)
        return (job - 1, index) if job else None


class Tasks:
    """The queue of tasks. A message carries its job and number outside its pickle."""

    def __init__(self) -> None:
        self._channel = Channel(at_least_once=True)

    def put(self, task: Any) -> None:
        _send(self._channel, task, 0 if task is None else _kind(*task[:2]))

    def look(self) -> None:
        """A look at the queue, which gives back the lanes of workers that have ended."""
        self._channel.depth()

    def begin(self) -> bool:
        """In a worker: its parent sends everything. False: the parent has ended already, and the queue with it perhaps."""
        self._channel.of_parent = True
        self._channel.use_as("reader")
        try:
            self._channel.depth()  # from here on the end of the parent ends a wait
        except errors.Error:
            if not parent_has_ended():
                raise
        return not parent_has_ended()

    def get(self, board: Board, number: int) -> Any:
        """The next task, noted on the board. EOFError: the parent has ended. SessionLost: so has the broker, and the parent
        was told of the tasks that are left here."""
        self._channel.check()
        received = self._channel.receive(None)
        kind = received.type
        if kind == 0:
            received.done()
            return None
        job, index = _job_and_index(kind)
        board.note(number, job, index)
        try:
            return message.load(received)
        except Exception as error:  # it cannot be unpickled here: that is the outcome of this task
            try:
                received.done()
            except errors.Error:
                pass
            return job, index, _raise, (error,), {}

    def drop(self) -> bool:
        """Throws the next one away, if there is one."""
        try:
            self._channel.receive(0).done()
            return True
        except (Empty, *_GONE):
            return False


class Outcomes(SimpleQueue):
    """The queue of results. A message carries job and number of its task outside its pickle, too: so a result that cannot
    be unpickled here fails its task."""

    def put(self, outcome: Any) -> None:
        try:
            _send(self._channel, outcome, _kind(*outcome[:2]) if isinstance(outcome, tuple) else 0)
        except _GONE:
            if isinstance(outcome, tuple):
                raise  # else it only wakes a reader, who is told by the queue itself

    def take(self, timeout: float | None) -> Any:
        at_hand = self._channel.at_hand
        received = at_hand.pop() if at_hand else self._channel.receive(timeout)
        kind = 0 if isinstance(received, bytes) else received.type
        try:
            return message.load(received)
        except Exception as error:
            if kind == 0:
                raise
            return *_job_and_index(kind), (False, error), None


def _over(error: errors.Error) -> errors.SessionLost:
    """As an OSError, after which the threads of the standard library's Pool know to go on."""
    if isinstance(error, errors.SessionLost):
        return errors.SessionLost("the broker of this pool has gone. Make a new pool: it finds the next broker, or starts one")
    return errors.SessionLost(f"the broker of this pool is gone: {error}")


def _send(channel: Channel, obj: Any, kind: int) -> None:
    outgoing = message.Outgoing(obj, channel)
    try:
        channel.send(outgoing.parts, None, kind)
    except BaseException:
        outgoing.fail()
        raise


def _kind(job: int, index: int) -> int:
    return ((job + 1) & 0xFFFFFFFF) << 32 | index & 0xFFFFFFFF


def _job_and_index(kind: int) -> tuple[int, int]:
    return (kind >> 32) - 1, kind & 0xFFFFFFFF


def _raise(error: BaseException) -> None:
    raise error


def worker(inqueue: Tasks, outqueue: Outcomes, board: Board, number: int, initializer: Any = None, initargs: Any = (),
           maxtasks: int | None = None, wrap_exception: bool = False) -> None:
    """Runs tasks until there are no more."""
    if maxtasks is not None and not (isinstance(maxtasks, int) and maxtasks >= 1):
        raise AssertionError(f"Maxtasks {maxtasks!r} is not valid")
    if not inqueue.begin():
        return
    outqueue._channel.use_as("writer")
    try:
        outqueue._channel.open()  # before the first task: a worker without this queue cannot say how a task ended
    except _GONE:
        return
    if initializer is not None:
        initializer(*initargs)
    completed = 0
    while maxtasks is None or completed < maxtasks:
        try:
            task = inqueue.get(board, number)
        except (EOFError, OSError):
            util.debug("worker got EOFError or OSError -- exiting")
            break
        if task is None:
            util.debug("worker got sentinel -- exiting")
            break
        job, index, function, args, kwds = task
        try:
            result: Any = (True, function(*args, **kwds))
        except Exception as error:
            if wrap_exception and function is not _base._helper_reraises_exception:
                error = _base.ExceptionWithTraceback(error, error.__traceback__)
            result = (False, error)
        try:
            outqueue.put((job, index, result, number))
        except Exception as error:
            wrapped = _base.MaybeEncodingError(error, result[1])
            util.debug("Possible encoding error while sending result: %s" % wrapped)
            outqueue.put((job, index, (False, wrapped), number))
        board.clear(number)
        task = job = index = result = function = args = kwds = None
        completed += 1
    util.debug("worker exiting after %d tasks" % completed)


class _Workers(list):
    """The pool's list of processes: tells when one is taken out because it has ended."""

    ended: Any = None

    def __delitem__(self, index: Any) -> None:
        gone = self[index]
        super().__delitem__(index)
        if self.ended is not None:
            self.ended(gone)


class _Wanted(int):
    """How many workers a pool wants. Without a broker none more: they could not open the queues."""

    is_whole: Any

    def __sub__(self, there: int) -> int:
        return int(self) - there if self.is_whole() else 0


class _PoolContext:
    """The context as the standard library's Pool uses it: its own wake-ups need no shared memory."""

    def __init__(self, ctx: Any, pool: Pool) -> None:
        self._ctx = ctx
        self._numbers = pool._numbers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)

    def SimpleQueue(self) -> Any:
        return multiprocessing.queues.SimpleQueue(ctx=self._ctx)

    def Process(self, *, target: Any, args: Any) -> Any:
        return self._numbers.process(self._ctx, args)


class _Numbers:
    """Which place on the board each worker has."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free = list(range(255, -1, -1))
        self.board = Board()

    def process(self, ctx: Any, args: Any) -> Any:
        with self._lock:
            number = self._free.pop()
        inqueue, outqueue, *rest = args
        made = ctx.Process(target=worker, args=(inqueue, outqueue, self.board, number, *rest))
        made._shmbroker_number = number
        return made

    def free(self, number: int) -> None:
        self.board.clear(number)
        with self._lock:
            self._free.append(number)


class _Results:
    """The outcomes of tasks, for the thread that hands them out: what workers sent, and what the dead did not send."""

    def __init__(self, tasks: Tasks, queue: Outcomes, numbers: _Numbers) -> None:
        self._tasks, self._queue, self._numbers = tasks, queue, numbers
        self._lost: errors.SessionLost | None = None  # the broker has gone
        self.open_tasks: Any = {}  # the cache of the pool: what is waited for, by job
        self.more_may_come: Any = lambda: True
        self._dead: list[Any] = []
        self._failed: set[tuple[int, int]] = set()
        self._last: dict[int, tuple[int, int]] = {}  # which task each worker has finished

    def ended(self, gone: Any) -> None:
        self._dead.append(gone)
        self._queue.put(_WAKE)

    def get(self) -> Any:
        """The next outcome; where there is none for anybody, that of a job that there is not."""
        if self._lost is None:
            try:
                return self._next()
            except _GONE as error:
                self._lost = _over(error)
        return self._fail()

    def put(self, task: Any) -> None:
        if self._lost is not None:
            raise self._lost.with_traceback(None)
        try:
            self._tasks.put(task)
        except _GONE as error:
            raise _over(error) from None

    def _fail(self) -> Any:
        """The loss of the broker as the outcome of an open task. None once there is nothing to come."""
        for job, result in list(self.open_tasks.items()):
            if getattr(result, "_length", 0) is None and result._items:
                continue  # an iterator whose end is not known yet: one failure at a time is enough
            return job, getattr(result, "_index", 0), (False, self._lost)
        time.sleep(_REST)
        return _NOBODY if self.more_may_come() else None

    def _next(self) -> Any:
        try:
            task = self._queue.take(0 if self._dead else None)
        except Empty:  # what the dead had sent has been taken
            return self._bury(self._dead.pop(0)) or _NOBODY
        if task is None:
            return None
        if task == _WAKE:
            return _NOBODY
        job, index, result, number = task
        self._last[number] = (job, index)
        return _NOBODY if (job, index) in self._failed else (job, index, result)

    def _bury(self, gone: Any) -> Any:
        self._tasks.look()
        number = gone._shmbroker_number
        task = self._numbers.board.read(number)
        finished = self._last.pop(number, None)
        self._numbers.free(number)
        if task is None or task == finished:
            return None
        self._failed.add(task)
        return task[0], task[1], (False, WorkerDied(gone.pid, gone.exitcode))


class Pool(_base.Pool):
    """As multiprocessing.pool.Pool. Arguments and results with large buffers travel in shared memory."""

    def __init__(self, processes: int | None = None, initializer: Any = None, initargs: Any = (),
                 maxtasksperchild: int | None = None, context: Any = None) -> None:
        self._pool: Any = []
        self._state = _base.INIT
        if context is None:
            from .context import _default_context
            context = _default_context.get_context()
        if processes is None:
            processes = min(os.cpu_count() or 1, _MOST)
        elif number(processes, "processes", "an int or None") > _MOST:
            raise ValueError(f"a pool has at most {_MOST} workers, because its queues are shared by at most 64 processes; "
                             f"{processes} were asked for. Use several pools")
        self._numbers = _Numbers()
        wanted = _Wanted(processes)
        wanted.is_whole = self._numbers.board.is_whole
        super().__init__(wanted, initializer, initargs, maxtasksperchild, _PoolContext(context, self))
        self._results.open_tasks = self._cache
        self._results.more_may_come = self._task_handler.is_alive

    def _setup_queues(self) -> None:
        self._inqueue = Tasks()
        self._outqueue = Outcomes(ctx=self._ctx)
        self._inqueue.look()  # workers learn of the end of a process that has used it
        self._results = results = _Results(self._inqueue, self._outqueue, self._numbers)
        self._pool = _Workers()
        self._pool.ended = results.ended
        self._quick_put = results.put
        self._quick_get = results.get

    def _check_running(self) -> None:
        super()._check_running()
        if not self._pool and not self._numbers.board.is_whole():
            raise errors.SessionLost("the broker of this pool is gone, and its workers have ended: make a new pool")

    def _get_sentinels(self) -> list[Any]:
        return [self._change_notifier._reader]

    @staticmethod
    def _help_stuff_finish(inqueue: Any, task_handler: Any, size: int) -> None:
        util.debug("removing tasks from inqueue until task handler finished")
        while task_handler.is_alive() and inqueue.drop():
            pass

