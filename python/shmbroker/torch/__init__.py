# SPDX-License-Identifier: Apache-2.0
"""PyTorch on memory of the broker."""
