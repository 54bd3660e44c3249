# SPDX-License-Identifier: Apache-2.0
"""A framework or library computes while CuPy changes further memory; a digest of all results.

    framework.py {amp,triton,numba,libraries}

Sums of floating point numbers in no fixed order are sums of small integers: exact in any order.
"""

import json
import os
import sys
from collections.abc import Callable
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import cupy
import torch

from tests.gpu.programs.arrays import WORDS, change, fold

STEPS, GIB = 600, 6


def amp() -> Callable[[int], int]:
    """Mixed precision, gradient scaling, and a loader with workers and pinned memory."""
    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True)
    model = torch.nn.Sequential(
        torch.nn.Linear(2048, 4096), torch.nn.GELU(), torch.nn.LayerNorm(4096),
        torch.nn.Linear(4096, 2048),
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler()
    rows = torch.randn(64 * STEPS, 2048, generator=torch.Generator().manual_seed(2))
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
        if number < STEPS - 1:
            return 0
        return sum(fold(parameter.detach()) for parameter in model.parameters())

    return step


def triton() -> Callable[[int], int]:
    from tests.gpu.programs.mixing import mix

    data = torch.arange(1 << 26, dtype=torch.int64, device="cuda")

    def step(number: int) -> int:
        mix[(data.numel() // 1024,)](data, data.numel(), number, size=1024)
        return fold(data) if number % 50 == 49 else 0

    return step


def numba() -> Callable[[int], int]:
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


def libraries() -> Callable[[int], int]:
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


def main() -> None:
    kind = sys.argv[1]
    kept = [cupy.arange(WORDS, dtype=cupy.uint64) + number for number in range(GIB * 2)]
    step = {"amp": amp, "triton": triton, "numba": numba, "libraries": libraries}[kind]()
    total = 0
    for number in range(STEPS):
        total = (total * 31 + step(number)) % 2**64
        for array in kept:
            change(array, number)
    for array in kept:
        total = (total * 31 + fold(array)) % 2**64
    print(json.dumps({"digest": f"{total:016x}"}))


if __name__ == "__main__":
    main()
