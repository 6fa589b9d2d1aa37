#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the records of tools/bench: each figure as a ratio to its floor, beside its target.

usage: plot.py FIGURES.json FOLDER
"""

import json
import os
import re
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def main(source, folder):
    with open(source, encoding="utf-8") as text:
        document = json.load(text)
    records = [r for r in document["figures"] if re.match(r"[<>]= [0-9.]+ x floor", r["target"]) or r["target"] == "-"]
    height = 0.28 * len(records) + 1.6
    figure, axes = plt.subplots(figsize=(9, height))
    names = [r["name"] for r in records]
    colours = ["#888888" if r["target"] == "-" else "#2a7f3f" if r["met"] else "#b03030" for r in records]
    axes.barh(names, [r["ratio"] for r in records], color=colours, height=0.62)
    for row, record in enumerate(records):
        bound = re.match(r"([<>])= ([0-9.]+)", record["target"])
        if bound:
            axes.plot(float(bound.group(2)), row, marker="<" if bound.group(1) == "<" else ">", color="black", ms=6)
        value = f"{record['value']:.0f}" if record["value"] >= 100 else f"{record['value']:.3g}"
        axes.annotate(f" {value} {record['unit']}", (0, row), va="center", fontsize=7, color="white")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.invert_yaxis()
    axes.set_xlabel("ratio to the floor of the same run (triangle: target)")
    axes.set_title(f"{document['cpu']}, {document['kernel']}, {document['date']}", fontsize=8)
    axes.tick_params(labelsize=7)
    axes.margins(x=0.05, y=0.01)
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
