# SPDX-License-Identifier: Apache-2.0
"""Producers and consumers of tensors are killed at random: the others go on, every tensor that arrives is whole, and at
the end nothing is left. SHMBROKER_KILLS=500 pytest tests/python/test_torch_kills.py runs it for long."""
import gc
import os
import random
import time

from torch_world import fork, installed, start, torch, until, used  # noqa: F401

import torch_children as children

KILLS = int(os.environ.get("SHMBROKER_KILLS", "30"))


def test_random_kills_of_producers_and_consumers_leave_nothing(fork):
    gc.collect()
    before = used()
    queue, counts = fork.Queue(16), torch.zeros(3, dtype=torch.int64).share_memory_()
    roles = [(children.produce_for_ever, (queue, number)) for number in range(3)]
    roles += [(children.consume_for_ever, (queue, counts, number)) for number in range(3)]
    running = [start(fork, target, *args) for target, args in roles]
    dice = random.Random(17)
    for _ in range(KILLS):
        time.sleep(dice.uniform(0.01, 0.1))
        number = dice.randrange(6)
        running[number].kill()
        running[number].join()
        assert running[number].exitcode == -9, "it failed before it was killed"
        running[number] = start(fork, roles[number][0], *roles[number][1])
    arrived = counts.clone()
    assert until(lambda: (counts > arrived).all(), 60), "the last ones do not work"
    for one in running:
        one.kill()
        one.join()
        assert one.exitcode == -9
    queue.close()
    del queue, counts, roles
    gc.collect()
    assert until(lambda: used()[1] <= before[1], 30), (before, used())
