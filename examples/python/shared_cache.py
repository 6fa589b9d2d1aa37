#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A cache that jobs share: the first one loads, all others map the same memory for reading.

Start it twice. The memory goes when the last job has ended, also if that is killed. `--seconds N` keeps a job alive.
"""
import argparse
import time

import numpy
import shmbroker

NAME, SHAPE = "squares", (1000, 1000)


def load():
    """Stands for work that takes long: a table from a disk, weights from a network."""
    return numpy.arange(SHAPE[0] * SHAPE[1], dtype=numpy.int64).reshape(SHAPE) ** 2


def cached(session):
    """The table, read-only, and whether this job has loaded it."""
    try:
        region = session.create(SHAPE[0] * SHAPE[1] * 8, name=NAME, keep=0)
    except shmbroker.Exists:
        region = session.attach(NAME, wait=60)  # waits until the loading job has published it
        return numpy.asarray(region).view(numpy.int64).reshape(SHAPE), False
    table = numpy.asarray(region).view(numpy.int64).reshape(SHAPE)
    table[:] = load()
    del table  # the mapping for writing ends with the last array over it
    region.publish()
    return numpy.asarray(region).view(numpy.int64).reshape(SHAPE), True


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seconds", type=float, default=0)
    seconds = arguments.parse_args().seconds
    table, loaded = cached(shmbroker.connect())
    print("loaded" if loaded else "found", "sum of a row:", table[1].sum(), "writable:", table.flags.writeable, flush=True)
    time.sleep(seconds)


if __name__ == "__main__":
    main()
