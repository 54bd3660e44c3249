# SPDX-License-Identifier: Apache-2.0
"""A kernel that changes each word of a CuPy array, and digests of arrays."""

from typing import Any

import cupy

WORDS = 1 << 26                         # 64-bit words of each array: half a GiB
KERNEL = cupy.RawKernel(r"""
extern "C" __global__ void step(unsigned long long *x, unsigned long long n, unsigned long long s) {
    unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
    for (; i < n; i += (unsigned long long)gridDim.x * blockDim.x)
        x[i] = (x[i] ^ (x[i] >> 29)) * 0xBF58476D1CE4E5B9ull + s + i;
}
""", "step")


def change(array: cupy.ndarray, number: int) -> None:
    """Launches the kernel, which changes all words of the array."""
    KERNEL((1024,), (256,), (array, cupy.uint64(array.size), cupy.uint64(number)))


def fold(values: Any) -> int:
    """A digest of 64 bits over all bits of an array on the card, of a multiple of 8 bytes."""
    words = cupy.ascontiguousarray(cupy.asarray(values)).ravel().view(cupy.uint64)
    place = cupy.arange(1, 2 * words.size, 2, dtype=cupy.uint64)
    place *= words
    return int(place.sum()) % 2**64
