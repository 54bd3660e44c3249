# SPDX-License-Identifier: Apache-2.0
"""Two processes, each on a card of its own, sum by NCCL; a digest of all bits of both."""

import argparse
import json
import os
import sys
from typing import Any

# Not every machine with several cards allows NVLink multicast to a tenant.
os.environ.setdefault("NCCL_NVLS_ENABLE", "0")

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from tests.gpu.programs.tensors import fold


def work(rank: int, options: argparse.Namespace, port: int, results: Any) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=2)
    count = int(options.gib * 2**27)
    mine = torch.arange(count, dtype=torch.int64, device="cuda") * (rank + 1)
    private = torch.arange(count, dtype=torch.int64, device="cuda") + rank
    for step in range(options.steps):
        dist.all_reduce(mine)
        mine ^= (mine >> 9) + rank + step
        private.mul_(5).add_(mine)
    digest = f"{fold(mine, private):016x}"
    dist.destroy_process_group()
    results.put((rank, digest))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=1.0, help="of each of a card's two tensors")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--port", type=int, default=29517)
    options = parser.parse_args()
    context = mp.get_context("spawn")
    results = context.Queue()
    ranks = [
        context.Process(target=work, args=(rank, options, options.port, results))
        for rank in (0, 1)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    codes = [rank.exitcode for rank in ranks]
    if any(codes):
        print(f"the ranks ended with {codes}", file=sys.stderr)
        return 1
    found = dict(results.get() for _ in ranks)
    print(json.dumps({"digest": found[0] + found[1]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
