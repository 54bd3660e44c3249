# SPDX-License-Identifier: Apache-2.0
"""One framework or library at work, with a few GiB that must survive; a digest of all of it.

    framework.py {amp,triton,numba,libraries} [--steps N] [--gib G]

Sums whose order is not fixed are of small integers, so that they are exact in any order.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import cupy
import torch

STEP = """
extern "C" __global__ void step(unsigned long long *x, unsigned long long n, unsigned long long s) {
    unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
    for (; i < n; i += (unsigned long long)gridDim.x * blockDim.x)
        x[i] = (x[i] ^ (x[i] >> 29)) * 0xBF58476D1CE4E5B9ull + s + i;
}
"""


def fold(values: Any) -> int:
    """64 bits over all bits of an array."""
    words = cupy.ascontiguousarray(cupy.asarray(values)).view(cupy.uint32).ravel()
    words = words.astype(cupy.uint64)
    place = cupy.arange(1, words.size + 1, dtype=cupy.uint64) * cupy.uint64(0x9E3779B97F4A7C15)
    return int((words * (place | cupy.uint64(1))).sum())


def amp(steps: int) -> Callable[[int], int]:
    """Mixed precision, a scaler, and a loader with workers and pinned memory."""
    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True)
    model = torch.nn.Sequential(
        torch.nn.Linear(2048, 4096), torch.nn.GELU(), torch.nn.LayerNorm(4096),
        torch.nn.Linear(4096, 2048),
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler()
    rows = torch.randn(64 * steps, 2048, generator=torch.Generator().manual_seed(2))
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(rows), batch_size=64, num_workers=2, pin_memory=True,
    )
    batches = iter(loader)

    def step(number: int) -> int:
        (batch,) = next(batches)
        batch = batch.cuda(non_blocking=True)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = torch.nn.functional.mse_loss(model(batch), batch)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if number < steps - 1:
            return 0
        return sum(fold(parameter.detach()) for parameter in model.parameters())

    return step


def triton(_: int) -> Callable[[int], int]:
    from tests.gpu.programs.mixing import mix

    data = torch.arange(1 << 26, dtype=torch.int64, device="cuda")

    def step(number: int) -> int:
        mix[(data.numel() // 1024,)](data, data.numel(), number, size=1024)
        return fold(data) if number % 50 == 49 else 0

    return step


def numba(_: int) -> Callable[[int], int]:
    import numpy

    # Numba asks for this name, which NumPy 2.5 no longer has.
    if not hasattr(numpy, "row_stack"):
        numpy.row_stack = numpy.vstack
    from numba import cuda

    @cuda.jit  # type: ignore[untyped-decorator]
    def mix(x: Any, s: Any) -> None:
        i = cuda.grid(1)
        if i < x.size:
            x[i] = (x[i] ^ (x[i] >> 7)) * 3 + s + i

    data = cuda.to_device(cupy.asnumpy(cupy.arange(1 << 24, dtype=cupy.int64)))

    def step(number: int) -> int:
        mix[data.size // 256, 256](data, number)
        cuda.synchronize()
        return fold(data) if number % 50 == 49 else 0

    return step


def libraries(_: int) -> Callable[[int], int]:
    """cuBLAS, cuFFT, cuSOLVER, cuSPARSE and cuRAND."""
    from cupyx.scipy import sparse

    cupy.random.seed(7)
    dense = cupy.random.standard_normal((1024, 1024))
    whole = (cupy.arange(1 << 20, dtype=cupy.float64) * 7919 % 1000).reshape(1024, 1024)
    thin = sparse.csr_matrix(cupy.where(whole < 100, whole, 0))

    def step(number: int) -> int:
        nonlocal dense
        product = dense @ dense.T / 1024 + cupy.eye(1024) * (number + 2)
        solved = cupy.linalg.solve(product, dense)
        factors = cupy.linalg.qr(solved + dense)[0]
        spectrum = cupy.fft.ifft2(cupy.fft.fft2(factors)).real
        dense = spectrum / cupy.abs(spectrum).max()
        if number % 10 != 9:
            return 0
        counted = thin @ cupy.floor(whole[number % 1024])
        return fold(dense) ^ fold(counted) ^ fold(cupy.linalg.svd(dense[:128, :128])[1])

    return step


def main() -> int:
    kinds = {"amp": amp, "triton": triton, "numba": numba, "libraries": libraries}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=kinds)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--gib", type=float, default=6.0)
    options = parser.parse_args()

    keep = cupy.RawKernel(STEP, "step")
    words = 1 << 26
    kept = [cupy.arange(words, dtype=cupy.uint64) + number
            for number in range(int(options.gib * 2))]
    step = kinds[options.kind](options.steps)
    total = 0
    for number in range(options.steps):
        total = (total * 31 + step(number)) % 2**64
        for array in kept:
            keep((1024,), (256,), (array, cupy.uint64(words), cupy.uint64(number)))
    for array in kept:
        total = (total * 31 + fold(array)) % 2**64
    print(json.dumps({"program": f"framework {options.kind}", "digest": f"{total:016x}"}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
