#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the records of tools/bench: how many times as fast as its floor each figure is, beside its target.

usage: plot.py FIGURES.json FOLDER
"""

import json
import os
import re
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def times_as_fast(ratio, unit):
    """A rate is faster where it is larger, a time where it is smaller. Memory counts like time."""
    return ratio if unit.endswith("/s") else 1 / ratio


def short(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def main(source, folder):
    with open(source, encoding="utf-8") as text:
        document = json.load(text)
    records = [r for r in document["figures"] if re.match(r"[<>]= [0-9.]+ x floor", r["target"]) or r["target"] == "-"]
    figure, axes = plt.subplots(figsize=(9, 0.28 * len(records) + 1.6))
    for row, record in enumerate(records):
        unit = record["unit"]
        speed = times_as_fast(record["ratio"], unit)
        colour = "#888888" if record["target"] == "-" else "#2a7f3f" if record["met"] else "#b03030"
        # From 1 on: to the right what is faster than its floor, to the left what is slower.
        axes.barh(row, speed - 1, left=1, color=colour, height=0.62)
        bound = re.match(r"[<>]= ([0-9.]+)", record["target"])
        if bound:
            axes.plot(times_as_fast(float(bound.group(1)), unit), row, marker="|", color="black", ms=12, mew=2)
        label = f"{speed:.3g} x: {short(record['value'])} against {short(record['floor'])} {unit}"
        axes.annotate(label, (max(speed, 1), row), xytext=(6, 0), textcoords="offset points", va="center", fontsize=7)
    axes.set_yticks(range(len(records)), [r["name"] for r in records])
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g} x")
    axes.xaxis.set_minor_formatter(lambda x, _: "")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.invert_yaxis()
    axes.set_xlabel("as fast as the floor of the same run (line: target)", fontsize=8)
    axes.set_title(f"{document['cpu']}, {document['kernel']}, {document['date']}", fontsize=8)
    axes.tick_params(labelsize=7)
    axes.margins(x=0.05, y=0.01)
    axes.set_xlim(right=axes.get_xlim()[1] * 4)  # room for the longest label
    figure.tight_layout()
    os.makedirs(folder, exist_ok=True)
    for kind in "svg", "png":
        target = os.path.join(folder, f"figures.{kind}")
        figure.savefig(target, dpi=110)
        print(target)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2])
