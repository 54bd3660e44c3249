# SPDX-License-Identifier: Apache-2.0
"""A program with a framework that caches far more memory than needed; a digest of the results.

    caches.py {torch,cupy} --steps N

The program first uses temporary arrays of CACHED_GIB, which the framework then caches. Afterwards
it changes arrays of KEPT_GIB in place, so that the framework has no memory to allocate.
"""

import argparse
import json
from typing import Any

KEPT_GIB, CACHED_GIB = 10, 20
WORDS = 1 << 26                         # 64-bit words of each array: half a GiB


class Torch:
    """PyTorch: 64-bit integers, which wrap around."""

    def __init__(self) -> None:
        import torch

        from tests.gpu.programs.tensors import fold

        self.torch, self.fold = torch, fold

    def array(self, first: int) -> Any:
        return self.torch.arange(first, first + WORDS, dtype=self.torch.int64, device="cuda")

    def change(self, array: Any, number: int) -> None:
        array.mul_(6364136223846793005).add_(number)

    def wait(self) -> None:
        self.torch.cuda.synchronize()

    def held(self) -> int:
        return int(self.torch.cuda.memory_reserved())


class CuPy:
    """CuPy, with a kernel of our own."""

    def __init__(self) -> None:
        import cupy

        from tests.gpu.programs.arrays import change, fold

        self.cupy, self.change, self.fold = cupy, change, fold

    def array(self, first: int) -> Any:
        return self.cupy.arange(first, first + WORDS, dtype=self.cupy.uint64)

    def wait(self) -> None:
        self.cupy.cuda.Device().synchronize()

    def held(self) -> int:
        return int(self.cupy.get_default_memory_pool().total_bytes())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("framework", choices=["torch", "cupy"])
    parser.add_argument("--steps", type=int, required=True)
    options = parser.parse_args()

    framework = Torch() if options.framework == "torch" else CuPy()
    temporaries = [framework.array(number) for number in range(CACHED_GIB * 2)]
    total = 0
    for number, array in enumerate(temporaries):
        framework.change(array, number)
        total = (total * 31 + framework.fold(array)) % 2**64
    del temporaries, array
    kept = [framework.array(7 * number) for number in range(KEPT_GIB * 2)]
    for number in range(options.steps):
        for array in kept:
            framework.change(array, number)
        if number % 8 == 0:
            framework.wait()
    held = framework.held()
    for array in kept:
        total = (total * 31 + framework.fold(array)) % 2**64
    print(json.dumps({"digest": f"{total:016x}", "held_gib": held / 2**30}))


if __name__ == "__main__":
    main()
