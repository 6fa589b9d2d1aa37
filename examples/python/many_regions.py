#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""5,000 blocks of shared memory in a process with a limit of 1,024 open files: before and after."""
import resource
from multiprocessing.shared_memory import SharedMemory

import shmbroker

COUNT = 5000


def before():
    blocks = []
    try:
        for _ in range(COUNT):
            blocks.append(SharedMemory(create=True, size=4096))
    except OSError as error:
        return f"{len(blocks)} blocks, then {error.strerror}"
    finally:
        for block in blocks:
            block.close()
            block.unlink()
    return f"{len(blocks)} blocks"


def after():
    with shmbroker.connect() as session:
        return f"{len([session.create(4096) for _ in range(COUNT)])} blocks"


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    print("multiprocessing.shared_memory:", before())
    print("shmbroker:", after())
