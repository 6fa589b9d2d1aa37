# SPDX-License-Identifier: Apache-2.0
"""The exceptions: one class for each status of the broker, derived from the built-in exception that it replaces.

Each has the broker's sentence and the numbers behind it. It survives pickling with all of them.
"""
from __future__ import annotations

import errno as _errno
import queue as _queue

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Error(Exception):
    """A failure that the broker or its library reports.

    status: the name of its kind, such as "not_found"; code: the number of that. sentence: what str() gives.
    limit, used, asked: the numbers of a limit, slot: what is short, such as "bytes", scope and scope_id: whose limit it
    is, such as "group"; zeros and empty strings where no limit is the cause. errno: the error number behind it, or None.
    """

    status = "error"
    code = 0
    sentence = ""
    errno: int | None = None
    slot = ""
    scope = ""
    scope_id = 0
    limit = 0
    used = 0
    asked = 0
    _errno_default: int | None = None

    def __new__(cls, sentence: str = "", **fields: Any) -> Error:
        if issubclass(cls, OSError):
            return OSError.__new__(cls, fields.get("errno") or cls._errno_default, sentence)
        return Exception.__new__(cls, sentence)

    def __init__(self, sentence: str = "", **fields: Any) -> None:
        self.sentence = sentence
        fields["errno"] = fields.get("errno") or self._errno_default
        for name, value in fields.items():
            setattr(self, name, value)

    def __str__(self) -> str:
        return self.sentence

    def __reduce__(self) -> tuple[Any, ...]:
        fields = dict(self.__dict__)
        fields.pop("sentence", None)
        fields["errno"] = self.errno
        return _rebuild, (type(self), self.sentence, fields)


def _rebuild(kind: type[Error], sentence: str, fields: dict[str, Any]) -> Error:
    return kind(sentence, **fields)


class OutOfShared(Error, MemoryError):
    """There is no shared memory left: a limit of the broker, or no room on the host or in the cgroup."""


class Invalid(Error, ValueError):
    """An argument is out of range or malformed."""

    status, code, _errno_default = "invalid", 1, _errno.EINVAL


class TooNew(Error, RuntimeError):
    """The request uses what this broker or this library does not know."""

    status, code = "too_new", 2


class UnknownRequest(Error, NotImplementedError):
    """This broker does not know the request."""

    status, code = "unknown_op", 3


class UnknownFlags(Error, ValueError):
    """A flag of the request is not known."""

    status, code = "unknown_flags", 4


class Unsupported(Error, NotImplementedError):
    """Not available on this kernel, in this mode or in this build."""

    status, code = "unsupported", 5


class NotFound(Error, FileNotFoundError):
    """No such object, or not for this caller: both look the same."""

    status, code, _errno_default = "not_found", 6, _errno.ENOENT


class Exists(Error, FileExistsError):
    """The name is taken."""

    status, code, _errno_default = "exists", 7, _errno.EEXIST


class LimitReached(OutOfShared):
    """A limit of the broker would be passed."""

    status, code, _errno_default = "limit", 8, _errno.ENOSPC


class Denied(Error, PermissionError):
    """The handle does not carry the right."""

    status, code, _errno_default = "denied", 9, _errno.EACCES


class NotReady(Error, BlockingIOError):
    """The writer has not mapped the region yet."""

    status, code, _errno_default = "not_ready", 10, _errno.EAGAIN


class WriteClosed(Error, PermissionError):
    """Writing to the region is closed for ever."""

    status, code, _errno_default = "write_closed", 11, _errno.EACCES


class StillMapped(Error, PermissionError):
    """Another mapping for writing exists, often a forked child's."""

    status, code, _errno_default = "still_mapped", 12, _errno.EBUSY


class Stale(Error, LookupError):
    """The region under this id has another generation."""

    status, code = "stale", 13


class GroupEnded(Error, RuntimeError):
    """The group has ended."""

    status, code = "group_ended", 14


class Busy(Error, RuntimeError):
    """In use: the request would take something from others."""

    status, code, _errno_default = "busy", 15, _errno.EBUSY


class VersionMismatch(Error, RuntimeError):
    """Broker and library have no protocol version in common."""

    status, code = "version", 16


class NoMemory(OutOfShared):
    """The host or the cgroup has no room for it."""

    status, code, _errno_default = "no_memory", 17, _errno.ENOMEM


class NoDescriptors(Error, OSError):
    """A table of descriptors is full."""

    status, code, _errno_default = "no_descriptors", 18, _errno.EMFILE


class SystemFailure(Error, OSError):
    """A system call failed; errno says how."""

    status, code, _errno_default = "system", 19, _errno.EIO


class Timeout(Error, TimeoutError):
    """The deadline passed."""

    status, code, _errno_default = "deadline", 20, _errno.ETIMEDOUT


class NoBroker(Error, ConnectionRefusedError):
    """No broker answers and none could be started."""

    status, code, _errno_default = "no_broker", 21, _errno.ECONNREFUSED


class SessionLost(Error, ConnectionResetError):
    """The connection to the broker is gone."""

    status, code, _errno_default = "session_lost", 22, _errno.ECONNRESET


class ProtocolBroken(Error, ConnectionError):
    """The peer broke the protocol."""

    status, code, _errno_default = "protocol", 23, _errno.EPROTO


class LocalOnly(Error, NotImplementedError):
    """Needs a broker; this session is local."""

    status, code = "local_only", 24


class Closed(Error, ValueError):
    """The queue or the handle was closed."""

    status, code = "closed", 25


class Forked(Error, RuntimeError):
    """The forked child could not take the handle over."""

    status, code = "forked", 26


class Full(Error, _queue.Full):
    """The queue has no room, or the pool no free slot."""

    status, code = "full", 27


class Empty(Error, _queue.Empty):
    """The queue has no message."""

    status, code = "empty", 28


class PeerGone(Error, ConnectionError):
    """The other end of the queue has died or left. errno is EOWNERDEAD if it died."""

    status, code, _errno_default = "peer_gone", 29, _errno.EPIPE


class Broken(Error, RuntimeError):
    """A participant has written over the shared words of the pool."""

    status, code = "broken", 30


class Poisoned(Error, RuntimeError):
    """A process died while it held the lock of the heap."""

    status, code = "poisoned", 31


class WorldTaken(Error, FileExistsError):
    """The address belongs to another world of this user, which is running."""

    status, code, _errno_default = "world_taken", 32, _errno.EEXIST


class NoWorld(Error, RuntimeError):
    """The session is not a worker of that world."""

    status, code = "no_world", 33


class WorkerGone(Error, ConnectionError):
    """The worker has left or died."""

    status, code, _errno_default = "worker_gone", 34, _errno.EPIPE


class OwnerGone(Error, ConnectionError):
    """The owner of the reference has left or died."""

    status, code, _errno_default = "owner_gone", 35, _errno.EPIPE


class Raised(Error, RuntimeError):
    """The function that was called on another worker failed."""

    status, code = "raised", 36


class NoFunction(Error, LookupError):
    """The worker has no function or class of that name."""

    status, code = "no_function", 37


class Leaking(Error, RuntimeError):
    """References are left that shutdown would leak."""

    status, code = "leaking", 38


class Interrupted(Error, InterruptedError):
    """A signal ended the wait, and nothing was done. Calls of this package go on after the signal's handler."""

    status, code, _errno_default = "interrupted", 39, _errno.EINTR


class GpuError(Error, RuntimeError):
    """A failure that has to do with GPU memory."""


class NoDriver(GpuError):
    """There is no NVIDIA driver on this host, or not in this container."""

    status, code = "no_driver", 40


class StubDriver(GpuError):
    """The driver library found is the toolkit's stub."""

    status, code = "stub_driver", 41


class DriverTooOld(GpuError):
    """The driver is older than 12.0, or lacks a function that is needed."""

    status, code = "driver_too_old", 42


class NoDevice(GpuError):
    """The driver sees no GPU in this process."""

    status, code = "no_device", 43


class DeviceNotFound(GpuError):
    """No GPU of that UUID is in this host's list."""

    status, code = "device_not_found", 44


class DeviceNotVisible(GpuError):
    """The GPU that owns the memory is hidden from this process."""

    status, code = "device_not_visible", 45


class DifferentMigInstance(GpuError):
    """The memory belongs to another MIG instance."""

    status, code = "different_mig_instance", 46


class NotSupported(GpuError):
    """The GPU or its driver cannot do this."""

    status, code = "not_supported", 47


class BadDescriptor(GpuError):
    """The descriptor is no export of GPU memory, or not in the way that is needed."""

    status, code = "bad_fd", 48


class NotExportable(GpuError):
    """The memory was allocated so that it cannot be shared."""

    status, code = "not_exportable", 49


class TooSmall(GpuError):
    """The memory is smaller than its publisher claims."""

    status, code = "too_small", 50


class OutOfGpuMemory(GpuError, MemoryError):
    """The GPU has no memory left for it."""

    status, code = "out_of_memory", 51


class NotPermitted(GpuError):
    """The driver does not permit it here."""

    status, code = "not_permitted", 52


class ContextPoisoned(GpuError):
    """An earlier error has ended the GPU context of this process."""

    status, code = "context_poisoned", 53


class DeviceLost(GpuError):
    """The GPU is lost or was reset."""

    status, code = "device_lost", 54


class MpsFailed(GpuError):
    """The MPS server refuses, or has failed."""

    status, code = "mps", 55


class AlreadyRegistered(GpuError):
    """The memory is registered with the GPU already."""

    status, code = "already_registered", 56


class ForkedChild(GpuError):
    """A child that forked after the GPU was initialised cannot use GPU memory."""

    status, code = "forked_child", 57


class ProducerDead(GpuError):
    """The process that made it has died."""

    status, code = "producer_dead", 58


class GenerationMismatch(GpuError):
    """The GPU region under this id has another generation."""

    status, code = "generation_mismatch", 59


class Detached(GpuError):
    """The region is over; it lives only through those that map it."""

    status, code = "detached", 60


class DeviceNotPinned(GpuError):
    """No process keeps the GPU initialised for this region."""

    status, code = "device_not_pinned", 61


class RegionPoisoned(GpuError):
    """A writer died while it could write: the region gets no new writer."""

    status, code = "region_poisoned", 62


class RegionInvalid(GpuError):
    """The region could not be imported, or never became whole."""

    status, code = "region_invalid", 63


class OtherKind(GpuError):
    """Host memory where GPU memory is asked for, or the reverse."""

    status, code = "other_kind", 64


class DriverFailed(GpuError):
    """The driver failed with an error that has no code of ours."""

    status, code = "driver_failed", 65


class Pinned(Error, RuntimeError):
    """The region is registered with a GPU, or its mapping has other handles."""

    status, code = "pinned", 66


_SLOTS = ("", "bytes", "regions", "leases", "sessions", "groups", "tickets", "names", "watches", "descriptors", "keep",
          "message", "memory", "participants", "queues", "lanes", "lane_bytes", "segments", "slots", "worlds", "references",
          "gpu_bytes", "gpu_descriptors", "lifetime", "timelines", "creates")
_SCOPES = ("", "host", "uid", "group", "session", "process", "cgroup", "pool", "watched")
_BY_CODE: dict[int, type[Error]] = {
    kind.code: kind for kind in list(globals().values())
    if isinstance(kind, type) and issubclass(kind, Error) and kind.code}


def make(code: int, name: str, sentence: str, number: int, slot: int, scope: int, scope_id: int, limit: int, used: int,
         asked: int) -> Error:
    """The exception for a status. A status that is newer than this file gives an Error."""
    kind = _BY_CODE.get(code, Error)
    error = kind(sentence, errno=number or None)
    if kind is Error:
        error.status, error.code = name, code
    if slot or scope or asked:
        error.slot = _SLOTS[slot] if slot < len(_SLOTS) else str(slot)
        error.scope = _SCOPES[scope] if scope < len(_SCOPES) else str(scope)
        error.scope_id, error.limit, error.used, error.asked = scope_id, limit, used, asked
    return error
