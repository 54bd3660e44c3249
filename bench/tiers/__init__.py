# SPDX-License-Identifier: Apache-2.0
"""Rates at which swapped memory goes on to a disk and comes back."""
