#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A training script as it would run under torchrun or MPI, with nothing but Python: each rank works on its share of the
data and finds the others at MASTER_ADDR:MASTER_PORT. It knows nothing of what started it:

    shmbroker run --nprocs 4 -- python3 train.py [STEPS]
"""
import os
import random
import socket
import struct
import sys
import time

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


class Ring:
    """All ranks by way of rank 0: sums of a few numbers."""

    def __init__(self, address):
        self.peers = []
        if RANK == 0:
            with socket.create_server(address, backlog=WORLD) as listener:
                listener.settimeout(60)
                self.peers = [listener.accept()[0] for _ in range(WORLD - 1)]
        else:
            deadline = time.monotonic() + 60
            while not self.peers:
                try:
                    self.peers = [socket.create_connection(address, timeout=60)]
                except ConnectionRefusedError:  # rank 0 is not there yet
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.01)
        for peer in self.peers:
            peer.settimeout(60)

    @staticmethod
    def _receive(peer, count):
        data = b""
        while len(data) < 8 * count:
            more = peer.recv(8 * count - len(data))
            if not more:
                sys.exit(f"rank {RANK}: another rank is gone")
            data += more
        return struct.unpack(f"{count}d", data)

    def all_reduce(self, values):
        if RANK == 0:
            for peer in self.peers:
                values = [a + b for a, b in zip(values, self._receive(peer, len(values)))]
            for peer in self.peers:
                peer.sendall(struct.pack(f"{len(values)}d", *values))
            return values
        self.peers[0].sendall(struct.pack(f"{len(values)}d", *values))
        return list(self._receive(self.peers[0], len(values)))


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    ring = Ring((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
    chance = random.Random(RANK)
    points = [(x, 3 * x - 2 + chance.gauss(0, 0.01)) for x in (chance.uniform(-1, 1) for _ in range(100))]
    slope = offset = 0.0
    for _ in range(steps):
        errors = [(slope * x + offset - y, x) for x, y in points]
        mine = [sum(error * x for error, x in errors), sum(error for error, _ in errors), float(len(points))]
        by_slope, by_offset, count = ring.all_reduce(mine)
        slope -= by_slope / count
        offset -= by_offset / count
    print(f"rank {RANK} of {WORLD}: y = {slope:.1f} x {offset:+.1f}")
    if abs(slope - 3) > 0.1 or abs(offset + 2) > 0.1:
        sys.exit("the line was not found")


main()
