# SPDX-License-Identifier: Apache-2.0
"""How tensors are pickled for other processes: torch's reducers, but for storages in the memory of this host.

In a message of our queues a region travels as a part of the message. The queue holds it, so it arrives also if its sender
is killed behind `put`. In any other pickle, such as that of a pipe or of a process' arguments, it is a ticket at the
broker, for the first process that unpickles it.

A small part of a large private tensor is sent alone, as a copy, if nothing else of that tensor is in the message.
Everything that is not in plain memory goes through torch's own reducers: CUDA, meta, and what torch shared before.
"""
from __future__ import annotations

import torch
import torch.utils.hooks
from torch.multiprocessing import reductions as _stock

from .. import _core, errors
from ..mp import pickling, place
from . import storage as _storage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LIFETIME = 86400.0  # seconds in which a receiver that lives fetches what was sent to it
_ALONE = 1 << 20  # bytes of a private storage from which on a part of it may be sent alone
_FRACTION = 8  # that part is no more than one of this many

stock_reduce_storage = _stock.reduce_storage
stock_reduce_tensor = _stock.reduce_tensor

_native = torch._C.StorageBase.is_shared if hasattr(torch._C, "StorageBase") else None


def ours(storage: Any) -> bool:
    """Whether a storage is for us: in plain memory, and not shared by torch itself."""
    if storage.device.type != "cpu" or storage.nbytes() == 0:
        return False
    return _storage.shared(storage) or _native is None or not _native(storage)


def reduce_storage(storage: Any) -> Any:
    if not ours(storage):
        return stock_reduce_storage(storage)
    region = _storage.region_of(storage)
    if region is None:
        if pickling.work.alone:
            _note(storage)
        region = _storage.move(storage, pickling.work.session)
    attached = pickling.work.attached
    if attached is None or region.session is not pickling.work.session:
        ticket = _ticket(region)
        return rebuild_from_ticket, (place.address_of(region.session), bytes(ticket), tuple(region.id), region.size)
    return rebuild_from_part, _part(region, attached)


def _part(region: _core.Region, attached: list[Any]) -> tuple[int, tuple[int, int, int]]:
    # A part that is only read needs no new mapping when it comes again. The receiver maps it for writing once.
    attached.append(_core.Part(region, write=region.size >= _storage.LARGE))
    return len(attached), tuple(region.id)


def _ticket(region: _core.Region) -> Any:
    try:
        ticket = region.ticket(write=True, lifetime=_LIFETIME)
    except errors.SessionLost as error:
        raise errors.SessionLost("this tensor is in memory of a broker that has gone. It stays valid where it is, and cannot "
                                 f"be sent any more: send tensor.clone() ({error})") from error
    if pickling.work.tickets is not None:
        pickling.work.tickets.append((region.session, ticket))  # the connection ends it where nobody comes for it
    return ticket


def _end(session: _core.Session, ticket: Any) -> None:
    try:
        session.revoke(ticket)
    except errors.Error:
        pass  # it was used


def rebuild_from_part(number: int, identity: tuple[int, int, int]) -> Any:
    found = _storage.known(identity)
    if found is not None:
        return found
    message = pickling.work.message
    if message is None:
        raise pickling.pickle.UnpicklingError("this pickle of a tensor is part of a message of a queue, which is not here")

    def attach() -> _core.Region:
        region = message.take(len(message) - number)
        if region.readonly:
            region = region.session.attach(_core.RegionId(identity), write=True)
        return region

    return _storage.attached(identity, attach)


def rebuild_from_ticket(address: Any, ticket: bytes, identity: tuple[int, int, int], size: int) -> Any:
    session = place.visit(address)
    found = _storage.known(identity)
    if found is not None:
        _end(session, ticket)
        return found
    return _storage.over(session.attach(ticket, write=True))


def _note(storage: Any) -> None:
    """If a part of it was sent alone, the message is made again, with the whole storage for both."""
    if storage._cdata in pickling.work.alone:
        pickling.work.whole.add(storage._cdata)


def resolved(tensor: Any) -> Any:
    """The same values, written out: storage and strides alone do not tell that a view is conjugate or negative. Torch
    before 2.0 forgets it in every pickle, and the receiver has other values."""
    with torch.no_grad():
        plain = tensor.resolve_conj().resolve_neg().requires_grad_(tensor.requires_grad)
    return torch.nn.Parameter(plain, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else plain


def reduce_tensor(tensor: Any) -> Any:
    if (tensor.is_conj() or tensor.is_neg()) and (tensor.is_leaf or not tensor.requires_grad):
        tensor = resolved(tensor)
    attached = pickling.work.attached
    grad = tensor.requires_grad
    if attached is None or type(tensor) is not torch.Tensor or tensor.layout is not torch.strided \
            or tensor.device.type != "cpu" or tensor.is_quantized or getattr(tensor, "is_nested", False) \
            or (grad and not tensor.is_leaf):
        return stock_reduce_tensor(tensor)
    storage = _storage.untyped(tensor)
    region = _storage.region_of(storage)
    if region is None and not ours(storage):
        return stock_reduce_tensor(tensor)
    _stock.check_serializing_named_tensor(tensor)
    torch.utils.hooks.warn_if_has_hooks(tensor)
    facts = _names[tensor.dtype], tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), grad
    if region is not None and region.session is pickling.work.session:
        return rebuild_part_tensor, _part(region, attached) + facts
    size = storage.nbytes()
    if size >= _ALONE and tensor.numel() * tensor.element_size() * _FRACTION <= size \
            and storage._cdata not in pickling.work.whole and region is None:
        _note(storage)
        pickling.work.alone.add(storage._cdata)
        copy = tensor.detach().clone(memory_format=torch.contiguous_format)
        return rebuild_tensor, (_storage.untyped(copy), facts[0], 0, tuple(copy.shape), copy.stride(), grad)
    return rebuild_tensor, (storage, *facts)


# A short text is pickled in less time than the name of an object of torch.
_dtypes = {name: kind for name, kind in vars(torch).items() if isinstance(kind, torch.dtype)}
_names = {kind: name for name, kind in _dtypes.items()}


def rebuild_tensor(storage: Any, dtype: str, offset: int, shape: tuple[int, ...], stride: tuple[int, ...],
                   grad: bool) -> Any:
    """As torch's, in a third of its time."""
    tensor = torch.empty(0, dtype=_dtypes[dtype]).set_(storage, offset, shape, stride)
    if grad:
        tensor.requires_grad = True
    return tensor


def rebuild_part_tensor(number: int, identity: tuple[int, int, int], *facts: Any) -> Any:
    return rebuild_tensor(rebuild_from_part(number, identity), *facts)
