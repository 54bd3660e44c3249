# SPDX-License-Identifier: Apache-2.0
"""A model that answers questions: constant weights, small activations; a digest of both."""

import argparse
import json
import time

import torch

from tests.gpu.programs.tensors import fold

GIB, SPARE_GIB = 12, 2                  # of weights; of memory that is zeroed and not changed
QUESTIONS = 100                         # number of answers in the digest
WIDTH = 8192


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--seed", type=int, required=True)
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    spare = torch.zeros(SPARE_GIB * 2**28, device="cuda")
    weights = [torch.randn(WIDTH, WIDTH, device="cuda", dtype=torch.float16) / WIDTH**0.5
               for _ in range(GIB * 2**30 // 2 // WIDTH // WIDTH)]
    total, asked, began = 0, 0, time.monotonic()
    while asked < QUESTIONS or time.monotonic() - began < options.seconds:
        question = torch.full((16, WIDTH), asked % 7 - 3, device="cuda", dtype=torch.float16)
        for weight in weights:
            question = torch.tanh(question @ weight)
        asked += 1
        if asked <= QUESTIONS:
            total = (total * 31 + fold(question)) % 2**64
    assert not spare.any()
    print(json.dumps({"digest": f"{total:016x}{fold(*weights):016x}"}))


if __name__ == "__main__":
    main()
