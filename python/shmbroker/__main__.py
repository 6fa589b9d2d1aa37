# SPDX-License-Identifier: Apache-2.0
"""`python3 -m shmbroker`, and the command `shmbroker` of an installed wheel: this process becomes the tool.

The tool is SHMBROKER_TOOL, or the program of the wheel. PATH is not searched: it would find this command again.
"""
from __future__ import annotations

import os
import sys


def main() -> int:
    program = os.environ.get("SHMBROKER_TOOL") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "shmbroker")
    try:
        os.execv(program, [program, *sys.argv[1:]])
    except OSError as error:
        print(f"shmbroker: {program}: {error.strerror}; SHMBROKER_TOOL names another program", file=sys.stderr)
    return 127


if __name__ == "__main__":
    sys.exit(main())
