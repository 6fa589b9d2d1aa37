#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The shipped library must not contain the fault seam; the seam build must, or this test would look at nothing."""
import subprocess
import sys


def seam_symbols(library):
    names = subprocess.run(["nm", "--demangle", library], check=True, capture_output=True, text=True).stdout
    # Not fault::fails: without optimisation its constant 0 is a function too.
    steering = ("shmb::fault::inject", "shmb::fault::configure", "shmb::fault::pretend_kernel",
                "shmb::fault::rescues_are_off")
    return [line for line in names.splitlines() if any(name in line for name in steering)]


shipped, seam = sys.argv[1:3]
if found := seam_symbols(shipped):
    sys.exit(f"{shipped} contains the seam: {found[0]}")
if not seam_symbols(seam):
    sys.exit(f"{seam} does not contain the seam")

