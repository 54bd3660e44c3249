# SPDX-License-Identifier: Apache-2.0
"""How fast swapped memory goes on to a disk and comes back from there."""
