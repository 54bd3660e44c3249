# SPDX-License-Identifier: Apache-2.0
"""The command line of benchmarks that print a table and JSON, and the file with the JSON."""

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bench.harness import ROOT, machine
from nvshared import quantity
from nvshared.errors import NvshareError

RESULTS = ROOT / "bench" / "results"


def kept(name: str, where: Mapping[str, Any]) -> Path:
    """The path of a new file in bench/results/. `where`: the result of harness.machine()."""
    stamp = str(where["date"]).replace(":", "").replace("-", "")[:15]
    return RESULTS / f"{name}-{stamp}.json"


def checked(parse: Callable[[str], Any], least: int = 0) -> Callable[[str], Any]:
    """`parse` of nvshared/quantity.py as a type of argparse, for values of at least `least`."""

    def convert(text: str) -> Any:
        try:
            value = parse(text)
            if value < least:
                raise ValueError(f"give {least} or more")
        except ValueError as wrong:
            raise argparse.ArgumentTypeError(f"{text!r}: {wrong}") from None
        return value

    return convert


def parser(module: str, description: str | None) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog=f"python -m {module}", description=description, allow_abbrev=False)
    made.add_argument(
        "--output", type=Path, metavar="FILE", help="where to keep the JSON; in bench/results/")
    return made


def rounds(module: str, description: str | None, rounds: int, least: int = 1) -> argparse.Namespace:
    """Parses the options `rounds` and `output`; ends the program if one is invalid."""
    made = parser(module, description)
    made.add_argument(
        "--rounds", type=checked(quantity.positive, least), default=rounds, metavar="N",
        help=f"of each way; {rounds}")
    return made.parse_args()


def publish(name: str, measure: Callable[[], tuple[dict[str, Any], str]],
            output: Path | None) -> int:
    """Measures, prints the results and stores them in a file. Returns the exit status.

    `measure`: returns the document for JSON, and the table for people.
    """
    try:
        document, table = measure()
    except NvshareError as error:
        print(error, file=sys.stderr)
        return int(error.exit_code)
    where = machine()
    text = json.dumps({"machine": where, **document}, indent=1)
    print(f"{where['cpu']}, {where['cores']} cores, Linux {where['kernel']}, {where['date']}\n")
    print(f"{table}\n\n{text}")
    (output or kept(name, where)).write_text(text + "\n")
    return 0
