# SPDX-License-Identifier: Apache-2.0
"""Units: memory is in bytes, time in microseconds."""

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

MILLISECOND = 1_000
SECOND = 1_000_000
