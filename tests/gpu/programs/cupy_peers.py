# SPDX-License-Identifier: Apache-2.0
"""Kernels and copies between two cards with peer access; a digest of all bits on both."""

import json

import cupy

from tests.gpu.programs.arrays import fold

WORDS, STEPS = 1 << 28, 100             # 64-bit words of the array of each card: 2 GiB
SOURCE = r"""
extern "C" __global__ void mix(unsigned long long *here, const unsigned long long *there,
                               unsigned long long n, unsigned long long s) {
    unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
    for (; i < n; i += (unsigned long long)gridDim.x * blockDim.x)
        here[i] = (here[i] ^ (there[n - 1 - i] >> 29)) * 0xBF58476D1CE4E5B9ull + s + i;
}
"""


def main() -> None:
    arrays, kernels = [], []
    for device in (0, 1):
        with cupy.cuda.Device(device):
            arrays.append(cupy.arange(WORDS, dtype=cupy.uint64) + device * 1000)
            kernels.append(cupy.RawKernel(SOURCE, "mix"))
            cupy.cuda.Device().synchronize()
    runtime = cupy.cuda.runtime
    # Before there is peer access the driver copies by way of the host.
    runtime.memcpyPeer(arrays[1].data.ptr, 1, arrays[0].data.ptr, 0, WORDS * 4)
    for device in (0, 1):
        with cupy.cuda.Device(device):
            runtime.deviceEnablePeerAccess(1 - device)
    for step in range(STEPS):
        device = step % 2
        with cupy.cuda.Device(device):
            kernels[device]((1024,), (256,), (arrays[device], arrays[1 - device],
                                              cupy.uint64(WORDS), cupy.uint64(step)))
            cupy.cuda.Device().synchronize()
        if step % 10 == 9:
            runtime.memcpyPeer(arrays[0].data.ptr, 0, arrays[1].data.ptr, 1, WORDS * 2)
    digests = []
    for device, array in enumerate(arrays):
        with cupy.cuda.Device(device):
            digests.append(f"{fold(array):016x}")
    print(json.dumps({"digest": "".join(digests)}))


if __name__ == "__main__":
    main()
