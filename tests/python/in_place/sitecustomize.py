# SPDX-License-Identifier: Apache-2.0
"""Puts shmbroker.shared_memory where the standard library's module is, in every Python of a test that has this folder in
PYTHONPATH. The three names are details of that module which its tests read.
"""
import sys

import multiprocessing
import shmbroker.shared_memory as ours

ours._USE_POSIX = True
ours._SHM_NAME_PREFIX = "/psm_"
sys.modules["multiprocessing.shared_memory"] = multiprocessing.shared_memory = ours
