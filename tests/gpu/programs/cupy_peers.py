# SPDX-License-Identifier: Apache-2.0
"""Kernels and copies between two cards with peer access; a digest of every bit on both."""

import argparse
import json
import sys

import cupy

SOURCE = r"""
extern "C" __global__ void mix(unsigned long long *here, const unsigned long long *there,
                               unsigned long long n, unsigned long long s) {
    unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
    for (; i < n; i += (unsigned long long)gridDim.x * blockDim.x)
        here[i] = (here[i] ^ (there[n - 1 - i] >> 29)) * 0xBF58476D1CE4E5B9ull + s + i;
}
"""


def digest(arrays: list[cupy.ndarray]) -> str:
    total = 0
    for device, array in enumerate(arrays):
        with cupy.cuda.Device(device):
            place = cupy.arange(array.size, dtype=cupy.uint64) * cupy.uint64(2) + cupy.uint64(1)
            total = (total * 31 + int((array * place).sum())) % 2**64
    return f"{total:016x}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=2.0, help="on each card")
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()

    words = int(options.gib * 2**27)
    arrays, kernels = [], []
    for device in (0, 1):
        with cupy.cuda.Device(device):
            arrays.append(cupy.arange(words, dtype=cupy.uint64) + device * 1000)
            kernels.append(cupy.RawKernel(SOURCE, "mix"))
            cupy.cuda.Device().synchronize()
    runtime = cupy.cuda.runtime
    # Before there is peer access the driver copies by way of the host.
    runtime.memcpyPeer(arrays[1].data.ptr, 1, arrays[0].data.ptr, 0, words * 4)
    for device in (0, 1):
        with cupy.cuda.Device(device):
            runtime.deviceEnablePeerAccess(1 - device)
    for step in range(options.steps):
        device = step % 2
        with cupy.cuda.Device(device):
            kernels[device]((1024,), (256,), (arrays[device], arrays[1 - device],
                                              cupy.uint64(words), cupy.uint64(step)))
            cupy.cuda.Device().synchronize()
        if step % 10 == 9:
            runtime.memcpyPeer(arrays[0].data.ptr, 0, arrays[1].data.ptr, 1, words * 2)
    print(json.dumps({"program": "cupy_peers", "digest": digest(arrays)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
