# SPDX-License-Identifier: Apache-2.0
"""A CuPy program with raw kernels, FFT and reductions over the memory asked for.

With --until-told it goes on until its stdin ends, and says how many steps it made: as many
as another run, of its own, has to make to be compared with it.
"""

import argparse
import itertools
import json
import select
import sys

import cupy

SOURCE = r"""
extern "C" __global__ void step(unsigned long long *x, unsigned long long n, unsigned long long s) {
    unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
    for (; i < n; i += (unsigned long long)gridDim.x * blockDim.x)
        x[i] = (x[i] ^ (x[i] >> 29)) * 0xBF58476D1CE4E5B9ull + s + i;
}
"""


def told() -> bool:
    """Whether stdin has ended."""
    return bool(select.select([sys.stdin], [], [], 0)[0])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=8.0)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--until-told", action="store_true", help="instead of --steps")
    options = parser.parse_args()

    kernel = cupy.RawKernel(SOURCE, "step")
    words = 1 << 26
    arrays = [
        cupy.arange(words, dtype=cupy.uint64) + options.seed * 1000 + number
        for number in range(max(1, int(options.gib * 2**30 / words / 8)))
    ]
    signal = cupy.sin(cupy.arange(1 << 22, dtype=cupy.float64))
    for step in itertools.count():
        if told() if options.until_told else step == options.steps:
            break
        for array in arrays:
            kernel((1024,), (256,), (array, cupy.uint64(words), cupy.uint64(step)))
        signal = cupy.fft.ifft(cupy.fft.fft(signal) * 0.999).real
        if step % 8 == 0:
            cupy.cuda.Device().synchronize()
    place = cupy.arange(words, dtype=cupy.uint64) * cupy.uint64(2) + cupy.uint64(1)
    total = 0
    for array in arrays:
        total = (total * 31 + int((array * place).sum())) % 2**64
    total = (total * 31 + int(signal.view(cupy.uint64).sum())) % 2**64
    print(json.dumps({"program": "cupy_steps", "digest": f"{total:016x}", "steps": step}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
