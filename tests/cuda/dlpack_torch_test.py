#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch takes the library's DLPack tensors, on memory of the host (dlpack_twin.cpp): each tensor of a manifest
is its own part of the memory, and keeps it until it goes. Run as: dlpack_torch_test.py TWIN. 77: there is no torch."""

import ctypes as c
import gc
import struct
import sys

try:
    import torch
except ImportError:
    sys.exit(77)

COUNT = 8
MEMORY = struct.pack(f"{3 * COUNT}f", *range(3 * COUNT))  # three tensors of eight floats, one behind the other


def capsule(made, name):
    new = c.pythonapi.PyCapsule_New
    new.restype, new.argtypes = c.py_object, [c.c_void_p, c.c_char_p, c.c_void_p]
    return new(made, name, None)


def made_by(function, number):
    function.restype = c.c_void_p
    return function(MEMORY, c.c_size_t(len(MEMORY)), c.c_uint64(4 * COUNT * number), c.c_int64(COUNT))


def tensor(twin, number):
    return torch.from_dlpack(capsule(made_by(twin.twin_unversioned, number), b"dltensor"))


def main():
    twin = c.CDLL(sys.argv[1])
    all_of_them = [tensor(twin, number) for number in range(3)]
    for number, one in enumerate(all_of_them):
        expected = torch.arange(COUNT * number, COUNT * (number + 1), dtype=torch.float32)
        assert torch.equal(one, expected), f"tensor {number} is {one}"
    assert twin.twin_alive() == 3
    del all_of_them, one
    gc.collect()
    assert twin.twin_alive() == 0, "a tensor that is gone still keeps its memory"

    versioned = made_by(twin.twin_versioned, 2)
    try:
        last = torch.from_dlpack(capsule(versioned, b"dltensor_versioned"))
    except (RuntimeError, ValueError):  # an older PyTorch, for which the other form is there
        return
    assert torch.equal(last, torch.arange(2 * COUNT, 3 * COUNT, dtype=torch.float32)), f"it is {last}"


if __name__ == "__main__":
    main()
