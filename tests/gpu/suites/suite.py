# SPDX-License-Identifier: Apache-2.0
"""Runs tests of one framework in one process, and writes a line of JSON for each.

    suite.py {operators,primitives,numba} --output FILE [--count N] [--stain BYTE]
             [--ballast GIB] [--device cuda]

What the frameworks ship for users' machines, and what of it is run:

operators   PyTorch: the operators' database, `op_db` of common_methods_invocations, which its
            own tests are made from: some 700 operators with their sample inputs. Each with
            float32 and with an integer or a half type: forward, and backward where there is
            one, of all samples. The rest of PyTorch's tests is not in its wheel.
primitives  JAX: `test_harnesses` of jax._src.internal_test_util, some 2800 calls of its
            primitives with arguments. The rest of JAX's tests is not in its wheel.
numba       numba-cuda: its whole suite, `numba.cuda.tests`, as far as unittest finds it.

CuPy ships what tests are written with (cupy.testing) but no tests, and so does Triton
(triton.testing); tests/gpu/programs has programs for these two.

--count takes so many tests, evenly spread, the same in each run. --stain is written to memory
that is then freed, before each test that can get it: see outcome.py. What tests themselves
print goes to stderr; the last line of stdout says how many passed.
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
    """Of the tests that were asked for, one after the other."""
    if options.suite == "operators":
        from tests.gpu.suites import operators

        yield from operators.run(options.count, options.device, options.stain)
    elif options.suite == "primitives":
        from tests.gpu.suites import primitives

        yield from primitives.run(options.count)
    else:
        from tests.gpu.suites import unittests

        unittests.prepare_numba()
        yield from unittests.run("numba.cuda.tests", options.count)


def held(ballast: Ballast) -> Outcome:
    """What has become of the ballast."""
    digest = ballast.digest()
    if digest is None:
        return Outcome("ballast", "skipped", "a test has reset its context")
    return Outcome("ballast", "passed", digest=digest)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("suite", choices=["operators", "primitives", "numba"])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--count", type=int, default=sys.maxsize)
    parser.add_argument("--stain", type=int, default=1)
    parser.add_argument("--ballast", type=float, default=0.0, metavar="GIB")
    parser.add_argument("--device", default="cuda")
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
    return 0


if __name__ == "__main__":
    sys.exit(main())
