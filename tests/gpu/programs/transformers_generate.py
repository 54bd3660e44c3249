# SPDX-License-Identifier: Apache-2.0
"""A language model of Hugging Face's Transformers that answers requests, one after the other.

Weights are random, in bfloat16, and fill the memory asked for. Prints one JSON line: a digest of
all tokens that it generated, and how long an answer took.
"""

import os

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import argparse
import hashlib
import json
import statistics
import sys
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM

PROMPT, VOCABULARY = 32, 32_000         # tokens


def model(gib: float, width: int) -> LlamaForCausalLM:
    """A Llama model with as many layers as fit."""
    layer = 2 * width * width * (4 + 3 * 4)     # bytes: attention, and the wider part
    config = LlamaConfig(
        hidden_size=width, intermediate_size=4 * width, num_attention_heads=width // 128,
        num_key_value_heads=width // 128, num_hidden_layers=max(1, int(gib * 2**30 / layer)),
        vocab_size=VOCABULARY, bos_token_id=1, eos_token_id=None, pad_token_id=0,
    )
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        return LlamaForCausalLM(config).eval()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=12.0)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--requests", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=32, help="of each answer")
    parser.add_argument("--pause-ms", type=float, default=50.0, help="between requests")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    torch.use_deterministic_algorithms(True)
    served = model(options.gib, options.width)
    digest, took = hashlib.sha256(), []
    for number in range(options.requests):
        prompt = torch.arange(PROMPT).add(977 * number).remainder(VOCABULARY - 2).add(2)
        began = time.monotonic()
        with torch.inference_mode():
            answer = served.generate(
                prompt[None].to(served.device), max_new_tokens=options.tokens, do_sample=False)
        digest.update(answer.cpu().numpy().tobytes())
        took.append(time.monotonic() - began)
        time.sleep(options.pause_ms / 1000)
    print(json.dumps({
        "program": "transformers_generate", "digest": digest.hexdigest()[:32],
        "median_answer_s": statistics.median(took[1:] or took),
        "bytes": sum(one.nbytes for one in served.parameters()),
    }))
    return 0


if __name__ == "__main__":
    sys.exit(main())
