#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Frames from a camera process through two workers, as NumPy arrays that are never copied.

The camera fills slots of a pool and sends them. A worker sees the same memory. A slot is free again once its reader has
dropped the message, and a reader that is killed gives its slots back.
"""
import numpy
import shmbroker
from shmbroker import ranks

FRAME, COUNT = (480, 640, 3), 200
BYTES = FRAME[0] * FRAME[1] * FRAME[2]


def run(rank):
    session = shmbroker.connect()
    if rank == 0:
        return camera(session.create_pool([(BYTES, 8)], name="frames"))
    return worker(session.open_pool("frames", wait=30))


def camera(pool):
    queue = pool.queue("frames", kind="mpmc", role="writer", cells=16)
    ranks.barrier()  # the workers read from here on
    for number in range(COUNT):
        slot = pool.acquire(BYTES)  # waits while all eight are in use
        frame = numpy.asarray(slot).reshape(FRAME)
        frame[:] = number % 256
        queue.send(slot)
    queue.close()
    ranks.barrier("end")
    return COUNT


def worker(pool):
    queue = pool.queue("frames", role="reader", wait=30)  # the queue as the camera makes it
    ranks.barrier()
    seen = 0
    while True:
        try:
            message = queue.receive(timeout=30)
        except (shmbroker.PeerGone, shmbroker.Closed):  # the camera has left
            break
        frame = numpy.asarray(message).reshape(FRAME)
        assert not frame.flags.writeable and (frame == frame[0, 0, 0]).all()
        seen += 1
        del frame, message  # the slot goes back
    ranks.barrier("end")
    return seen


def main():
    context = shmbroker.spawn(run, (), 3, join=False, start_method="forkserver")
    context.join()
    sent, *seen = context.results()
    print(f"{sent} frames sent, {sum(seen)} seen by {len(seen)} workers")


if __name__ == "__main__":
    main()
