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
        region = _storage.move(storage)
    size = region.size
    attached = pickling.work.attached
    if attached is None or region.session is not pickling.work.session:
        return rebuild_from_ticket, (place.address(), bytes(_ticket(region)), tuple(region.id), size)
    # A part that is only read needs no new mapping when it comes again. The receiver maps it for writing once.
    attached.append(_core.Part(region, write=size >= _storage.LARGE))
    return rebuild_from_part, (len(attached), tuple(region.id))


def _ticket(region: _core.Region) -> Any:
    ticket = region.ticket(write=True, lifetime=_LIFETIME)
    if pickling.work.tickets is not None:
        pickling.work.tickets.append(ticket)  # the connection ends it where nobody comes for it
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


def reduce_tensor(tensor: Any) -> Any:
    attached = pickling.work.attached
    if attached is None or type(tensor) is not torch.Tensor or tensor.layout is not torch.strided \
            or tensor.device.type != "cpu" or tensor.is_quantized or getattr(tensor, "is_nested", False) \
            or (tensor.requires_grad and not tensor.is_leaf):
        return stock_reduce_tensor(tensor)
    storage = _storage.untyped(tensor)
    if not ours(storage):
        return stock_reduce_tensor(tensor)
    _stock.check_serializing_named_tensor(tensor)
    torch.utils.hooks.warn_if_has_hooks(tensor)
    size = storage.nbytes()
    if size >= _ALONE and tensor.numel() * tensor.element_size() * _FRACTION <= size \
            and storage._cdata not in pickling.work.whole and not _storage.shared(storage):
        _note(storage)
        pickling.work.alone.add(storage._cdata)
        copy = tensor.detach().clone(memory_format=torch.contiguous_format)
        return rebuild_tensor, (_storage.untyped(copy), tensor.dtype, 0, tuple(copy.shape), copy.stride(),
                                tensor.requires_grad)
    return rebuild_tensor, (storage, tensor.dtype, tensor.storage_offset(), tuple(tensor.shape), tensor.stride(),
                            tensor.requires_grad)


def rebuild_tensor(storage: Any, dtype: Any, offset: int, shape: tuple[int, ...], stride: tuple[int, ...],
                   requires_grad: bool) -> Any:
    """As torch's, in a third of its time."""
    tensor = torch.empty(0, dtype=dtype).set_(storage, offset, shape, stride)
    if requires_grad:
        tensor.requires_grad = True
    return tensor
