# SPDX-License-Identifier: Apache-2.0
"""Rates at which swapped memory moves to a disk and is loaded from the disk."""
