#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which memory of the common frameworks can be shared by descriptor, and how: facts for adopting foreign pointers.

One case a process; the answer is lines for asking.py. A missing framework is skipped.
usage: torch_facts.py CASE
"""

import ctypes
import os
import subprocess
import sys

ALLOWED_HANDLE_TYPES, LEGACY_IPC, POSIX_FD = 14, 10, 1
STEP = 2 << 20  # the least granularity of device memory


class Driver:
    """The few driver calls needed, by name; every entry takes explicit ctypes."""

    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")
        self.must("cuInit", ctypes.c_uint(0))

    def code(self, name, *arguments):
        return getattr(self.library, name)(*arguments)

    def must(self, name, *arguments):
        code = self.code(name, *arguments)
        if code != 0:
            raise RuntimeError(f"{name} gave {code}")

    def pointer_attribute(self, which, pointer):
        value = ctypes.c_uint64(0)
        code = self.code("cuPointerGetAttribute", ctypes.byref(value), ctypes.c_int(which), ctypes.c_uint64(pointer))
        return value.value if code == 0 else f"code {code}"

    def describe(self, pointer):
        base, size = ctypes.c_uint64(0), ctypes.c_size_t(0)
        code = self.code(
            "cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(pointer)
        )
        handle = ctypes.c_uint64(0)
        retained = self.code("cuMemRetainAllocationHandle", ctypes.byref(handle), ctypes.c_void_p(pointer))
        if retained == 0:
            self.must("cuMemRelease", handle)
        return {
            "allowed_handle_types": self.pointer_attribute(ALLOWED_HANDLE_TYPES, pointer),
            "legacy_ipc_capable": self.pointer_attribute(LEGACY_IPC, pointer),
            "address_range": f"offset {pointer - base.value}, {size.value} bytes" if code == 0 else f"code {code}",
            "cuMemRetainAllocationHandle": retained,
        }


def run_lengths(driver, pointer, size):
    """The physical chunks below [pointer, pointer + size): [address, bytes, handle], found by retaining each step."""
    first = pointer - pointer % STEP
    chunks = []
    for address in range(first, pointer + size, STEP):
        handle = ctypes.c_uint64(0)
        driver.must("cuMemRetainAllocationHandle", ctypes.byref(handle), ctypes.c_void_p(address))
        if chunks and chunks[-1][2] == handle.value:
            chunks[-1][1] += STEP
            driver.must("cuMemRelease", handle)
        else:
            chunks.append([address, STEP, handle.value])
    return chunks


def consume(words):
    """Maps the descriptors one after the other and compares with 0, 1, 2, ... from the given byte offset."""
    offset, count = int(words[0]), int(words[1])
    pieces = [tuple(map(int, word.split(":"))) for word in words[2:]]  # fd:bytes
    driver = Driver()
    context = ctypes.c_void_p()
    driver.must("cuDevicePrimaryCtxRetain", ctypes.byref(context), ctypes.c_int(0))
    driver.must("cuCtxSetCurrent", context)
    total = sum(size for _, size in pieces)
    base = ctypes.c_uint64(0)
    driver.must("cuMemAddressReserve", ctypes.byref(base), ctypes.c_size_t(total), ctypes.c_size_t(0),
                ctypes.c_uint64(0), ctypes.c_uint64(0))  # fmt: skip
    at = base.value
    for fd, size in pieces:
        handle = ctypes.c_uint64(0)
        driver.must("cuMemImportFromShareableHandle", ctypes.byref(handle), ctypes.c_void_p(fd), ctypes.c_int(POSIX_FD))
        driver.must("cuMemMap", ctypes.c_uint64(at), ctypes.c_size_t(size), ctypes.c_size_t(0), handle,
                    ctypes.c_uint64(0))  # fmt: skip
        at += size
    access = (ctypes.c_int * 3)(1, 0, 3)  # device memory, device 0, read and write
    driver.must("cuMemSetAccess", base, ctypes.c_size_t(total), ctypes.byref(access), ctypes.c_size_t(1))
    host = (ctypes.c_int32 * count)()
    driver.must("cuMemcpyDtoH_v2", ctypes.byref(host), ctypes.c_uint64(base.value + offset), ctypes.c_size_t(4 * count))
    wrong = sum(1 for index in range(0, count, 97) if host[index] != index)
    print(f"{wrong} sampled words differ")


def torch_default():
    import torch

    tensor = torch.arange(16 << 20, dtype=torch.int32, device="cuda")
    return Driver().describe(tensor.data_ptr())


def torch_expandable():
    """T22: an expandable-segments tensor is taken over chunk by chunk and read in another process."""
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        os.environ[name] = "expandable_segments:True"
    import torch

    count = 16 << 20
    tensor = torch.arange(count, dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()
    driver = Driver()
    facts = driver.describe(tensor.data_ptr())
    chunks = run_lengths(driver, tensor.data_ptr(), 4 * count)
    facts["chunks"] = [size for _, size, _ in chunks]
    fds = []
    for _, _, handle in chunks:
        fd = ctypes.c_int(-1)
        code = driver.code("cuMemExportToShareableHandle", ctypes.byref(fd), ctypes.c_uint64(handle),
                           ctypes.c_int(POSIX_FD), ctypes.c_uint64(0))  # fmt: skip
        if code != 0:
            facts["export"] = f"code {code}"
            return facts
        fds.append(fd.value)
    pieces = [f"{fd}:{chunk[1]}" for fd, chunk in zip(fds, chunks)]
    offset = tensor.data_ptr() - chunks[0][0]
    command = [sys.executable, __file__, "--consume", str(offset), str(count), *pieces]
    # The last chunk may be larger than the part of it below the tensor; then its true size is the one to map.
    first = subprocess.run(command, pass_fds=fds, capture_output=True, text=True, timeout=60)
    facts["other_process"] = first.stdout.strip() or first.stderr.strip()[-300:]
    if first.returncode != 0:
        facts["chunks_assumed"] = max(facts["chunks"])
        command[5:] = [f"{fd}:{max(facts['chunks'])}" for fd in fds]
        second = subprocess.run(command, pass_fds=fds, capture_output=True, text=True, timeout=60)
        facts["other_process_whole_chunks"] = second.stdout.strip() or second.stderr.strip()[-300:]
    return facts


def cupy_default():
    import cupy

    array = cupy.arange(1 << 20)
    return Driver().describe(array.data.ptr)


def jax_default():
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    import jax

    array = jax.device_put(jax.numpy.arange(1 << 20))
    array.block_until_ready()
    return Driver().describe(array.unsafe_buffer_pointer())


CASES = {
    "default": torch_default,
    "expandable": torch_expandable,
    "cupy": cupy_default,
    "jax": jax_default,
}
QUESTIONS = {
    "default": "by what a default tensor of torch can be shared",
    "expandable": "an expandable segment of torch, taken over chunk by chunk and read in another process",
    "cupy": "by what an array of CuPy can be shared",
    "jax": "by what an array of JAX can be shared",
}


def main(words):
    if words[0] == "--consume":
        consume(words[1:])
        return 0
    try:
        Driver()
        facts = CASES[words[0]]()
    except (ImportError, OSError) as problem:
        print(f"-skip\t{problem}")
        return 0
    except RuntimeError as problem:
        print(f"!fail\t{problem}".replace("\n", " "))
        return 1
    for key, value in facts.items():
        print(f"+{key}\t{value}".replace("\n", " "))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
