# SPDX-License-Identifier: Apache-2.0
"""A model that answers questions: weights that never change, a little that does; a digest."""

import argparse
import json
import sys
import time

import torch


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=12.0, help="of weights")
    parser.add_argument("--spare-gib", type=float, default=2.0, help="reserved and never written")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--questions", type=int, default=100, help="that count for the digest")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    width = 8192
    spare = torch.zeros(int(options.spare_gib * 2**28), device="cuda")
    weights = [torch.randn(width, width, device="cuda", dtype=torch.float16) / width**0.5
               for _ in range(int(options.gib * 2**30 / 2 / width / width))]
    total, asked, began = 0, 0, time.monotonic()
    while asked < options.questions or time.monotonic() - began < options.seconds:
        question = torch.full((16, width), asked % 7 - 3, device="cuda", dtype=torch.float16)
        for weight in weights:
            question = torch.tanh(question @ weight)
        asked += 1
        if asked <= options.questions:
            total = (total * 31 + int(question.view(torch.int16).to(torch.int64).sum())) % 2**64
    for weight in weights:
        total = (total * 31 + int(weight.view(torch.int16).to(torch.int64).sum())) % 2**64
    assert not spare.any()
    print(json.dumps({"program": "torch_infer", "digest": f"{total:016x}", "questions": asked}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
