# SPDX-License-Identifier: Apache-2.0
"""A CuPy program all of whose memory is managed, changed by the card and by the processor."""

import argparse
import ctypes
import hashlib
import json
import sys
from typing import Any

import cupy
import numpy

SOURCE = r"""
extern "C" __global__ void step(unsigned long long *x, unsigned long long n, unsigned long long s) {
    unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
    for (; i < n; i += (unsigned long long)gridDim.x * blockDim.x)
        x[i] = (x[i] ^ (x[i] >> 29)) * 0xBF58476D1CE4E5B9ull + s + i;
}
"""
WORDS = 1 << 26                         # words of each array


def view(array: cupy.ndarray) -> Any:
    """The same memory, as the processor has it."""
    words = (ctypes.c_uint64 * WORDS).from_address(array.data.ptr)
    return numpy.frombuffer(words, dtype=numpy.uint64)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=8.0)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    cupy.cuda.set_allocator(cupy.cuda.MemoryPool(cupy.cuda.malloc_managed).malloc)
    kernel = cupy.RawKernel(SOURCE, "step")
    arrays = [
        cupy.arange(WORDS, dtype=cupy.uint64) + options.seed * 1000 + number
        for number in range(max(1, int(options.gib * 2**30 / WORDS / 8)))
    ]
    for step in range(options.steps):
        for array in arrays:
            kernel((1024,), (256,), (array, cupy.uint64(WORDS), cupy.uint64(step)))
        if step % 8 == 0:
            cupy.cuda.Device().synchronize()
        if step % 40 == 0:
            # The host changes one word in each of its pages, in a sixteenth of one array.
            words = view(arrays[step // 40 % len(arrays)])[: WORDS // 16 : 512]
            words ^= numpy.uint64(step + 1)
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(cupy.asnumpy(array).data)
    print(json.dumps({"program": "managed", "digest": digest.hexdigest()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
