# SPDX-License-Identifier: Apache-2.0
"""Two processes alternately change one tensor (torch.multiprocessing); a digest of all bits."""

import argparse
import json
import sys
from typing import Any

import torch
import torch.multiprocessing as mp

from tests.gpu.programs.tensors import fold


def work(tasks: Any, done: Any) -> None:
    """The other process: changes each tensor of `tasks` in place."""
    while (task := tasks.get()) is not None:
        tensor, step = task
        tensor.mul_(3).add_(step)
        torch.cuda.synchronize()
        del tensor, task
        done.put(step)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, required=True, help="that is shared")
    parser.add_argument("--private-gib", type=float, required=True)
    parser.add_argument("--steps", type=int, required=True)
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
    print(json.dumps({"digest": f"{fold(shared, private):016x}"}))
    return other.exitcode or 0


if __name__ == "__main__":
    sys.exit(main())
