#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A model's weights, loaded once on a host, and used by any number of engines without a copy.

    weight_cache.py load llama weights.pt    # a file of torch.save(model.state_dict(), ...); without one a small model
    weight_cache.py engine llama             # as often as you like, started apart
    weight_cache.py drop llama               # frees the memory, once the last engine has ended

`load` may end at once: the memory stays under its name. One region has all tensors, behind a header that says where each
lies. It is published, so no process can change it. An engine maps it for reading: torch has no tensors that refuse to be
written, so a program that writes to one of these is ended by SIGSEGV.
"""
import argparse
import json
import time
import warnings

import numpy
import shmbroker
import torch

ALIGNMENT = 64
KEEP = 24 * 3600.0  # seconds that the weights stay without an engine


def layout_of(state):
    """The header, and the place of each tensor behind it."""
    place, entries = 0, {}
    for name, tensor in state.items():
        entries[name] = {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape), "at": place}
        place += -(-tensor.numel() * tensor.element_size() // ALIGNMENT) * ALIGNMENT
    header = json.dumps(entries).encode()
    begin = -(-(8 + len(header)) // ALIGNMENT) * ALIGNMENT
    return header, begin, begin + place


def put(session, name, state):
    """Copies the tensors into one region of the broker, and publishes it."""
    header, begin, size = layout_of(state)
    region = session.create(size, name=name, keep=KEEP)
    memory = memoryview(region)
    memory[:8] = len(header).to_bytes(8, "little")
    memory[8:8 + len(header)] = header
    for (tensor, entry) in zip(state.values(), json.loads(header).values()):
        if tensor.numel():
            there = torch.frombuffer(memory, dtype=tensor.dtype, count=tensor.numel(), offset=begin + entry["at"])
            there.copy_(tensor.detach().reshape(-1))
            del there
    memory.release()
    region.publish()
    return size


def get(session, name, wait=60.0):
    """A state_dict over the region. The tensors keep the memory."""
    region = session.attach(name, wait=wait)
    memory = memoryview(region)
    length = int.from_bytes(memory[:8], "little")
    begin = -(-(8 + length) // ALIGNMENT) * ALIGNMENT
    state = {}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        for key, entry in json.loads(bytes(memory[8:8 + length])).items():
            dtype, count = getattr(torch, entry["dtype"]), int(numpy.prod(entry["shape"]))
            flat = torch.frombuffer(memory, dtype=dtype, count=count, offset=begin + entry["at"]) if count else \
                torch.empty(0, dtype=dtype)
            state[key] = flat.view(entry["shape"])
    return state


def use(model, state):
    """The model's parameters and buffers are the tensors themselves: nothing is copied."""
    for path, tensor in state.items():
        where, _, last = path.rpartition(".")
        module = model.get_submodule(where)
        if last in module._parameters:
            module._parameters[last] = torch.nn.Parameter(tensor, requires_grad=False)
        else:
            module._buffers[last] = tensor
    return model.eval()


def small_model():
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.BatchNorm1d(2048), torch.nn.ReLU(),
                               torch.nn.Linear(2048, 8))


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("what", choices=["load", "engine", "drop"])
    options.add_argument("name")
    options.add_argument("file", nargs="?", help="for load: of torch.save")
    options.add_argument("--seconds", type=float, default=0, help="how long an engine stays")
    asked = options.parse_args()
    session = shmbroker.connect()
    if asked.what == "load":
        state = torch.load(asked.file, map_location="cpu") if asked.file else small_model().state_dict()
        print(f"loaded {len(state)} tensors, {put(session, asked.name, state)} bytes", flush=True)
    elif asked.what == "drop":
        session.attach(asked.name, release=True).close(unname=True)
        print("dropped", flush=True)
    else:
        model = use(small_model(), get(session, asked.name))
        with torch.no_grad():
            print(f"engine: {model(torch.ones(1, 512)).sum().item():.6f}", flush=True)
            time.sleep(asked.seconds)


if __name__ == "__main__":
    main()
