# SPDX-License-Identifier: Apache-2.0
"""A program that is saved: python -m bench.saving.program torch|cupy FOLDER GIB.

For each file FOLDER/step-0, step-1, ... it makes a step and writes a checksum to out-0, out-1, ...
It has no pipe, which CRIU could not restore the other end of.
"""

import importlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

WORDS = 1 << 26                         # of 4 bytes in each block of memory


def torch_steps(gib: float) -> Callable[[], str]:
    """A training with Adam, and a captured CUDA graph of the same model."""
    torch: Any = importlib.import_module("torch")
    torch.manual_seed(1)
    linear = torch.nn.Linear
    model = torch.nn.Sequential(linear(4096, 4096), torch.nn.GELU(), linear(4096, 4096)).to("cuda")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    held = [torch.full((WORDS,), float(i), device="cuda") for i in range(round(gib * 4))]
    data = torch.randn(512, 4096, device="cuda")

    def train() -> None:
        optimizer.zero_grad()
        (model(data) ** 2).mean().backward()
        optimizer.step()

    for _ in range(3):
        train()
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad():
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            model(data)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            result = model(data)

    def step() -> str:
        train()
        graph.replay()
        total = sum(float(one[::4096].sum()) for one in held)
        return f"{total!r} {float(result.double().sum())!r}"

    return step


def cupy_steps(gib: float) -> Callable[[], str]:
    cupy: Any = importlib.import_module("cupy")
    held = [cupy.full((WORDS,), float(i), dtype=cupy.float32) for i in range(round(gib * 4))]
    matrix = cupy.arange(1 << 20, dtype=cupy.float32).reshape(1024, 1024) / (1 << 20)

    def step() -> str:
        nonlocal matrix
        for one in held:
            one += 1
        matrix = (matrix @ matrix) % 1
        total = sum(float(one[::4096].sum()) for one in held)
        return f"{total!r} {float(matrix.sum())!r}"

    return step


def main(kind: str, folder: Path, gib: float) -> None:
    step = {"torch": torch_steps, "cupy": cupy_steps}[kind](gib)
    number = 0
    while True:
        while not (folder / f"step-{number}").exists():
            time.sleep(0.02)
        (folder / "fresh").write_text(step())
        (folder / "fresh").rename(folder / f"out-{number}")
        number += 1


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]))
