# SPDX-License-Identifier: Apache-2.0
"""A CuPy program with managed memory only, which the card and the processor change."""

import argparse
import ctypes
import hashlib
import json
from typing import Any

import cupy
import numpy

from tests.gpu.programs.arrays import WORDS, change


def view(array: cupy.ndarray) -> Any:
    """A numpy array of the same memory, which the processor may change."""
    words = (ctypes.c_uint64 * WORDS).from_address(array.data.ptr)
    return numpy.frombuffer(words, dtype=numpy.uint64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, required=True)
    parser.add_argument("--steps", type=int, required=True)
    options = parser.parse_args()

    cupy.cuda.set_allocator(cupy.cuda.MemoryPool(cupy.cuda.malloc_managed).malloc)
    arrays = [cupy.arange(WORDS, dtype=cupy.uint64) + number
              for number in range(max(1, int(options.gib * 2)))]
    for step in range(options.steps):
        for array in arrays:
            change(array, step)
        if step % 8 == 0:
            cupy.cuda.Device().synchronize()
        if step % 40 == 0:
            # The processor changes one word in each page, in a sixteenth of one array.
            words = view(arrays[step // 40 % len(arrays)])[: WORDS // 16 : 512]
            words ^= numpy.uint64(step + 1)
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(cupy.asnumpy(array).data)
    print(json.dumps({"digest": digest.hexdigest()}))


if __name__ == "__main__":
    main()
