# SPDX-License-Identifier: Apache-2.0
"""The extension: one class for each handle of the C interface (shmbroker.h, shmbroker_pool.h).

Rules of every call:

- `timeout` is in seconds. Left out: 5.0. None: no limit, only where the call waits for other processes. 0: do not wait,
  only where the call can answer at once. A call to the broker refuses None and 0 (`Invalid`, a ValueError).
- A wait releases the GIL. A signal ends it: the handler runs, then the wait goes on with the time that is left, or the
  exception of the handler is raised (KeyboardInterrupt).
- A failure raises a class of `shmbroker.errors`, with the broker's sentence and its fields.
- `keep` is None (the default of the group), a number of seconds, or the string "released" (until it is released). Only a
  name holds an object beyond its group, so an object without a name takes none.
- A closed handle raises `Closed` (a ValueError), everywhere but in `close()`, which may be called again.
- A buffer keeps its object alive. `close()` of an object with live buffers raises BufferError.
"""
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, ClassVar, Literal, SupportsIndex, TypeAlias, final

from .ticket import Ticket

Buffer: TypeAlias = Any  # bytes, bytearray, memoryview, an array, a Region, a Slot, a Message: what memoryview() takes
Timeout: TypeAlias = float | None
Keep: TypeAlias = float | Literal["released"] | None

version: str  # of the library that is loaded

# ---------------------------------------------------------------------------------------------------- plain values
# Struct sequences: tuples whose elements have names.

class RegionId(tuple[int, int, int]):
    """Identity of a region, never used twice. Hashable; may be pickled and sent to other processes."""
    epoch: int
    id: int
    generation: int
    def __new__(cls, fields: tuple[int, int, int]) -> RegionId: ...

class SessionInfo(tuple[Any, ...]):
    mode: Literal["local", "system", "private"]
    started_by_us: bool
    uid: int
    broker_uid: int
    lost: bool
    protocol: int
    epoch: int
    session: int
    group: int
    socket: str
    broker: str
    how: str

class RegionInfo(tuple[Any, ...]):
    id: RegionId
    length: int
    bytes: int
    group: int
    populated: int
    rights: int
    state: Literal["none", "created", "ready", "write_closed", "published", "freeing", "cached"]
    pages: Literal["unknown", "small", "huge", "mixed", "unpopulated"]
    flags: int
    recycled: bool
    descriptor_kept: bool

class RegionStat(tuple[Any, ...]):
    id: RegionId
    length: int
    bytes: int
    touched: int
    group: int
    owner_uid: int
    state: str
    pages: str
    flags: int
    holders: int
    writers: int
    tickets: int
    creator_pid: int
    created: float  # seconds of CLOCK_BOOTTIME
    keep: Keep
    freed_at: float  # seconds of CLOCK_BOOTTIME; 0.0: no keep is running
    group_name: str
    name: str

class Group(tuple[Any, ...]):
    id: int
    token: str  # 32 hex digits; admits any session that shows it
    name: str | None
    # "NAME:TOKEN", the value of SHMBROKER_GROUP that makes a child process a member: group_variable(name, token)

class GroupEnding(tuple[Any, ...]):
    members: int
    regions: int
    bytes_freed: int

class Watch(tuple[Any, ...]):
    id: int
    state: int  # EVENT_* bits that hold already; such an event is not sent again

class Event(tuple[Any, ...]):
    kind: Literal["region_ready", "region_published", "region_gone", "name_appeared", "group_ended", "reclaim", "gap",
                  "broker_away", "gpu_state"]
    how: int
    sequence: int
    watch: int
    region: RegionId
    group: int
    bytes: int
    lost: int
    uid: int
    pid: int
    regions: int
    code: int
    text: str

class SizeClassInfo(tuple[Any, ...]):
    slot_size: int
    slots: int
    slots_used: int

class PoolInfo(tuple[Any, ...]):
    id: int
    group: int
    bytes: int
    participant: int
    participants: int
    slots: int
    slots_limit: int
    slots_used: int
    slots_own: int
    slots_high: int
    segments: int
    queues: int
    queues_limit: int
    lanes: int
    lanes_limit: int
    read_only: bool
    broken: bool
    classes: tuple[SizeClassInfo, ...]

class QueueInfo(tuple[Any, ...]):
    kind: Literal["spsc", "mpmc", "broadcast"]
    role: Literal["reader", "writer", "both"]
    flags: int
    cells: int
    inline_bytes: int
    readers: int
    writers: int
    closed: bool
    lanes: int
    deaths: int
    depth: int
    lost: int
    sent: int
    received: int
    expired: int
    in_regions: int
    pool: int
    name: str

class GpuTensor(tuple[Any, ...]):
    """One tensor in a GPU region. A set lists those of all its regions, with offsets in the whole."""
    name: str
    dtype: str  # float16, bfloat16, int64, bool, complex64; float32x4: of four lanes; dlpack9_8: DLPack's type 9 of 8 bits
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None  # in elements; None: rows follow each other
    offset: int  # bytes from the region's begin

# ------------------------------------------------------------------------------------------------------- functions

def connect(socket: str | None = None, *, group: str | None = None, program: str | None = None,
            local: Literal["never", "ok", "only"] = "never", start: bool = True, admin: bool = False,
            no_group: bool = False, timeout: float = 5.0) -> Session:
    """Opens a session. `group` is "NAME:TOKEN"; None: SHMBROKER_GROUP, unless no_group. `shmbroker.connect` joins the
    user's group `shell-UID` where neither names a group."""

def find(buffer: Buffer) -> Slot | Region | None:
    """The open Slot or Region of this process in whose memory the buffer lies as a whole."""

def group_variable(name: str, token: str) -> str: ...
def status_name(status: int) -> str: ...
def status_text(status: int) -> str: ...
def sharing_strategies() -> tuple[str, ...]: ...
def sharing_strategy() -> str: ...
def set_sharing_strategy(name: str) -> None: ...

# -------------------------------------------------------------------------------------------------------- sessions

@final
class Session:
    """A connection to the broker. Any threads may use it at once. A forked child uses it as its own."""
    closed: bool
    names_with_holders: bool  # the default of name_with_holders where no keep is given; a join sets it to False
    def create(self, size: SupportsIndex, *, name: str | None = None, group: int = 0, keep: Keep = None,
               many_writers: bool = False, replace: bool = False, uninitialised: bool = False,
               name_at_publish: bool = False, recycle: bool = True, populate: bool = True, huge: bool | None = None,
               numa: int | None = None, timeout: float = 5.0, name_with_holders: bool | None = None,
               hugetlb: bool = False) -> Region:
        """Makes a region and maps it for writing. huge: None: where it can be had; False: 4 KiB pages; True: refused
        (`Unsupported`) unless all of it is in huge pages. numa: all its memory comes from this node,
        at once, also above 1 GiB; not with populate=False.
        hugetlb: only 2 MiB pages that the administrator has reserved (vm.nr_hugepages).
        name_with_holders: the region goes with its last holder, name and all, also in a group that lives on; not with
        keep. None: in the user's group, where no keep is given."""
    def create_many(self, sizes: list[int] | tuple[int, ...], *, group: int = 0, many_writers: bool = False,
                    uninitialised: bool = False, recycle: bool = True, populate: bool = True, huge: bool | None = None,
                    timeout: float = 5.0, return_errors: bool = False, hugetlb: bool = False,
                    numa: int | None = None) -> list[Region]:
        """All or none; with return_errors each failed one is an exception in the list."""
    def attach(self, where: str | RegionId | Ticket | bytes, *, write: bool = False, share: bool = False,
               release: bool = False, wait: Timeout = 0, populate: bool = True, timeout: float = 5.0) -> Region:
        """By address ("NAME", "GROUP/NAME", "UID:GROUP/NAME"), identity or ticket. share: the handle may make tickets.
        wait: for a name that is not there yet."""
    def open(self, name: str, *, write: bool = False, share: bool = False, release: bool = False, wait: Timeout = 0,
             populate: bool = True, timeout: float = 5.0) -> Region: ...
    def attach_many(self, wheres: list[str | RegionId | Ticket | bytes] | tuple[str | RegionId | Ticket | bytes, ...],
                    *, write: bool = False, share: bool = False, populate: bool = True, timeout: float = 5.0,
                    return_errors: bool = False) -> list[Region]: ...
    def gpu_import(self, where: str | RegionId | Ticket | bytes, *, wait: Timeout = 0,
                   timeout: float = 5.0) -> GpuRegion:
        """GPU memory that a process has published: a region, or a set of them as one. Mapped read-only for the device that
        is current in this thread, else for its own. Raises a GpuError where the driver is missing, too old or refuses."""
    def adopt(self, fd: int, *, write: bool = False) -> Region:
        """Local sessions: a region of a memfd that came by other means. The descriptor is duplicated."""
    def stat(self, where: str | RegionId, *, timeout: float = 5.0) -> RegionStat: ...
    def unname(self, address: str, *, timeout: float = 5.0) -> None: ...
    def revoke(self, ticket: Ticket | bytes, *, timeout: float = 5.0) -> None: ...

    def create_group(self, name: str | None = None, *, limit_bytes: int = 0, limit_regions: int = 0, keep: Keep = None,
                     adopt_existing: bool = False, timeout: float = 5.0) -> Group: ...
    def join(self, group: str | Group, *, timeout: float = 5.0) -> int:
        """By name ("GROUP", "@id", "UID:GROUP"), by Group, or by token (32 hex digits after a colon: "NAME:TOKEN")."""
    def leave(self, group: int = 0, *, timeout: float = 5.0) -> None: ...
    def end_group(self, group: int | str, *, release_kept: bool = False, kept_only: bool = False,
                  timeout: float = 5.0) -> GroupEnding: ...
    def wait_group(self, group: int = 0, *, timeout: Timeout = 5.0) -> None: ...

    def watch(self, *, region: RegionId | None = None, name: str | None = None, group: int | str | None = None,
              reclaim: int | None = None, events: int = 0, timeout: float = 5.0) -> Watch:
        """One of the four. reclaim: a group's id, or 0 for all of the own user."""
    def unwatch(self, watch: int | Watch, *, timeout: float = 5.0) -> None: ...
    def next_event(self, *, timeout: Timeout = 5.0) -> Event: ...
    async def next_event_async(self, *, timeout: Timeout = None) -> Event: ...
    def fileno(self) -> int:
        """For poll, epoll, asyncio: readable when next_event may have something. Never read or close it."""

    def create_pool(self, classes: list[tuple[int, int] | tuple[int, int, int]] | tuple[Any, ...] = (), *,
                    name: str | None = None, group: int = 0, keep: Keep = None, lanes: int = 0, queues: int = 0,
                    lane_bytes: int = 0, replace: bool = False, populate: bool = True, huge: bool = True,
                    timeout: float = 5.0, name_with_holders: bool | None = None) -> Pool:
        """classes: (slot_size, slots) or (slot_size, slots, slots_limit) each."""
    def open_pool(self, where: str | int, *, read_only: bool = False, wait: Timeout = 0, timeout: float = 5.0) -> Pool:
        """By address or by id."""
    def queue(self, address: str, *, kind: QueueKind = "as_is", role: QueueRole = "both", cells: int = 0,
              inline_bytes: int = 0, drop_oldest: bool = False, expiring: bool = False, at_least_once: bool = False,
              create_only: bool = False, open_only: bool = False, spin: float | None = None, wait: Timeout = 0,
              timeout: float = 5.0) -> Queue:
        """A queue in a pool of its own, without slots."""

    def info(self) -> SessionInfo: ...
    def ping(self, *, timeout: float = 5.0) -> None: ...
    def close(self) -> None:
        """Ends the session once no thread is in a call on it. Regions and pools that are open go on."""
    def __enter__(self) -> Session: ...
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None: ...

@final
class Region:
    """A counted reference to a region, and its mapping. A buffer: memoryview(region), numpy.asarray(region)."""
    size: int
    id: RegionId
    name: str | None  # as it was created or attached by; None by identity or ticket
    readonly: bool
    closed: bool
    address: int  # of the first byte in this process; 0: not mapped
    session: Session
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int) -> memoryview: ...
    def info(self) -> RegionInfo: ...
    def stat(self, *, timeout: float = 5.0) -> RegionStat: ...
    def publish(self, *, timeout: float = 5.0) -> None:
        """No process can write from here on. BufferError with live buffers, because the mapping may move."""
    def ticket(self, *, write: bool = False, share: bool = False, uses: int = 1, lifetime: float = 600.0,
               timeout: float = 5.0) -> Ticket:
        """Lives on after this process."""
    def lend(self, *, write: bool = False, share: bool = False, uses: int = 1, lifetime: float = 600.0,
             timeout: float = 5.0) -> Ticket:
        """Ends with this session at the latest."""
    def populate(self, offset: int = 0, length: int | None = None) -> None: ...
    def descriptor(self) -> int:
        """A new descriptor, close-on-exec, which the caller closes."""
    def close(self, *, unname: bool = False, recycle: bool = True) -> None: ...
    def __enter__(self) -> Region: ...
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None: ...

@final
class GpuRegion:
    """GPU memory that a process has published, mapped for a device of this one. No buffer: Python cannot read it. The end
    of the object asks the device nothing, and the memory goes with the next gpu_import or the end of the session."""
    tensors: tuple[GpuTensor, ...]  # as its publisher listed them
    pointer: int  # address on the device; a tensor lies at pointer + offset
    size: int
    id: RegionId
    device: int  # ordinal in this process of the device that has the memory; -1: hidden here
    closed: bool
    def tensor(self, name: str, /) -> GpuTensor: ...
    def close(self, *, timeout: float = 5.0) -> None:
        """Waits for the device and unmaps it. Timeout: the device still works, and the memory goes later."""
    def __enter__(self) -> GpuRegion: ...
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None: ...

# ---------------------------------------------------------------------------------------------- pools and queues

QueueKind: TypeAlias = Literal["as_is", "spsc", "mpmc", "broadcast"]
QueueRole: TypeAlias = Literal["both", "reader", "writer"]

@final
class Pool:
    """This process in a pool. Slots, queues and messages keep it joined after close()."""
    id: int
    closed: bool
    def info(self) -> PoolInfo: ...
    def acquire(self, nbytes: SupportsIndex, *, timeout: Timeout = 5.0) -> Slot: ...
    def queue(self, name: str, *, kind: QueueKind = "as_is", role: QueueRole = "both", cells: int = 0,
              inline_bytes: int = 0, drop_oldest: bool = False, expiring: bool = False, at_least_once: bool = False,
              create_only: bool = False, open_only: bool = False, spin: float | None = None, wait: Timeout = 0,
              timeout: float = 5.0) -> Queue: ...
    def find(self, buffer: Buffer) -> Slot | None:
        """The open Slot of this pool in whose memory the buffer lies as a whole."""
    def remove(self) -> None:
        """Its name is free at once. The pool goes with its last participant."""
    def close(self) -> None: ...
    def __enter__(self) -> Pool: ...
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None: ...

@final
class Slot:
    """A slot that this process holds. A buffer of `nbytes` bytes, writable until it is sent."""
    nbytes: int  # bytes in use: what was asked for
    capacity: int
    index: int
    pool: int  # id
    readonly: bool
    closed: bool
    address: int
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int) -> memoryview: ...
    def release(self) -> None:
        """Gives it back. BufferError with live buffers. The end of the object does it, too."""
    def __enter__(self) -> Slot: ...
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None: ...

@final
class Part:
    """A part of a message to send: all or some of a buffer, slot or region. write: the receiver maps the region so; or it
    may write to the slot, because the sender uses it no more."""
    def __init__(self, source: Buffer | Slot | Region, offset: int = 0, length: int | None = None, *,
                 write: bool = False) -> None: ...

Parts: TypeAlias = Buffer | Slot | Region | Part | list[Buffer | Slot | Region | Part] | tuple[Any, ...]

@final
class Queue:
    """Own ends of a queue. The threads of a process share one handle."""
    name: str
    kind: Literal["spsc", "mpmc", "broadcast"]
    role: QueueRole
    closed: bool
    pool: Pool | None
    def send(self, parts: Parts, timeout: Timeout = 5.0, *, type: int = 0, lifetime: float | None = None,
             move: bool = False) -> None:
        """One part, or a list or tuple of parts, which arrives whole or not at all. A Slot or Region travels without a
        copy, other buffers are copied. A sent Slot is read-only from then on. move: the sender's Slot objects are
        released with the send (BufferError, and nothing is sent, where they have live buffers), so that the receiver
        may write to them: `take(i, writable=True)`. Raises Full (timeout=0), Timeout, Closed, PeerGone."""
    def send_many(self, messages: list[Parts] | tuple[Parts, ...], timeout: Timeout = 5.0, *, type: int = 0,
                  wait_for_all: bool = True) -> int:
        """In order. Returns how many were sent where at least one was; else raises as send does. wait_for_all=False waits
        for the first one alone, and sends of the others as many as there is room for."""
    def receive(self, timeout: Timeout = 5.0) -> Message:
        """The next message, with references of its own: valid as long as the object. Raises Empty (timeout=0), Timeout,
        Closed, PeerGone."""
    def receive_many(self, capacity: int, timeout: Timeout = 5.0) -> list[Message]:
        """Waits for one and takes all that are there, at most `capacity`."""
    def receive_bytes(self, timeout: Timeout = 5.0) -> bytes:
        """The next message as one bytes object: all its parts, copied. The fastest way for small ones."""
    def receive_small(self, timeout: Timeout = 5.0) -> bytes | Message:
        """The next message: as bytes where it is one part of at most 8 KiB and has no type. It is done then. Any other one,
        and each of an at_least_once queue, is a Message."""
    def get_nowait(self) -> Message: ...
    async def receive_async(self, *, timeout: Timeout = None) -> Message: ...
    def __aiter__(self) -> Any:
        """Messages until the queue is closed, or its last writer has left, and nothing is left."""
    def fileno(self) -> int:
        """For poll, epoll, asyncio: readable when a receive may have something to tell. Then receive with timeout=0
        until it raises Empty, which arms it again. Also once after the first call. Never read or close it."""
    def drain(self, timeout: Timeout = 5.0) -> None: ...
    def shutdown(self, *, remove: bool = False) -> None:
        """Ends it for everybody: sends raise Closed, receives too after the last message."""
    def info(self) -> QueueInfo: ...
    def close(self, *, everybody: bool = False, remove: bool = False) -> None:
        """Closes own ends once no thread is in a call on it. Messages that were sent stay for their readers."""
    def __enter__(self) -> Queue: ...
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None: ...

@final
class MessagePart:
    """A part as received: a read-only buffer that keeps the message."""
    kind: Literal["bytes", "slot", "region"]
    nbytes: int
    offset: int
    region: RegionId | None
    same_as: int
    status: int  # 0; else why it could not be mapped: then it is no buffer
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int) -> memoryview: ...

@final
class Message:
    """A received message. A read-only buffer of its first part. Slots and regions go back at done(), or with it."""
    type: int
    closed: bool
    parts: tuple[MessagePart, ...]
    def __len__(self) -> int:
        """Parts."""
    def __buffer__(self, flags: int) -> memoryview: ...
    def tobytes(self) -> bytes:
        """All parts, one after another, copied."""
    def take(self, number: int = 0, *, writable: bool = False) -> Slot | Region:
        """Moves a slot or region out of the message, which outlives it. A slot's buffer is the part's bytes. writable:
        for a slot that its sender has handed over (send with move=True, or Part with write=True), as nobody else uses it;
        Denied for any other one. After that a message of an at_least_once queue is done, never given back with what was written. A region taken out has
        the rights that its sender gave. Raises Invalid for bytes, and the part's error where it has a status."""
    def done(self) -> None:
        """Through with it. BufferError with live buffers. The end of the object does it, too."""
    def give_back(self) -> None:
        """at_least_once: not done, another reader shall have it."""
    def __enter__(self) -> Message: ...
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None: ...

# Bits of Watch.state and of `events`.
EVENT_READY: int
EVENT_PUBLISHED: int
EVENT_GONE: int
EVENT_APPEARED: int
EVENT_ENDED: int
EVENT_RECLAIM: int
EVENT_GPU: int

# Rights of a ticket.
RIGHT_READ: int
RIGHT_WRITE: int
RIGHT_SHARE: int

# ----------------------------------------------------------------------------------------------------------- ranks
# For processes.py, rank_main.py and ranks.py alone: positions, nanoseconds as in shmbroker_spawn.h, bytes.

@final
class Processes:
    """The ranks of one spawn, as their parent sees them."""
    def join(self, wait: int, voluntary: int, /) -> int: ...  # 0: they run, 1: success, 2: a failure
    def end(self, at_once: bool, /) -> None: ...
    def pids(self) -> list[int]: ...
    def result(self, local_rank: int, /) -> bytes: ...
    def failures(self) -> list[tuple[Any, ...]]: ...
    def fileno(self) -> int: ...
    def session(self) -> Session: ...

def start_ranks(*options: Any) -> Processes: ...
def environment() -> list[bytes]: ...
def rank_enter(preload: Any, /) -> tuple[int, int, int, int, int, str, bytes] | None: ...
def rank_finish(result: bytes, /) -> None: ...
def rank_throwing(type: bytes, /) -> None: ...
def rank_raise(type: bytes, text: bytes, trace: bytes, causes: list[tuple[bytes, bytes]], /) -> None: ...
def rank_lend(region: Region, rights: int, uses: int, timeout: int, /) -> bytes: ...
def rank_barrier(name: str, wait: int, /) -> None: ...
def rank_broadcast(name: str, root: int, value: bytes | None, wait: int, /) -> bytes: ...
def rank_all_gather(name: str, count: int, value: bytes, wait: int, /) -> list[bytes]: ...
def rank_set(key: str, value: bytes, /) -> None: ...
def rank_get(key: str, /) -> bytes: ...
def rank_wait(key: str, wait: int, /) -> bytes: ...
def rank_compare_exchange(key: str, expected: bytes, desired: bytes, /) -> bytes: ...
def rank_delete(key: str, /) -> bool: ...
def rank_add(key: str, amount: int, /) -> int: ...

# ------------------------------------------------------------------------------------------------------- remote
# For shmbroker/torch/rpc alone: positions, nanoseconds as in shmbroker_remote.h, and what has arrived as content.

_Content = tuple[bytearray, tuple[Region, ...], tuple["RemoteReference", ...]]
_Failure = tuple[int, int, str, str, str, str, list[tuple[str, str]]]  # status, rank, worker, type, text, trace, causes

@final
class RemoteWorld:
    """This process as a worker of a world."""
    rank: int
    size: int
    def call(self, to: int, function: str, data: Any, regions: Sequence[Region],
             references: Sequence[RemoteReference], flags: int, timeout: int, /) -> RemoteFuture: ...
    def create(self, to: int, function: str, data: Any, regions: Sequence[Region],
               references: Sequence[RemoteReference], flags: int, timeout: int, /) -> RemoteReference: ...
    def own(self, value: Any, type: str, /) -> RemoteReference: ...
    def shutdown(self, local: bool, keep_references: bool, report_leaks: bool, timeout: int, /) -> int: ...
    def close(self) -> None: ...
    def worker(self, rank: int, name: str | None, /) -> tuple[int, str, int, int]: ...  # rank, name, state, life
    def counters(self) -> tuple[int, int, int, int, int, int]: ...
    def set_timeout(self, timeout: int, /) -> None: ...
    def region(self, length: int, /) -> Region: ...
    def session(self) -> Session: ...

@final
class RemoteFuture:
    """The outcome of a call of another worker."""
    def wait(self, wait: int, /) -> tuple[_Content | None, _Failure | None]: ...  # once
    def settle(self, wait: int, /) -> None: ...
    def pending(self) -> bool: ...
    def then(self, call: Callable[[], object], /) -> None: ...

@final
class RemoteRequest:
    """A request of another worker."""
    kind: int
    origin: int
    function: str
    object: Any
    def take(self) -> _Content: ...
    def answer(self, data: Any, regions: Sequence[Region], references: Sequence[RemoteReference], /) -> None: ...
    def answer_object(self, value: Any, type: str, /) -> None: ...
    def fail(self, status: int, type: bytes, text: bytes, trace: bytes, causes: Sequence[tuple[bytes, bytes]],
             /) -> None: ...

@final
class RemoteReference:
    """A reference to a value of a worker."""
    # number, creator, fork, fork's creator, owner, owner's name, whether it is here, confirmed, state
    def info(self) -> tuple[int, int, int, int, int, str, bool, bool, int]: ...
    def fetch(self, timeout: int, /) -> RemoteFuture | _Failure: ...
    def type(self, timeout: int, /) -> RemoteFuture | _Failure: ...
    def created(self) -> RemoteFuture: ...
    def local(self, wait: int, /) -> tuple[Any, _Failure | None]: ...

@final
class PrivateCopy:
    """A region as memory of this process alone; a buffer."""
    def __buffer__(self, flags: int) -> memoryview: ...

def join_world(handler: Callable[[RemoteRequest], object], name: str, address: str | None, rank: int, world_size: int,
               threads: int, socket: str | None, timeout: int, call_timeout: int, /) -> RemoteWorld: ...
def private_copy(region: Region, /) -> PrivateCopy: ...

REQUEST_CALL: int
REQUEST_CREATE: int
REQUEST_FETCH: int
CALL_ON_OBJECT: int
