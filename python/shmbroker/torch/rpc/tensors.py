# SPDX-License-Identifier: Apache-2.0
"""How tensors and TorchScript functions travel.

A plain tensor of the CPU is one buffer of exactly its elements, so a small view does not take its storage along. Strides
are kept where the elements lie without gaps. All others (sparse, quantised, other devices, subclasses) go as torch
pickles them. A TorchScript function goes by its name: both workers have compiled it. Its module goes as torch saves it.
"""
from __future__ import annotations

import ctypes
import io
import pickle
import sys
from typing import Any

import torch

from .. import reductions, storage
from . import message

_jit_name: Any = getattr(torch._jit_internal, "_qualified_name")


def _extent(size: tuple[int, ...], stride: tuple[int, ...]) -> int:
    return 1 + sum((length - 1) * step for length, step in zip(size, stride))


def is_plain(tensor: torch.Tensor) -> bool:
    return (tensor.layout is torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized
            and not tensor.is_conj() and not tensor.is_neg())


def memory_of(tensor: torch.Tensor) -> Any:
    """The bytes of a tensor without gaps. The tensor must outlive it."""
    return (ctypes.c_char * (tensor.numel() * tensor.element_size())).from_address(tensor.data_ptr())


def _reduce_tensor(tensor: torch.Tensor) -> Any:
    if tensor.is_conj() or tensor.is_neg():
        tensor = reductions.resolved(tensor)
    if not is_plain(tensor):
        return tensor.__reduce_ex__(5)
    size, grad = tuple(tensor.size()), tensor.requires_grad
    kind = type(tensor)
    if tensor.numel() == 0:
        return _empty, (kind, tensor.dtype, size, tensor.stride(), grad)
    gapless = tensor.is_contiguous()
    if not gapless:
        with torch.no_grad():
            if _extent(size, tensor.stride()) != tensor.numel():
                tensor, gapless = tensor.contiguous(), True
    memory = memory_of(tensor)
    memory._tensor = tensor  # as long as the buffer
    buffer = pickle.PickleBuffer(memory)
    if gapless and not grad and kind is torch.Tensor:
        return _rebuild_plain, (buffer, tensor.dtype, size)
    return _rebuild, (kind, buffer, tensor.dtype, size, None if gapless else tensor.stride(), grad)


def _rebuild_plain(memory: Any, dtype: torch.dtype, size: tuple[int, ...]) -> torch.Tensor:
    flat = torch.frombuffer(memory, dtype=dtype)
    return flat if len(size) == 1 else flat.view(size)


def _typed(kind: type, tensor: torch.Tensor, grad: bool) -> torch.Tensor:
    if kind is not torch.Tensor:
        return torch.nn.Parameter(tensor, requires_grad=grad)
    return tensor.requires_grad_() if grad else tensor


def _rebuild(kind: type, memory: Any, dtype: torch.dtype, size: tuple[int, ...], stride: tuple[int, ...] | None,
             grad: bool) -> torch.Tensor:
    flat = torch.frombuffer(memory, dtype=dtype)
    return _typed(kind, flat.view(size) if stride is None else flat.as_strided(size, stride), grad)


def _empty(kind: type, dtype: torch.dtype, size: tuple[int, ...], stride: tuple[int, ...], grad: bool) -> torch.Tensor:
    return _typed(kind, torch.empty_strided(size, stride, dtype=dtype), grad)


def _reduce_function(function: Any) -> Any:
    return _function, (_jit_name(function), getattr(function, "__name__", ""))


def _function(qualified: str, name: str) -> Any:
    found = torch.jit._state._python_cu.find_function(qualified)
    if found is None:
        raise AttributeError(f"no TorchScript function {qualified!r} ({name}) is compiled at this worker.")
    return found


def _reduce_module(module: Any) -> Any:
    file = io.BytesIO()
    torch.jit.save(module, file)
    return _module, (file.getvalue(),)


def _module(saved: bytes) -> Any:
    return torch.jit.load(io.BytesIO(saved))


def mark(value: Any) -> object:
    """Equal marks at two times: the tensor was not written by torch's operations between them. None: nobody knows."""
    try:
        return value.data_ptr(), value._version, value.requires_grad
    except (RuntimeError, AttributeError):  # a tensor of inference mode counts no versions
        return None


def can_keep(value: Any) -> bool:
    """Whether a value may have a snapshot: one plain tensor in gapless memory that is large."""
    return (type(value) in (torch.Tensor, torch.nn.Parameter) and is_plain(value) and value.is_contiguous()
            and value.numel() * value.element_size() >= message.IN_REGION)


class _Holder:
    __slots__ = ("value",)


def _users(holder: Any, at: int) -> tuple[int, int, int]:
    """How many refer to the tensor, to its storage, and to what stands for that in Python."""
    memory = storage.untyped(holder.value)
    return (sys.getrefcount(holder.value), ctypes.c_uint64.from_address(memory._cdata + at).value,
            sys.getrefcount(memory))


class _Alone:
    """Finds where a storage of this torch counts its users, by a tensor whose users are known."""

    def __init__(self) -> None:
        self.resizable = storage.layout().resizable
        if self.resizable is None:
            raise LookupError("storages of this torch do not tell whose their memory is")
        holder = _Holder()
        holder.value = torch.empty(64)
        for self.at in range(0, 32, 8):
            self.users = _users(holder, self.at)
            other = holder.value.detach()
            both = _users(holder, self.at)
            del other
            if both[1] == self.users[1] + 1 and _users(holder, self.at) == self.users:
                return
        raise LookupError("storages of this torch do not count their users where others do")


_alone: _Alone | None | bool = False  # None: not to be found


def held_only_by(holder: Any) -> bool:
    """No other object here refers to holder.value or to its memory, which torch has allocated or a message has brought.
    Memory of NumPy or of another process may be written without a trace."""
    global _alone
    if _alone is False:
        try:
            _alone = _Alone()
        except LookupError:
            _alone = None
    if not isinstance(_alone, _Alone):
        return False
    memory = storage.untyped(holder.value)
    own = ctypes.c_uint8.from_address(memory._cdata + _alone.resizable).value == 1
    if not own and memory.data_ptr() not in message.arrived:
        return False
    del memory
    return all(now <= then for now, then in zip(_users(holder, _alone.at), _alone.users))


message.register(torch.Tensor, _reduce_tensor)
message.register(torch.nn.Parameter, _reduce_tensor)
message.register(torch.jit.ScriptFunction, _reduce_function)
message.register(torch.jit.ScriptModule, _reduce_module)
message.register(torch.jit.RecursiveScriptModule, _reduce_module)
