# SPDX-License-Identifier: Apache-2.0
"""Two processes change one tensor in turns (torch.multiprocessing); a digest of every bit."""

import argparse
import json
import sys
from typing import Any

import torch
import torch.multiprocessing as mp


def work(tasks: Any, done: Any) -> None:
    """The other process: changes what it is given, where it lies."""
    while (task := tasks.get()) is not None:
        tensor, step = task
        tensor.mul_(3).add_(step)
        torch.cuda.synchronize()
        del tensor, task
        done.put(step)


def digest(tensor: torch.Tensor) -> str:
    total = 0
    for part in tensor.split(1 << 26):
        place = torch.arange(1, part.numel() + 1, device=part.device, dtype=torch.int64)
        total = (total * 31 + int((part * place).sum())) % 2**64
    return f"{total:016x}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=4.0, help="that is shared")
    parser.add_argument("--private-gib", type=float, default=4.0)
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()

    shared = torch.arange(int(options.gib * 2**27), dtype=torch.int64, device="cuda")
    private = torch.arange(int(options.private_gib * 2**27), dtype=torch.int64, device="cuda")
    context = mp.get_context("spawn")
    tasks, done = context.Queue(), context.Queue()
    other = context.Process(target=work, args=(tasks, done))
    other.start()
    for step in range(options.steps):
        tasks.put((shared, step))
        private.mul_(5).add_(step)
        assert done.get() == step
        shared ^= shared >> 7
    tasks.put(None)
    other.join()
    print(json.dumps({
        "program": "torch_share", "digest": digest(shared) + digest(private),
    }))
    return other.exitcode or 0


if __name__ == "__main__":
    sys.exit(main())
