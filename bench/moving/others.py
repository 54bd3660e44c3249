# SPDX-License-Identifier: Apache-2.0
"""Like program.py, with CuPy, JAX or PyTorch: python -m bench.moving.others cupy|jax|torch GIB.

For each line of its input it changes all its memory and prints a checksum of all of it.
"""

import os
import sys
from collections.abc import Iterator

WORDS = 1 << 26                         # number of 4-byte words in each array


def cupy_steps(arrays: int) -> Iterator[int]:
    import cupy

    held = [cupy.arange(WORDS, dtype=cupy.uint32) + cupy.uint32(i) for i in range(arrays)]
    while True:
        for one in held:
            one *= cupy.uint32(2654435761)
            one ^= one >> cupy.uint32(13)
        yield sum(int(one.sum(dtype=cupy.uint64)) for one in held)


def jax_steps(arrays: int) -> Iterator[int]:
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    os.environ["CUDA_VISIBLE_DEVICES"] = "0"    # or JAX would make a context on each GPU
    import jax
    import jax.numpy as jnp

    held = [jnp.arange(WORDS, dtype=jnp.uint32) + jnp.uint32(i) for i in range(arrays)]
    change = jax.jit(lambda one: (one * jnp.uint32(2654435761)) ^ (one >> 13))
    fold = jax.jit(lambda one: jnp.sum(one ^ (one >> 7), dtype=jnp.uint32))
    while True:
        held = [change(one) for one in held]
        yield sum(int(fold(one)) for one in held)


def torch_steps(arrays: int) -> Iterator[int]:
    import torch

    held = [torch.arange(WORDS, dtype=torch.int32, device="cuda") + i for i in range(arrays)]
    while True:
        for one in held:
            one.mul_(1664525).add_(1013904223)
        yield sum(int(one.sum()) for one in held)


def main(kind: str, gib: float) -> None:
    steps = {"cupy": cupy_steps, "jax": jax_steps, "torch": torch_steps}[kind](round(gib * 4))
    print("ready", next(steps), flush=True)
    for _ in sys.stdin:
        print(next(steps), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
