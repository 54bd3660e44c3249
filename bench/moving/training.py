# SPDX-License-Identifier: Apache-2.0
"""A training that fills its memory and uses it: python -m bench.moving.training GPU GIB SECONDS.

It imports PyTorch, waits for a line, and then makes the number of steps that take about SECONDS
alone on an H100. Each step changes 256 MiB of its memory, so hand-overs copy that part again. Its
last line has a checksum, and the seconds since the line came.
"""

import sys
import time

import torch

SIZE, BATCH, STEP_S = 4096, 16384, 0.045    # seconds of a step in FP32, about


def main(gpu: int, gib: float, seconds: float) -> None:
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.monotonic()
    torch.cuda.set_device(gpu)
    torch.manual_seed(1)
    held = [torch.full((1 << 26,), float(i), device="cuda") for i in range(round(gib * 4))]
    weights = torch.randn(SIZE, SIZE, device="cuda") / SIZE**0.5
    data = torch.randn(BATCH, SIZE, device="cuda")
    for step in range(round(seconds / STEP_S)):
        for _ in range(4):
            data = torch.tanh(data @ weights)
        held[step % len(held)].add_(1.0)
        if step % 4 == 3:               # like a training that reads its loss
            float(data[0, 0])
    total = float(data.double().sum()) + sum(float(one.double().sum()) for one in held)
    print(total, time.monotonic() - began, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]))
