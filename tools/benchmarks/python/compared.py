# SPDX-License-Identifier: Apache-2.0
"""Two calls timed in turn, for the figures with PyTorch."""
import statistics
import time


def timed(call, count):
    begin = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - begin) * 1e6 / count


def compared(name, ours, theirs, bound, repetitions, count, warm=True):
    """A record as those of the other families: `floor` is the time of the other side."""
    if warm:
        timed(ours, 1), timed(theirs, 1)
    pairs = [(timed(ours, count), timed(theirs, count)) for _ in range(repetitions)]
    value, floor = (statistics.median(side) for side in zip(*pairs))
    mine = [pair[0] for pair in pairs]
    record = {"name": name, "value": value, "unit": "us", "floor": floor, "ratio": value / floor,
              "target": f"<= {bound:g} x floor", "met": value <= bound * floor, "n": repetitions, "min": min(mine),
              "max": max(mine), "engine": "", "peers": {}}
    print(f"{name:<30} {value:>10.1f} {floor:>10.1f} us     {record['ratio']:>7.2f} {record['target']:<15} "
          f"{'yes' if record['met'] else 'NO':<6} {min(mine):>10.1f} {max(mine):>10.1f} {repetitions:>4}", flush=True)
    return record
