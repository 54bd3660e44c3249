# SPDX-License-Identifier: Apache-2.0
"""The command line of benchmarks that measure each way in rounds."""

import argparse
from pathlib import Path

from nvshared import quantity


def options(
    module: str, description: str | None, rounds: int, fewest: int = 1
) -> argparse.Namespace:
    """Its `rounds`, `fewest` of them or more, and `output`; ends the program with one line if
    something makes no sense."""

    def count(text: str) -> int:
        try:
            if (number := quantity.positive(text)) < fewest:
                raise ValueError(f"give {fewest} or more")
            return number
        except ValueError as wrong:
            raise argparse.ArgumentTypeError(f"{text!r}: {wrong}") from None

    parser = argparse.ArgumentParser(
        prog=f"python -m {module}", description=description, allow_abbrev=False
    )
    parser.add_argument(
        "--rounds", type=count, default=rounds, metavar="N", help=f"of each way; {rounds}"
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="where to keep the JSON; in bench/results/"
    )
    return parser.parse_args()
