# SPDX-License-Identifier: Apache-2.0
"""A program whose framework holds far more than the program does; a digest of what it computes.

    caches.py {torch,cupy} [--kept-gib G] [--cached-gib G] [--steps N]

It begins with temporaries that it needs once, and goes on with arrays that it keeps. What it
keeps is changed in place: the framework has nothing to allocate for that.
"""

import argparse
import json
import sys
from typing import Any

WORDS = 1 << 26                         # words of eight bytes in each array: half a GiB
STEP = """
extern "C" __global__ void step(unsigned long long *x, unsigned long long n, unsigned long long s) {
    unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
    for (; i < n; i += (unsigned long long)gridDim.x * blockDim.x)
        x[i] = (x[i] ^ (x[i] >> 29)) * 0xBF58476D1CE4E5B9ull + s + i;
}
"""


class Torch:
    """PyTorch: 64-bit integers, which wrap around."""

    def __init__(self) -> None:
        import torch

        self.torch = torch

    def array(self, first: int) -> Any:
        return self.torch.arange(first, first + WORDS, dtype=self.torch.int64, device="cuda")

    def step(self, array: Any, number: int) -> None:
        array.mul_(6364136223846793005).add_(number)

    def fold(self, array: Any) -> int:
        """64 bits over all of it."""
        place = self.torch.arange(1, 2 * WORDS, 2, dtype=self.torch.int64, device="cuda")
        return int(place.mul_(array).sum()) % 2**64

    def wait(self) -> None:
        self.torch.cuda.synchronize()

    def held(self) -> int:
        return int(self.torch.cuda.memory_reserved())


class CuPy:
    """CuPy, with a kernel of our own."""

    def __init__(self) -> None:
        import cupy

        self.cupy = cupy
        self.kernel = cupy.RawKernel(STEP, "step")

    def array(self, first: int) -> Any:
        return self.cupy.arange(first, first + WORDS, dtype=self.cupy.uint64)

    def step(self, array: Any, number: int) -> None:
        words, count = self.cupy.uint64(WORDS), self.cupy.uint64(number)
        self.kernel((1024,), (256,), (array, words, count))

    def fold(self, array: Any) -> int:
        """64 bits over all of it."""
        place = self.cupy.arange(1, 2 * WORDS, 2, dtype=self.cupy.uint64)
        place *= array
        return int(place.sum()) % 2**64

    def wait(self) -> None:
        self.cupy.cuda.Device().synchronize()

    def held(self) -> int:
        return int(self.cupy.get_default_memory_pool().total_bytes())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("framework", choices=["torch", "cupy"])
    parser.add_argument("--kept-gib", type=float, default=10.0)
    parser.add_argument("--cached-gib", type=float, default=20.0)
    parser.add_argument("--steps", type=int, default=240)
    options = parser.parse_args()

    framework = Torch() if options.framework == "torch" else CuPy()
    temporaries = [framework.array(number) for number in range(int(options.cached_gib * 2))]
    total = 0
    for number, array in enumerate(temporaries):
        framework.step(array, number)
        total = (total * 31 + framework.fold(array)) % 2**64
    del temporaries, array
    kept = [framework.array(7 * number) for number in range(int(options.kept_gib * 2))]
    cached = framework.held()
    for number in range(options.steps):
        for array in kept:
            framework.step(array, number)
        if number % 8 == 0:
            framework.wait()
    held = framework.held()
    for array in kept:
        total = (total * 31 + framework.fold(array)) % 2**64
    print(json.dumps({
        "program": f"caches {options.framework}", "digest": f"{total:016x}",
        "cached_gib": cached / 2**30, "held_gib": held / 2**30,
    }))
    return 0


if __name__ == "__main__":
    sys.exit(main())
