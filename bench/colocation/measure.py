# SPDX-License-Identifier: Apache-2.0
"""Measures the duration of programs that share a card: python -m bench.colocation.measure.

See docs/internals/benchmarks.md. Exit status 1 if a result differs from the result of the
program alone.
"""

import sys

from bench.colocation.notebooks import VARIANTS
from bench.colocation.thesis import PROGRAMS
from bench.handover.measure import Variants, main

ALL: Variants = {name: program.measure for name, program in PROGRAMS.items()}

if __name__ == "__main__":
    sys.exit(main(
        "colocation", "Measures programs that share a card; without --variant, all of it.",
        {**ALL, **VARIANTS}))
