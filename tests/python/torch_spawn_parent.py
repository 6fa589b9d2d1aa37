# SPDX-License-Identifier: Apache-2.0
"""A parent for test_torch_spawn.py to kill. usage: torch_spawn_parent.py FUNCTION METHOD PATH RANKS wait|leave

wait: it sleeps beside its ranks. leave: they are daemons, and it ends when they are ready.
"""
import os
import sys
import time

import torch_spawn_functions
from shmbroker.torch.spawn import start_processes

if __name__ == "__main__":
    name, method, path, count, then = sys.argv[1:]
    context = start_processes(getattr(torch_spawn_functions, name), (path,), int(count), join=False,
                              daemon=then == "leave", start_method=method, grace=0.5)
    print(" ".join(map(str, context.pids())), flush=True)
    if then == "wait":
        time.sleep(600)
    while not all(os.path.exists(f"{path}.{rank}.ready") for rank in range(int(count))):
        time.sleep(0.01)
