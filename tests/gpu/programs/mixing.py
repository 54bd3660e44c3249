# SPDX-License-Identifier: Apache-2.0
"""A kernel in Triton, which wants its language among a module's own names, and no other types."""

import triton
from triton import language as tl


@triton.jit  # type: ignore[untyped-decorator]
def mix(x, n, s, size: tl.constexpr):  # type: ignore[no-untyped-def]
    """x[i] = (x[i] ^ (x[i] >> 7)) * 3 + s + i"""
    offset = tl.program_id(0) * size + tl.arange(0, size)
    value = tl.load(x + offset, mask=offset < n)
    tl.store(x + offset, (value ^ (value >> 7)) * 3 + s + offset, mask=offset < n)
