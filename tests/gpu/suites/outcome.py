# SPDX-License-Identifier: Apache-2.0
"""What a test of a framework's suite came to, and how three runs of a suite are compared.

A suite is run twice without the library and once with it. Some tests do not come to the same
twice: those that read memory which nobody has written, that add floating point numbers in any
order, that ask for the time. Which these are is found out by the two runs, not by a list; and
since memory that nobody has written often holds the same by chance, each run stains it in a
way of its own (see `suite.py`). What both runs agree on must be so under the library as well.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

Kind = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One test of a suite in one run."""

    name: str
    outcome: Kind
    reason: str = ""                    # first line of the failure or of the reason to skip
    digest: str = ""                    # digest of all computed results; empty if unknown

    def line(self) -> str:
        """As a line of JSON."""
        return json.dumps(asdict(self))

    def told(self) -> str:
        """For people."""
        return " ".join(filter(None, (self.outcome, self.digest[:16], self.reason)))


def first_line(text: str) -> str:
    """What stands in the first line that is not empty; addresses and times are not in there."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")[:200]


def parsed(lines: Iterable[str]) -> dict[str, Outcome]:
    """What a run has written, by the tests' names. A last line that was cut off does not count."""
    outcomes = {}
    for line in lines:
        if line.endswith("}\n"):
            outcome = Outcome(**json.loads(line))
            outcomes[outcome.name] = outcome
    return outcomes


def chosen(names: Iterable[str], count: int) -> list[str]:
    """So many of them, evenly spread over their order; all if there are no more.

    The same names give the same choice, in whatever order they come.
    """
    every = sorted(set(names))
    if count >= len(every):
        return every
    return [every[number * len(every) // count] for number in range(count)]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Compares a run with the library and two runs without."""

    compared: int                       # number of tests with the same outcome in all runs
    unsettled: tuple[str, ...]          # tests that differed between runs without the library
    differences: tuple[str, ...]        # texts: test, outcome without and with the library

    @staticmethod
    def of(alone: Sequence[Mapping[str, Outcome]], shared: Mapping[str, Outcome]) -> "Comparison":
        """`alone`: the two runs without the library."""
        first, second = alone
        unsettled, differences = [], []
        for name in sorted(first.keys() | second.keys() | shared.keys()):
            one, other, found = first.get(name), second.get(name), shared.get(name)
            if one is None or other is None or one.outcome != other.outcome:
                unsettled.append(name)
            elif found is None:
                differences.append(f"{name}: {one.told()}; under the library it did not run")
            elif found.outcome != one.outcome:
                differences.append(f"{name}: {one.told()}; under the library {found.told()}")
            elif one.digest != other.digest:
                unsettled.append(name)
            elif found.digest != one.digest:
                differences.append(f"{name}: {one.told()}; under the library {found.told()}")
        compared = len(first) - len([name for name in unsettled if name in first])
        return Comparison(compared - len(differences), tuple(unsettled), tuple(differences))
