# SPDX-License-Identifier: Apache-2.0
"""Exceptions on their way between workers.

A function's exception is raised again at the caller, with its type where the caller has that, with the worker and the
traceback in its text, as torch.distributed.rpc does it. An error of the broker is a RuntimeError, as in torch, and
keeps the status of the broker.
"""
from __future__ import annotations

import builtins
import importlib
import sys
import traceback
from typing import Any

from ... import errors

Failure = tuple[int, int, str, str, str, str, list[tuple[str, str]]]  # as _core gives it

_OF_CPP = {"std::invalid_argument": ValueError, "std::domain_error": ValueError, "std::length_error": ValueError,
           "std::out_of_range": IndexError, "std::overflow_error": OverflowError, "std::bad_alloc": MemoryError}


class RpcError(RuntimeError):
    """A call failed for a reason of its own. status: the broker's name of it, such as "worker_gone"."""

    status = "error"
    worker: str | None = None  # which one, where it is about one
    remote_type: str | None = None
    remote_traceback: str | None = None


class RpcTimeout(RpcError, TimeoutError):
    """The call ran for more than its timeout."""

    status = "deadline"

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class RpcWorkerGone(RpcError):
    """The worker has died or has left, or the owner of a reference has."""

    status = "worker_gone"


class RemoteException(RpcError):
    """A function's exception whose type this worker does not have."""

    status = "raised"


def timed_out(limit: int | None) -> RpcTimeout:
    within = f" ({limit // 1_000_000} ms)" if limit is not None and limit > 0 else ""
    return RpcTimeout(f"RPCErr:1:RPC ran for more than set timeout{within} and will now be marked with an error")


def of_broker(error: errors.Error, limit: int | None = None) -> Exception:
    """The exception for the program. Too little memory and bad arguments stay what they are."""
    if isinstance(error, (errors.OutOfShared, errors.Invalid)):
        return error
    if isinstance(error, errors.Timeout):
        if "creation" not in str(error):
            return timed_out(limit)
        return RpcTimeout("RRef creation via rpc.remote() timed out, and it is possible that the RRef on the owner node "
                          f"does not exist. ({error})")
    kind = RpcWorkerGone if isinstance(error, (errors.WorkerGone, errors.OwnerGone)) else RpcError
    made = kind("the broker has gone, and this world with it: leave it by shutdown(), which raises too, and join the next "
                "by init_rpc()" if isinstance(error, errors.SessionLost) else str(error))
    made.status = error.status
    return made


def _class_of(name: str) -> type[BaseException] | None:
    if name in _OF_CPP:
        return _OF_CPP[name]
    module, _, qualified = name.rpartition(":")
    try:
        found: Any = importlib.import_module(module) if module else builtins
        for part in qualified.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        return None
    return found if isinstance(found, type) and issubclass(found, Exception) else None


def of_failure(failure: Failure, limit: int | None = None) -> Exception:
    code, rank, worker, kind, text, trace, causes = failure
    if code != errors.Raised.code:
        error = errors.make(code, "", text, 0, 0, 0, 0, 0, 0, 0)
        made = of_broker(error, limit)
        if isinstance(made, RpcError) and worker:
            made.worker = worker
        return made
    short = kind.rpartition(":")[2]
    message = f"On WorkerInfo(id={rank}, name={worker}):\n{short}({text!r})\n{trace}"
    for cause_kind, cause_text in causes:
        message += f"\nwhich was caused by {cause_kind.rpartition(':')[2]}: {cause_text}"
    found = _class_of(kind)
    raised: Exception | None = None
    if found is not None:
        try:
            raised = found(message)
        except Exception:  # noqa: BLE001 - a class of the user's, whose arguments nobody here knows
            raised = None
    if raised is None:
        raised = RemoteException(message)
    for name, value in (("remote_type", short), ("remote_traceback", trace), ("worker", worker)):
        try:
            setattr(raised, name, value)
        except Exception:  # noqa: BLE001 - a class without room for it
            break
    return raised


def _name_of(kind: type) -> str:
    module, name = kind.__module__, kind.__qualname__
    return name if module == "builtins" else f"{module}:{name}"


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace").replace(b"\0", b"\\0")


def of_exception(error: BaseException) -> tuple[int, bytes, bytes, bytes, list[tuple[bytes, bytes]]]:
    """The arguments of RemoteRequest.fail."""
    causes, seen = [], {id(error)}
    behind = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    while behind is not None and id(behind) not in seen and len(causes) < 64:
        seen.add(id(behind))
        causes.append((_bytes(_name_of(type(behind))), _bytes(str(behind))))
        behind = behind.__cause__ or (None if behind.__suppress_context__ else behind.__context__)
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return errors.Raised.code, _bytes(_name_of(type(error))), _bytes(str(error)), _bytes(trace), causes


def unraisable(what: str, error: BaseException) -> None:
    """An error that no caller waits for."""
    print(f"shmbroker.torch.rpc: {what}: {type(error).__qualname__}: {error}", file=sys.stderr)
