#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An asyncio program that takes messages from a process of its own, and does other work meanwhile."""
import asyncio

import shmbroker

COUNT = 1000


def produce(rank, address):
    with shmbroker.connect() as session, session.queue(address, role="writer", open_only=True) as queue:
        for number in range(COUNT):
            queue.send(f"message {number}".encode())


async def tick(ticks):
    while True:
        ticks.append(1)
        await asyncio.sleep(0)


async def consume(queue):
    ticks, count = [], 0
    ticker = asyncio.create_task(tick(ticks))
    async for message in queue:  # until the last writer has left
        count += 1
        last = message.tobytes().decode()
        await asyncio.sleep(0)
    ticker.cancel()
    print(f"{count} messages, the last one is {last!r}; the loop did other work: {len(ticks) > 0}")


def main():
    with shmbroker.connect(group="") as session:  # a group of this program's own, which ends with it
        queue = session.queue("jobs", kind="mpmc", role="reader", cells=64)
        address = f"@{session.info().group}/jobs"
        context = shmbroker.spawn(produce, (address,), 1, join=False, start_method="fork")
        asyncio.run(consume(queue))
        context.join()


if __name__ == "__main__":
    main()
