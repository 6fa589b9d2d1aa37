# SPDX-License-Identifier: Apache-2.0
"""A parent for test_spawn_kills.py to kill. usage: spawn_parent.py FUNCTION METHOD PIDS RANKS"""
import sys
import time

import shmbroker
import spawn_functions

if __name__ == "__main__":
    name, method, pids, count = sys.argv[1:]
    print("starting", flush=True)
    context = shmbroker.spawn(getattr(spawn_functions, name), (pids,), int(count), join=False, start_method=method)
    print(" ".join(map(str, context.pids())), flush=True)
    time.sleep(600)
