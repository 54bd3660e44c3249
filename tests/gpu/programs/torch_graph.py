# SPDX-License-Identifier: Apache-2.0
"""A CUDA graph captured once and replayed for a while, with pauses in which others get the card."""

import argparse
import json
import sys
import time

import torch


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=8.0)
    parser.add_argument("--replays", type=int, default=400)
    parser.add_argument("--pause-ms", type=float, default=10.0)
    options = parser.parse_args()

    torch.manual_seed(3)
    rows = int(options.gib * 2**30 / 4 / 8192 / 2)
    state = torch.randn(rows, 8192, device="cuda")
    other = torch.randn(rows, 8192, device="cuda")
    weight = torch.randn(8192, 64, device="cuda") / 91.0

    def step() -> None:
        low = state[:4096] @ weight
        state[:4096].addmm_(low, weight.t(), beta=0.5, alpha=0.5)
        other.mul_(0.999).add_(state, alpha=0.001)
        state.roll(1, 0)

    warm = torch.cuda.Stream()
    with torch.cuda.stream(warm):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(warm)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for _ in range(options.replays):
        graph.replay()
        if options.pause_ms:
            torch.cuda.synchronize()
            time.sleep(options.pause_ms / 1000)
    total = 0
    for number, tensor in enumerate((state, other)):
        for part in tensor.split(4096):
            bits = part.flatten().view(torch.int32).to(torch.int64)
            place = torch.arange(1, bits.numel() + 1, device="cuda", dtype=torch.int64)
            total = (total * 31 + int((bits * place).sum()) + number) % 2**64
    print(json.dumps({"program": "torch_graph", "digest": f"{total:016x}"}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
