# SPDX-License-Identifier: Apache-2.0
"""A CuPy program with raw kernels, FFT and reductions over the memory asked for.

With --until-told the program goes on until stdin ends. It prints the number of steps, which
another run repeats to get the result for a comparison.
"""

import argparse
import itertools
import json
import select
import sys

import cupy

from tests.gpu.programs.arrays import WORDS, change, fold


def told() -> bool:
    """Whether stdin has ended."""
    return bool(select.select([sys.stdin], [], [], 0)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, required=True)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--until-told", action="store_true", help="instead of --steps")
    options = parser.parse_args()

    arrays = [
        cupy.arange(WORDS, dtype=cupy.uint64) + options.seed * 1000 + number
        for number in range(max(1, int(options.gib * 2)))
    ]
    signal = cupy.sin(cupy.arange(1 << 22, dtype=cupy.float64))
    for step in itertools.count():
        if told() if options.until_told else step == options.steps:
            break
        for array in arrays:
            change(array, step)
        signal = cupy.fft.ifft(cupy.fft.fft(signal) * 0.999).real
        if step % 8 == 0:
            cupy.cuda.Device().synchronize()
    total = 0
    for array in (*arrays, signal):
        total = (total * 31 + fold(array)) % 2**64
    print(json.dumps({"digest": f"{total:016x}", "steps": step}))


if __name__ == "__main__":
    main()
