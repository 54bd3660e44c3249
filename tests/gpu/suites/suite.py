# SPDX-License-Identifier: Apache-2.0
"""Runs tests of one framework in one process, and writes a line of JSON for each.

    suite.py {operators,primitives,numba} --output FILE [--count N] [--stain BYTE]
             [--ballast GIB]

The suites that frameworks install on users' machines:

operators   PyTorch: `op_db` of common_methods_invocations, some 700 operators with sample inputs,
            from which PyTorch's own tests are made. Each operator runs with float32 and with an
            integer or a half type: forward, and backward if it has a gradient, of all samples.
            PyTorch's wheel has no further tests.
primitives  JAX: `test_harnesses` of jax._src.internal_test_util, some 2800 calls of primitives
            with arguments. JAX's wheel has no further tests.
numba       numba-cuda: the whole suite `numba.cuda.tests`, as far as unittest finds it.

CuPy and Triton install tools for tests (cupy.testing, triton.testing) but no tests;
tests/gpu/programs has programs for CuPy and Triton.

--count N runs N tests, evenly spread, the same in each run. Before each test of `operators`, the
byte --stain is written to memory that is then freed: see outcome.py. The output of the tests goes
to stderr; the last line of stdout has the number of tests by outcome.
"""

import argparse
import collections
import hashlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.gpu.suites.ballast import Ballast
from tests.gpu.suites.outcome import Outcome


def outcomes(options: argparse.Namespace) -> Iterator[Outcome]:
    """The outcomes of the chosen tests, one after the other."""
    if options.suite == "operators":
        from tests.gpu.suites import operators

        yield from operators.run(options.count, options.stain)
    elif options.suite == "primitives":
        from tests.gpu.suites import primitives

        yield from primitives.run(options.count)
    else:
        from tests.gpu.suites import unittests

        unittests.prepare_numba()
        yield from unittests.run("numba.cuda.tests", options.count)


def held(ballast: Ballast) -> Outcome:
    """The ballast's digest as an outcome, to compare with the other runs."""
    digest = ballast.digest()
    if digest is None:
        return Outcome("ballast", "skipped", "a test has reset its context")
    return Outcome("ballast", "passed", digest=digest)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("suite", choices=["operators", "primitives", "numba"])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--count", type=int, default=sys.maxsize)
    parser.add_argument("--stain", type=int, default=1)
    parser.add_argument("--ballast", type=float, default=0.0, metavar="GIB")
    options = parser.parse_args()

    said = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    ballast = Ballast.take(int(options.ballast * 1024) << 20) if options.ballast > 0 else None
    kinds: collections.Counter[str] = collections.Counter()
    everything = hashlib.sha256()
    with options.output.open("w", encoding="utf-8") as file:
        for outcome in outcomes(options):
            file.write(outcome.line() + "\n")
            file.flush()                # the line is written even if the next test ends the process
            kinds[outcome.outcome] += 1
            everything.update(outcome.line().encode())
        if ballast is not None:
            file.write(held(ballast).line() + "\n")
    print(json.dumps({**kinds, "digest": everything.hexdigest()}), file=said, flush=True)


if __name__ == "__main__":
    main()
