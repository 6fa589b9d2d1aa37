#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""examples/launch: two shards on one host, at the same time, have one world. Usage: launch_test.py LAUNCH SPAWNER"""
import os
import subprocess
import sys


def main():
    launch, spawner = map(os.path.abspath, sys.argv[1:3])
    environment = os.environ | {"SHMBROKER_SPAWNER": spawner}
    shards = [subprocess.Popen([launch, "2", str(shard), "2", "tcp://127.0.0.1:29500"], env=environment, text=True,
                               stdout=subprocess.PIPE) for shard in (0, 1)]
    problems = []
    for shard, process in enumerate(shards):
        seen = sorted(process.communicate(timeout=50)[0].splitlines())
        ranks = (2 * shard, 2 * shard + 1)
        expected = [f"rank {rank} of 4 trains a model over sockets, rank 0 is at 127.0.0.1:29500" for rank in ranks]
        expected.append(f"shard {shard} is done, its ranks add up to {sum(ranks)}")
        if seen != expected or process.returncode != 0:
            problems.append(f"shard {shard}: {process.returncode}, {seen}")
    wrong = subprocess.run([launch, "2", "0", "1", "nowhere"], env=environment, text=True, capture_output=True, timeout=50)
    if wrong.returncode != 1 or "it must be tcp://HOST:PORT" not in wrong.stderr:
        problems.append(f"a wrong address: {wrong.returncode}, {wrong.stderr}")
    if problems:
        sys.exit("\n".join(problems))


main()
