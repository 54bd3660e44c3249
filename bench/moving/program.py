# SPDX-License-Identifier: Apache-2.0
"""A PyTorch program with an optimiser and a captured graph: python -m bench.moving.program GIB.

For each line of its input it makes a step and prints a checksum and the step's seconds.
"""

import sys
import time

import torch


def main(gib: float) -> None:
    torch.manual_seed(1)
    device, size = "cuda", 4096
    held = [torch.full((1 << 26,), float(i), device=device) for i in range(round(gib * 4))]
    model = torch.nn.Sequential(
        torch.nn.Linear(size, size), torch.nn.GELU(), torch.nn.Linear(size, size)).to(device)
    optimiser = torch.optim.Adam(model.parameters())
    data = torch.randn(512, size, device=device)

    def step() -> None:
        (model(data) ** 2).mean().backward()
        optimiser.step()
        optimiser.zero_grad()

    for _ in range(3):
        step()
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.no_grad(), torch.cuda.graph(graph):
        out = model(data)

    def work() -> float:
        graph.replay()
        return float(out.double().sum()) + sum(float(one.double().sum()) for one in held)

    print("ready", work(), flush=True)
    for _ in sys.stdin:
        began = time.monotonic()
        result = work()
        print(result, time.monotonic() - began, flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]))
