#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the records of tools/bench as the Markdown table of docs/figures.md: whole runs are published, nothing is picked.

usage: table.py FIGURES.json
"""

import json
import sys


def number(value):
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.2f}"


def row(record):
    beside = ", ".join(f"{name} {number(value)}" for name, value in record["peers"].items())
    target = "" if record["target"] == "-" else record["target"].replace(" x floor", "")
    if not record["met"]:
        target += ", **missed**"
    ratio = f"{record['ratio']:.2f}" if record["ratio"] >= 0.01 else f"{record['ratio']:.4f}"
    adds = f"{number(record['adds'])} {record['unit']}" if "adds" in record else ""
    cells = [f"`{record['name']}`", f"{number(record['value'])} {record['unit']}",
             f"{number(record['min'])} to {number(record['max'])}", number(record["floor"]), ratio, adds, target, beside]
    return "| " + " | ".join(cells) + " |"


def main(source):
    with open(source, encoding="utf-8") as text:
        document = json.load(text)
    print("| figure | here | least to greatest | floor | ratio | adds | to reach | beside it |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for record in document["figures"]:
        print(row(record))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
