#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a text file as one C++ raw string. Usage: embed.py FILE"""
import sys

with open(sys.argv[1], encoding="utf-8") as file:
    sys.stdout.write(f'R"embedded({file.read()})embedded"\n')
