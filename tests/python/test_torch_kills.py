# SPDX-License-Identifier: Apache-2.0
"""Producers and consumers of tensors are killed at random: the others go on, every tensor that arrives is whole, and at
the end nothing is left. SHMBROKER_KILLS=500 pytest tests/python/test_torch_kills.py runs it for long."""
import gc
import os
import random
import time
from queue import Empty

from torch_world import fork, installed, start, until, used  # noqa: F401

import torch_children as children

KILLS = int(os.environ.get("SHMBROKER_KILLS", "30"))


def test_random_kills_of_producers_and_consumers_leave_nothing(fork):
    gc.collect()
    before = used()
    queue, told = fork.Queue(16), fork.Queue()
    producers = [start(fork, children.produce_for_ever, queue, number) for number in range(3)]
    consumers = [start(fork, children.consume_for_ever, queue, told) for _ in range(3)]
    dice = random.Random(17)
    arrived = 0
    for _ in range(KILLS):
        time.sleep(dice.uniform(0.01, 0.1))
        some, target, args = dice.choice([(producers, children.produce_for_ever, (queue, 9)),
                                          (consumers, children.consume_for_ever, (queue, told))])
        number = dice.randrange(len(some))
        some[number].kill()
        some[number].join()
        assert some[number].exitcode == -9, "it failed before it was killed"
        some[number] = start(fork, target, *args)
        while True:
            try:
                arrived += told.get(timeout=0)
            except Empty:
                break
    told.get(timeout=60)  # the last ones work
    for one in producers + consumers:
        one.kill()
        one.join()
        assert one.exitcode == -9
    assert arrived > 0
    queue.close()
    told.close()
    del queue, told, args, target, some, producers, consumers
    gc.collect()
    assert until(lambda: used()[1] <= before[1], 30), (before, used())
