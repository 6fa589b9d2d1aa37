# SPDX-License-Identifier: Apache-2.0
"""SIGKILL of programs that create, attach, write, close and unlink shared memory, at random moments and in any order.

    PYTHONPATH=BUILD/python SHMBROKER_DAEMON=$PWD/BUILD/daemon/shmbrokerd SHMBROKER_TOOL=$PWD/BUILD/tools/shmbroker \\
      /usr/bin/python3 tests/python/shared_memory_kills.py --kills 500

Afterwards each region that is left has a name and no holder, and its bytes are those of one writer. Once the names are
unlinked nothing is left. The pytest file of this name does it in short.
"""
import argparse
import os
import random
import signal
import sys
import time

SIZE = 256 << 10
NAMES = [f"kills.{number}" for number in range(6)]


def work(seed):
    """A program that is killed. Each byte of a region has the same value, but for a writer that dies in the middle."""
    from shmbroker import SharedMemory
    dice = random.Random(seed)
    held = []
    while True:
        name = dice.choice(NAMES)
        try:
            match dice.randrange(4):
                case 0:
                    held.append(SharedMemory(name, create=True, size=SIZE))
                case 1:
                    held.append(SharedMemory(name))
                case 2 if held:
                    held.pop(dice.randrange(len(held))).close()
                case 3 if held:
                    dice.choice(held).unlink()
        except (FileExistsError, FileNotFoundError):
            pass
        for one in held[-2:]:
            one.buf[dice.randrange(SIZE)] = 1
        del held[:-4]


def start(seed):
    child = os.fork()
    if child == 0:
        try:
            work(seed)
        except BaseException as error:
            print(f"a worker failed: {type(error).__name__}: {error}", file=sys.stderr)
        os._exit(1)
    return child


def main(kills, workers, seed):
    """The number of regions that unlinked names would have leaked: 0."""
    dice = random.Random(seed)
    # This process opens no session before the last worker has started: each worker has one of its own.
    alive = [start(dice.random()) for _ in range(workers)]
    for number in range(kills):
        time.sleep(dice.random() * 0.02)
        victim = alive.pop(dice.randrange(len(alive)))
        os.kill(victim, signal.SIGKILL)
        status = os.waitpid(victim, 0)[1]
        if os.WTERMSIG(status) != signal.SIGKILL:
            raise SystemExit("a worker had ended by itself")
        if number + workers < kills:
            alive.append(start(dice.random()))
        if not alive:
            break
    import shmbroker
    names = set(NAMES)

    def left():
        # "cached": no region any more, but memory that the group's next one of this size gets, or nobody after 30 s
        return [region for region in shmbroker.list().regions
                if region.group.startswith("shell-") and region.state != "cached"]

    deadline = time.monotonic() + 30
    while any(region.holders for region in left()) and time.monotonic() < deadline:
        time.sleep(0.01)
    found = left()
    wrong = [region for region in found if region.holders or region.name not in names]
    if wrong:
        raise SystemExit(f"left behind: {wrong}")
    for region in found:
        with_name = shmbroker.SharedMemory(region.name)
        with_name.unlink()
        with_name.close()
    if left():
        raise SystemExit(f"left after the last unlink: {left()}")
    print(f"{kills} kills, {len(found)} names left and unlinked, nothing else (seed {seed})")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=None)
    given = parser.parse_args()
    main(given.kills, given.workers, given.seed if given.seed is not None else random.randrange(1 << 32))
