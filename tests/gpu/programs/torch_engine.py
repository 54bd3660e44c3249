# SPDX-License-Identifier: Apache-2.0
"""An inference engine: phases of replays of a CUDA graph, which changes weights and a cache.

--saver: after each phase torch_memory_saver, which PYTHONPATH must contain, frees and restores the
weights and the cache.
"""

import argparse
import contextlib
import importlib
import json
import time
from typing import Any

import torch

from tests.gpu.programs.tensors import fold


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, required=True)
    parser.add_argument("--phases", type=int, default=8)
    parser.add_argument("--replays", type=int, default=40)
    parser.add_argument("--pause-ms", type=float, default=300.0, help="after each phase")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--saver", action="store_true")
    options = parser.parse_args()
    saver: Any = None
    if options.saver:
        saver = importlib.import_module("torch_memory_saver").torch_memory_saver

    def region(tag: str) -> contextlib.AbstractContextManager[None]:
        return saver.region(tag, enable_cpu_backup=True) if saver else contextlib.nullcontext()

    torch.manual_seed(options.seed)
    rows = int(options.gib * 2**30 / 4 / 8192 / 2)
    with region("weights"):
        weights = torch.randn(rows, 8192, device="cuda")
        small = torch.randn(8192, 64, device="cuda") / 91.0
    with region("cache"):
        cache = torch.randn(rows, 8192, device="cuda")
    addresses = weights.data_ptr(), cache.data_ptr()

    def step() -> None:
        low = weights[:4096] @ small
        weights[:4096].addmm_(low, small.t(), beta=0.5, alpha=0.5)
        cache.mul_(0.999).add_(weights, alpha=0.001)

    warm = torch.cuda.Stream()
    with torch.cuda.stream(warm):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(warm)
    graph = torch.cuda.CUDAGraph()
    with saver.cuda_graph(graph, tag="graph") if saver else torch.cuda.graph(graph):
        step()
    for _ in range(options.phases):
        for _ in range(options.replays):
            graph.replay()
        torch.cuda.synchronize()
        if saver:
            saver.pause("cache")
            saver.pause("weights")
        time.sleep(options.pause_ms / 1000)     # meanwhile the other program gets the card
        if saver:
            saver.resume("weights")
            saver.resume("cache")
    assert addresses == (weights.data_ptr(), cache.data_ptr())
    print(json.dumps({"digest": f"{fold(weights, cache):016x}"}))


if __name__ == "__main__":
    main()
