# SPDX-License-Identifier: Apache-2.0
"""JAX's test calls of its primitives (`test_harnesses`), each with a digest of the results."""

import hashlib
import zlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy
from jax._src.internal_test_util import test_harnesses

from tests.gpu.suites.outcome import Outcome, chosen, first_line


def bits(value: Any) -> bytes:
    """Type, shape and all bits of an array; of a random key, the bits of the key's numbers."""
    if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    array = numpy.asarray(value)
    return f"{array.dtype} {array.shape}".encode() + bytes(array.tobytes())


def digest_of(harness: Any) -> str:
    """A digest of all results of the compiled call. Raises JAX's exceptions."""
    random = numpy.random.RandomState(zlib.crc32(harness.fullname.encode()))
    arguments = harness.dyn_args_maker(random)
    results = jax.jit(harness.dyn_fun)(*arguments)
    digest = hashlib.sha256()
    for leaf in jax.tree_util.tree_leaves(results):
        digest.update(bits(leaf))
    return digest.hexdigest()


def run(count: int) -> Iterator[Outcome]:
    """The outcomes of `count` calls."""
    tests = {harness.fullname: harness for harness in test_harnesses.all_harnesses}
    for name in chosen(tests, count):
        try:
            yield Outcome(name, "passed", digest=digest_of(tests[name]))
        # Any exception is an outcome: it must be the same with the library.
        except Exception as error:
            yield Outcome(name, "failed", first_line(f"{type(error).__name__}: {error}"))
