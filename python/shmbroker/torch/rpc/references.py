# SPDX-License-Identifier: Apache-2.0
"""RRef: a reference to a value of a worker. The broker counts references, so a user's death frees what it held."""
from __future__ import annotations

import importlib
import threading
from typing import Any, Generic, TypeVar

import torch

from ... import _core, errors
from . import failures, futures, message, plain, state, tensors
from .options import UNSET_RPC_TIMEOUT, nanoseconds

T = TypeVar("T")


class Value:
    """A value that its owner keeps. `plain`: a worker of C++ asked for it, so it is sent as C++ reads it."""

    __slots__ = ("value", "plain", "_snapshot", "_lent", "_lock")

    def __init__(self, value: Any, is_plain: bool = False) -> None:
        self.value, self.plain = value, is_plain
        self._snapshot: message.Snapshot | None = None
        self._lent = True  # the program here has got it since the snapshot
        self._lock = threading.Lock()

    def lend(self) -> Any:
        self._lent = True
        return self.value

    def snapshot(self) -> message.Snapshot | None:
        """For a large tensor that nobody here can have written since: the one of before. None: send a copy."""
        if not tensors.can_keep(self.value):
            return None
        with self._lock:
            seen = tensors.mark(self.value)
            if seen is None or not tensors.held_only_by(self):
                self._snapshot, self._lent = None, True
                return None
            if self._snapshot is None or self._lent or self._snapshot.mark != seen:
                self._snapshot = message.Snapshot()
                self._snapshot.mark = seen
                self._lent = False
            return self._snapshot


def type_name(value: Any) -> str:
    return f"{type(value).__module__}:{type(value).__qualname__}"


class RRef(Generic[T]):
    """`RRef(value)`: of a value of this worker. Those to others come from `remote`, from arguments and results."""

    __slots__ = ("_reference", "_world", "__weakref__")

    def __init__(self, value: T, type_hint: Any = None) -> None:
        world = state.current()
        try:
            reference = world.core.own(Value(value), type_name(value))
        except errors.Error as error:
            raise failures.of_broker(error) from None
        self._reference, self._world = reference, world

    @classmethod
    def adopt(cls, reference: _core.RemoteReference, world: state.World | None = None) -> RRef[Any]:
        self: RRef[Any] = cls.__new__(cls)
        self._reference, self._world = reference, world or state.current()
        return self

    def _open(self, use: str) -> state.World:
        if state.current_or_none() is not self._world:
            raise RuntimeError(f"{self}: its worker was shut down, and the reference has been deleted. Cannot call "
                               f"{use} after deletion.")
        return self._world

    # ---------------------------------------------------------------- the value

    def to_here(self, timeout: float = UNSET_RPC_TIMEOUT) -> T:
        """The value, from wherever it is: a copy, except at the owner."""
        world = self._open("to_here() on it")
        if self.is_owner():
            return self._local(-1)
        limit = nanoseconds(timeout, world.timeout)
        try:
            asked = self._reference.fetch(limit)
            return futures.value_of(asked, limit)  # type: ignore[no-any-return]
        except errors.Error as error:
            raise failures.of_broker(error, limit) from None

    def local_value(self) -> T:
        """At the owner: the value itself."""
        world = self._open("localValue() on it")
        number, creator, fork, fork_creator, owner, owner_name, is_owner, _, _ = self._reference.info()
        if not is_owner:
            raise RuntimeError(
                f"For UserRRef(rref_id={_id(creator, number)}, fork_id={_id(fork_creator, fork)}), can't call "
                f"localValue() on user {world.me}. Call it on owner WorkerInfo(id={owner}, name={owner_name})")
        return self._local(-1)

    def _local(self, wait: int) -> T:
        try:
            value, failure = self._reference.local(wait)
        except errors.Error as error:
            raise failures.of_broker(error) from None
        if failure is not None:
            raise failures.of_failure(failure)
        return value.lend()  # type: ignore[no-any-return]

    # ---------------------------------------------------------------- what is known here

    def owner(self) -> state.WorkerInfo:
        facts = self._reference.info()
        return state.WorkerInfo(facts[5], facts[4])

    def owner_name(self) -> str:
        return self._reference.info()[5]

    def is_owner(self) -> bool:
        return self._reference.info()[6]

    def confirmed_by_owner(self) -> bool:
        return self._reference.info()[7]

    def _get_future(self) -> torch.futures.Future[Any]:
        """Of a reference that `remote` gave: done when the value is made."""
        try:
            return futures.Future(self._reference.created(), None, nothing=True)
        except errors.Error as error:
            raise failures.of_broker(error) from None

    def _get_type(self, timeout: float = UNSET_RPC_TIMEOUT, blocking: bool = True) -> Any:
        """The type of the value at its owner, as this worker has it."""
        world = self._open("_get_type() on it")
        limit = nanoseconds(timeout, world.timeout)
        try:
            asked = self._reference.type(limit)
        except errors.Error as error:
            raise failures.of_broker(error, limit) from None
        return futures.value_of(asked, limit, _read_type) if blocking else futures.Future(asked, limit, read=_read_type)

    def __repr__(self) -> str:
        number, creator, fork, fork_creator, _, _, is_owner, _, _ = self._reference.info()
        if number == 0:
            return "OwnerRRef(local)"
        if is_owner:
            return f"OwnerRRef({_id(creator, number)})"
        return f"UserRRef(RRefId = {_id(creator, number)}, ForkId = {_id(fork_creator, fork)})"

    def __reduce__(self) -> Any:
        raise RuntimeError("Can not pickle rref in python pickler, rref can only be pickled when using RPC")

    # ---------------------------------------------------------------- methods of the value, at its owner

    def rpc_sync(self, timeout: float = UNSET_RPC_TIMEOUT) -> RRefProxy:
        return RRefProxy(self, "rpc_sync", timeout)

    def rpc_async(self, timeout: float = UNSET_RPC_TIMEOUT) -> RRefProxy:
        return RRefProxy(self, "rpc_async", timeout)

    def remote(self, timeout: float = UNSET_RPC_TIMEOUT) -> RRefProxy:
        return RRefProxy(self, "remote", timeout)


class RRefProxy:
    """`rref.rpc_sync().method(...)`: each attribute is a method of the value."""

    def __init__(self, rref: RRef[Any], how: str, timeout: float) -> None:
        self.rref, self.rpc_timeout, self._how = rref, timeout, how

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        rref, how, timeout = self.rref, self._how, self.rpc_timeout

        def method(*args: Any, **kwargs: Any) -> Any:
            from . import calls

            return calls.on_value(how, rref, name, args, kwargs, timeout)

        return method


def _id(creator: int, number: int) -> str:
    return f"GloballyUniqueId(created_on={creator}, local_id={number})"


def _read_type(content: tuple[bytearray, Any, Any]) -> Any:
    name = content[0].decode()
    module, _, qualified = name.partition(":")
    if not qualified:
        return name  # a type of C++
    found: Any = importlib.import_module(module)
    for part in qualified.split("."):
        found = getattr(found, part)
    return found


def _reduce(rref: RRef[Any]) -> Any:
    if state.current_or_none() is not rref._world:
        raise RuntimeError(f"{rref}: Cannot call fork an UserRRef after deletion.")
    return _arrived, (message.refer(rref._reference),)


def _arrived(number: int) -> RRef[Any]:
    return RRef.adopt(message.arrived_reference(number))


def reference_in(value: Any) -> Any:
    """The reference of an RRef; None of other values."""
    return value._reference if isinstance(value, RRef) else None


message.register(RRef, _reduce)
futures.set_reader(lambda content: message.unpack(content) if message.is_message(content[0])
                   else plain.Unpacker(content, RRef.adopt).value())
