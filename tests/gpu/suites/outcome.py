# SPDX-License-Identifier: Apache-2.0
"""The outcome of a test of a framework's suite, and the comparison of three runs of a suite.

A suite runs twice without the library and once with the library. Some tests have another outcome
in each run: tests that read unwritten memory, add floating point numbers in any order, or ask for
the time. The two runs without the library find these tests. Because unwritten memory often holds
the same bytes by chance, each run writes a byte of its own to memory and frees it (`suite.py`).
An outcome that is equal in both runs must be the same under the library.
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
        """The outcome as a line of JSON."""
        return json.dumps(asdict(self))

    def told(self) -> str:
        """The outcome as text for an error message."""
        return " ".join(filter(None, (self.outcome, self.digest[:16], self.reason)))


def first_line(text: str) -> str:
    """The first line that is not empty, at most 200 characters: later lines have addresses."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")[:200]


def parsed(lines: Iterable[str]) -> dict[str, Outcome]:
    """Outcomes of a run by the tests' names. A last line without its end does not count."""
    outcomes = {}
    for line in lines:
        if line.endswith("}\n"):
            outcome = Outcome(**json.loads(line))
            outcomes[outcome.name] = outcome
    return outcomes


def chosen(names: Iterable[str], count: int) -> list[str]:
    """`count` names, evenly spread over the sorted names; all names if `count` is larger.

    The same names in another order give the same result.
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
