# SPDX-License-Identifier: Apache-2.0
"""A training that fills the memory asked for: weights, gradients and both of Adam's moments.

Prints one JSON line: a digest over all bits of the trained state, and times.
The same arguments give the same digest on the same card, alone or shared.
A test runs the text of this file as a user without access to other files of this folder.
"""

import os

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import argparse
import json
import statistics
import time

import torch

LAYERS, BATCH = 5, 256
BYTES_PER_WEIGHT = 16                   # weight, gradient, two moments; four bytes each


def digest(tensors: list[torch.Tensor]) -> str:
    """128 bits over all bits: two sums modulo 2**64, with a different factor for each position."""
    first = second = 0
    for number, tensor in enumerate(tensors):
        for offset, part in enumerate(tensor.detach().flatten().split(1 << 26)):
            bits = part.view(torch.int32).to(torch.int64)
            place = torch.arange(1, bits.numel() + 1, device=bits.device, dtype=torch.int64)
            salt = number * 1_000_003 + offset * 7919 + 1
            first += int((bits * place).sum()) * salt
            second += int(((bits ^ (bits >> 7)) * (place * place + salt)).sum())
    return f"{first % 2**64:016x}{second % 2**64:016x}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=16.0, help="memory for the trained state")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cpu-ms", type=float, default=0.0, help="time on the CPU in each step")
    parser.add_argument("--compile", action="store_true", help="with torch.compile")
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    torch.use_deterministic_algorithms(True)
    width = int((options.gib * 2**30 / LAYERS / BYTES_PER_WEIGHT) ** 0.5) // 256 * 256
    with torch.device("cuda"):
        layers: list[torch.nn.Module] = []
        for _ in range(LAYERS):
            layers += [torch.nn.Linear(width, width, bias=False), torch.nn.GELU()]
        model = torch.nn.Sequential(*layers)
        data = torch.randn(BATCH, width)
        wanted = torch.randn(BATCH, width)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
    forward = torch.compile(model) if options.compile else model

    losses, times = [], []
    began = time.monotonic()
    for _ in range(options.steps):
        step_began = time.monotonic()
        loss = torch.nn.functional.mse_loss(forward(data), wanted)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        if options.cpu_ms:
            end = time.monotonic() + options.cpu_ms / 1000
            while time.monotonic() < end:
                pass
        times.append(time.monotonic() - step_began)
    seconds = time.monotonic() - began
    state = [*model.parameters()]
    for entry in optimizer.state.values():
        state += [entry["exp_avg"], entry["exp_avg_sq"]]
    print(json.dumps({
        "digest": digest(state),
        "last_loss": losses[-1],
        "seconds": seconds,
        "median_step_ms": statistics.median(times) * 1000,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
    }))


if __name__ == "__main__":
    main()
