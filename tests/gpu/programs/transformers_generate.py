# SPDX-License-Identifier: Apache-2.0
"""A language model of Hugging Face's Transformers that answers requests, one after the other.

Random weights in bfloat16 fill the memory asked for. Prints a digest of all generated tokens.
"""

import os

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import argparse
import hashlib
import json
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM

PROMPT, VOCABULARY, ANSWER = 32, 32_000, 32     # numbers of tokens
REQUESTS, PAUSE_S, WIDTH = 12, 0.05, 4096


def model(gib: float) -> LlamaForCausalLM:
    """A Llama model with as many layers as fit into `gib`."""
    layer = 2 * WIDTH * WIDTH * (4 + 3 * 4)     # bytes: attention, and the wider part
    config = LlamaConfig(
        hidden_size=WIDTH, intermediate_size=4 * WIDTH, num_attention_heads=WIDTH // 128,
        num_key_value_heads=WIDTH // 128, num_hidden_layers=max(1, int(gib * 2**30 / layer)),
        vocab_size=VOCABULARY, bos_token_id=1, eos_token_id=None, pad_token_id=0,
    )
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        return LlamaForCausalLM(config).eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    torch.use_deterministic_algorithms(True)
    served = model(options.gib)
    digest = hashlib.sha256()
    for number in range(REQUESTS):
        prompt = torch.arange(PROMPT).add(977 * number).remainder(VOCABULARY - 2).add(2)
        with torch.inference_mode():
            answer = served.generate(
                prompt[None].to(served.device), max_new_tokens=ANSWER, do_sample=False)
        digest.update(answer.cpu().numpy().tobytes())
        time.sleep(PAUSE_S)
    print(json.dumps({"digest": digest.hexdigest()}))


if __name__ == "__main__":
    main()
