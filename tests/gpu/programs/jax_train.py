# SPDX-License-Identifier: Apache-2.0
"""A JAX program that keeps changing the memory asked for; a digest of all bits of the memory."""

import argparse
import json
import os

os.environ.setdefault("XLA_FLAGS", "--xla_gpu_deterministic_ops=true")

import jax
import jax.numpy as jnp


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, required=True)
    parser.add_argument("--steps", type=int, required=True)
    options = parser.parse_args()

    width = 8192
    count = max(1, int(options.gib * 2**30 / 4 / width / width))
    keys = jax.random.split(jax.random.PRNGKey(1), count)
    weights = [jax.random.normal(key, (width, width), jnp.float32) / width**0.5 for key in keys]
    data = jax.random.normal(keys[0], (64, width), jnp.float32)

    def loss(weight: jax.Array, inputs: jax.Array) -> jax.Array:
        return jnp.mean((jnp.tanh(inputs @ weight) - inputs) ** 2)

    def update_one(weight: jax.Array, inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
        gradient = jax.grad(loss)(weight, inputs)
        return weight - 0.1 * gradient, jnp.tanh(inputs @ weight)

    def fold_one(weight: jax.Array) -> jax.Array:
        bits = jax.lax.bitcast_convert_type(weight, jnp.uint32).ravel()
        place = jnp.arange(1, bits.size + 1, dtype=jnp.uint32) * jnp.uint32(2654435761)
        return jnp.stack([jnp.sum(bits * place), jnp.sum((bits ^ (bits >> 9)) * (place | 1))])

    update, fold = jax.jit(update_one), jax.jit(fold_one)
    for step in range(options.steps):
        inputs = data
        for index in range(count):
            weights[index], inputs = update(weights[index], inputs)
        if step % 4 == 0:
            inputs.block_until_ready()
    digest = "".join(f"{int(word):08x}" for weight in weights for word in fold(weight))
    print(json.dumps({"digest": digest}))


if __name__ == "__main__":
    main()
