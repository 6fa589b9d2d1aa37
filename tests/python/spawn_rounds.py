# SPDX-License-Identifier: Apache-2.0
"""Many rounds of one rank that fails beside others that wait for it: the failing rank must be named in each.

    PYTHONPATH=BUILD/python SHMBROKER_SPAWNER=... python3 tests/python/spawn_rounds.py [ROUNDS [METHOD]]
"""
import random
import sys

import shmbroker
import spawn_functions as functions


def fail_or_wait(rank, which, how):
    if rank == which:
        if how == "raise":
            raise ValueError("the cause")
        functions.die_of(0, 9)
    shmbroker.ranks.barrier()


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3000
    methods = sys.argv[2:3] or ["fork", "forkserver"]
    chance, wrong = random.Random(1), 0
    for number in range(rounds):
        which, how = chance.randrange(3), chance.choice(["raise", "raise", "die"])
        if how == "die":
            which = 0
        try:
            shmbroker.spawn(fail_or_wait, (which, how), 3, start_method=methods[number % len(methods)], no_group=True)
            print(f"round {number}: no failure")
            wrong += 1
        except shmbroker.ProcessException as error:
            if error.error_index != which:
                wrong += 1
                print(f"round {number}: rank {which} failed ({how}), named is {error.failures}")
    print(f"{rounds} rounds, {wrong} wrong")
    return wrong != 0


if __name__ == "__main__":
    sys.exit(main())
