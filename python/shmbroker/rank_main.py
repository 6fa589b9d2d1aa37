# SPDX-License-Identifier: Apache-2.0
"""The program of a rank, and how the parent hands over to it.

A rank of the methods spawn and forkserver is a new interpreter that runs main(). It gets a memory file with what
multiprocessing tells a new process (paths, arguments, the main module), and with the pickled function and arguments. The
fork server imports the modules once and then forks the ranks.
"""
from __future__ import annotations

import os
import sys
from typing import Any, Callable, Mapping

from . import _core, travel
from .errors import Error, Invalid

starting = False  # this process is a rank that still imports what it needs
_PROGRAM = "import sys; sys.path[:0] = {paths!r}; from shmbroker.rank_main import main; main({descriptor})"


class _Departure(travel.Departure):
    command: list[str]


# ------------------------------------------------------------------------------------------------- in the parent

def depart(fn: Callable[..., Any], args: tuple[Any, ...], nprocs: int, method: str, env: Mapping[str, str] | None,
           like_process: bool, prelude: Any) -> _Departure:
    """Pickles what the ranks need. `command` runs them while the departure is open."""
    import pickle
    import subprocess
    from multiprocessing import spawn

    departure = _Departure(method)
    lend, modules = _lend_once(nprocs), set[str]()
    try:
        with departure:
            # A reducer may count on one receiver for each pickle, as those of torch do. Equal pickles are kept once.
            calls: list[tuple[bytes, bytes]] = []
            whose: list[int] = []
            for _ in range(nprocs if like_process else 1):
                departure.begin()
                call = _pack_call(fn, args, lend, modules)
                if call not in calls:
                    calls.append(call)
                whose.append(calls.index(call))
            departure.begin(anew=True)
            preparation = travel.pack(spawn.get_preparation_data("rank"), lend)
        imported = sorted(modules - {"__main__", "__mp_main__"})
        environment = _environment(env) if like_process else None
        data = pickle.dumps((_identity(), environment, preparation, imported, pickle.dumps(prelude), calls, whose,
                             like_process), 5)
        file = os.memfd_create("shmb-rank", os.MFD_CLOEXEC)
        try:
            descriptor = departure.duplicate_for_child(file)
        finally:
            os.close(file)
        with open(os.dup(descriptor), "wb") as out:
            out.write(data)
        paths = [os.path.dirname(path) for path in sys.modules["shmbroker"].__path__]
        executable = os.fsdecode(spawn.get_executable())
        departure.command = [executable, *subprocess._args_from_interpreter_flags(),  # type: ignore[attr-defined]
                             "-c", _PROGRAM.format(paths=paths, descriptor=descriptor)]
    except BaseException:
        departure.close()
        raise
    return departure


def _lend_once(nprocs: int) -> travel.Lend:
    """One ticket for each region, that all ranks use."""
    tickets: dict[int, Any] = {}

    def lend(region: Any) -> Any:
        if id(region) not in tickets:
            tickets[id(region)] = region.lend(write=not region.readonly, share=True, uses=nprocs)
        return tickets[id(region)]
    return lend


def _pack_call(fn: Callable[..., Any], args: tuple[Any, ...], lend: travel.Lend,
               modules: set[str]) -> tuple[bytes, bytes]:
    try:
        call = travel.pack(fn, lend, modules)
    except Exception as error:
        raise travel.refuse(f"the function {getattr(fn, '__qualname__', fn)!r}", error,
                            "Define it at the top level of a module, or use start_method='fork'") from error
    try:
        return call, travel.pack(args, lend, modules)
    except Error:
        raise  # of the broker, with advice of its own
    except Exception as error:
        raise travel.refuse("an argument of the ranks", error,
                            "Pass what can be pickled, or use start_method='fork'") from error


def _environment(env: Mapping[str, str] | None) -> dict[bytes, bytes]:
    return {**os.environb, **{os.fsencode(name): os.fsencode(value) for name, value in (env or {}).items()}}


def fork_entry(fn: Callable[..., Any], args: tuple[Any, ...], env: Mapping[str, str] | None,
               like_process: bool) -> Callable[[], int]:
    """The work of a rank that is a copy of this process. Returns the exit status."""
    environment = _environment(env) if like_process else None
    parent = _identity()

    def entry() -> int:
        _become_rank()
        told = _core.rank_enter(None)
        _read_environment(environment)
        _introduce(told[1], *parent)
        return _end_copy(lambda: _run(lambda: _dropped(fn(told[0], *args), like_process)))
    return entry


def _identity() -> tuple[int, str]:
    from multiprocessing import process
    return os.getpid(), process.current_process().name


def _dropped(value: Any, drop: bool) -> Any:
    return None if drop else value


# ------------------------------------------------------------------------------------------------------ in a rank

class _Preparation:
    """The preparations before the first rank of a fork server is made, or at the start of any other rank."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.copied = False
        self.error: BaseException | None = None
        self.environment: dict[bytes, bytes] | None = None

    def preload(self) -> None:
        """In the fork server."""
        import gc
        import importlib
        self.copied = True
        self.load()
        for name in self.modules:
            try:
                importlib.import_module(name)
            except Exception:
                pass  # the rank that needs it fails with the reason
        if self.error is None:
            self.seeds.loaded()
        threads = sys.modules["threading"].enumerate()[1:] if "threading" in sys.modules else []
        if threads and self.error is None:
            self.error = RuntimeError(
                f"the import of the modules in the fork server has started a thread ({threads[0].name}), and its copies "
                "would not have it: start it in a function, or use start_method='spawn'")
        gc.collect()
        gc.freeze()  # so that no collection in a rank writes to all the pages that ranks share

    def load(self) -> None:
        """Failures are kept for the ranks to raise."""
        global starting
        import pickle
        from multiprocessing import process, spawn
        starting = True
        current = process.current_process()
        current._inheriting = True  # type: ignore[attr-defined]
        try:
            size = os.fstat(self._descriptor).st_size
            (self.parent, self.environment, preparation, self.modules, self.prelude, self.calls,
             self.whose, self.drop) = pickle.loads(os.pread(self._descriptor, size, 0))
            _read_environment(self.environment)
            if self.copied:
                from .rank_seeds import Seeds
                self.seeds = Seeds()
            spawn.prepare(pickle.loads(preparation))  # type: ignore[attr-defined]
        except BaseException as error:
            self.modules = []
            self.error = error
        finally:
            os.close(self._descriptor)
            starting = False
            del current._inheriting  # type: ignore[attr-defined]

    def unpack(self, local_rank: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        from multiprocessing import process
        if self.error is not None:
            raise self.error
        current = process.current_process()
        current._inheriting = True  # type: ignore[attr-defined]
        try:
            prelude = travel.unpack(self.prelude)
            if prelude is not None:
                prelude[0](*prelude[1])
            call, args = self.calls[self.whose[local_rank % len(self.whose)]]
            return travel.unpack(call), travel.unpack(args)
        except Exception as error:
            raise Invalid(f"the rank cannot load its function or arguments: {travel.describe(error)}. They must be "
                          "importable in the rank: not defined under `if __name__ == '__main__':`, nor in an interactive "
                          "session") from error
        finally:
            del current._inheriting  # type: ignore[attr-defined]


def main(descriptor: int) -> None:
    preparation = _Preparation(descriptor)
    told = _core.rank_enter(preparation.preload)
    if told is None:
        sys.exit("shmbroker.rank_main is started by shmbroker.spawn, and by nothing else")
    if preparation.copied:
        _read_environment(preparation.environment)
        _become_rank()
        if preparation.error is None:
            preparation.seeds.copied()
            _introduce(told[1], *preparation.parent)
        os._exit(_end_copy(lambda: _run(lambda: _call(preparation, told[0], told[1]))))
    _read_environment(None)
    preparation.load()
    if preparation.error is None:
        _introduce(told[1], *preparation.parent)
    sys.exit(_run(lambda: _call(preparation, told[0], told[1])))


def _read_environment(parents: Mapping[bytes, bytes] | None) -> None:
    """The library has set RANK and its like, and has taken away what programs that this one starts must not see.
    `parents`: the variables of the parent are those of the rank, but for the library's own."""
    there = dict(one.split(b"=", 1) for one in _core.environment() if b"=" in one)
    if parents is not None:
        own = {name: value for name, value in there.items() if name.startswith(b"SHMBROKER_")}
        there = {**{name: value for name, value in parents.items() if not name.startswith(b"SHMBROKER_RANK")}, **own}
    for name in os.environb.keys() - there.keys():
        del os.environb[name]
    for name, value in there.items():
        if os.environb.get(name) != value:
            os.environb[name] = value


def _call(preparation: _Preparation, rank: int, local_rank: int) -> Any:
    fn, args = preparation.unpack(local_rank)
    return _dropped(fn(rank, *args), preparation.drop)


def _run(call: Callable[[], Any]) -> int:
    """Runs the function, tells the parent how it ended, and returns the exit status. SystemExit goes through."""
    try:
        value = call()
        _finish(value)
        return 0
    except SystemExit:
        raise
    except BaseException as error:
        _report(error)
        return 1


def _finish(value: Any) -> None:
    import pickle
    lent: list[Any] = []

    def lend(region: Any) -> Any:
        from .ticket import Ticket
        lent.append(region)
        rights = _core.RIGHT_READ | _core.RIGHT_SHARE | (0 if region.readonly else _core.RIGHT_WRITE)
        return Ticket(_core.rank_lend(region, rights, 1, 5_000_000_000))
    try:
        data = travel.pack(value, lend)
    except Error:
        raise
    except Exception as error:
        raise travel.refuse("the result of the function", error, "Return what can be pickled") from error
    _core.rank_finish(pickle.dumps((bool(lent), data), 5))


def _report(error: BaseException) -> None:
    from . import rank_echo
    if rank_echo.may_echo(error):
        rank_echo.await_cause(_core.rank_enter(None)[3])  # type: ignore[index]
    _core.rank_throwing(_encode(_name(type(error))))
    import traceback
    causes, seen, one = [], {id(error)}, _origin(error)
    while one is not None and id(one) not in seen and len(causes) < 64:
        seen.add(id(one))
        causes.append((_encode(_name(type(one))), _encode(travel.text_of(one))))
        one = _origin(one)
    text = "\n".join([travel.text_of(error), *map(str, getattr(error, "__notes__", None) or ())])
    try:
        error.__traceback__ = _own_frames_cut(error.__traceback__)
        told = traceback.TracebackException.from_exception(error)
        lines = list(told.format())
        trace = "".join(lines[:len(lines) - len(list(told.format_exception_only()))])
    except Exception as another:
        trace = f"(the traceback could not be written: {travel.describe(another)})\n"
    _core.rank_raise(_encode(_name(type(error))), _encode(text), _encode(trace), causes)


def _origin(error: BaseException) -> BaseException | None:
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _own_frames_cut(trace: Any) -> Any:
    """The frames of this file come first and say nothing. An error of its own has no others."""
    first = trace
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace or first


def _name(kind: type) -> str:
    if kind.__module__ in ("builtins", "__main__", "__mp_main__"):
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace").replace(b"\0", b"\\x00")


def _introduce(local_rank: int, parent_pid: int, parent_name: str) -> None:
    """To multiprocessing a rank is a child like those that it starts itself."""
    from multiprocessing import process
    current: Any = process.current_process()
    current._identity, current._name = (local_rank + 1,), f"rank-{local_rank}"
    try:
        sentinel = os.pidfd_open(parent_pid)
    except OSError:
        return  # the parent has gone, and this rank is about to be ended
    process._parent_process = process._ParentProcess(parent_name, parent_pid, sentinel)  # type: ignore[attr-defined]


# ------------------------------------------------------------------------------- in a copy of another interpreter

def _become_rank() -> None:
    """Exit functions, children and finalisers of the process that was copied are not this rank's."""
    import atexit
    atexit._clear()
    util, process = sys.modules.get("multiprocessing.util"), sys.modules.get("multiprocessing.process")
    if util is not None:
        util._finalizer_registry.clear()
        util._run_after_forkers()
    if process is not None:
        process._children = set()


def _end_copy(run: Callable[[], int]) -> int:
    """Runs, and then does what the end of an interpreter does, without taking apart memory that is shared."""
    import atexit
    import threading
    try:
        status = run()
    except SystemExit as error:
        status = _status_of(error)
    util = sys.modules.get("multiprocessing.util")
    steps = [threading._shutdown, *([util._exit_function] if util is not None else []),  # type: ignore[attr-defined]
             atexit._run_exitfuncs]
    for step in steps:
        try:
            step()
        except Exception:
            sys.excepthook(*sys.exc_info())
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            status = status or 120  # as the interpreter itself exits then
    return status


def _status_of(error: SystemExit) -> int:
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    print(error.code, file=sys.stderr)
    return 1
