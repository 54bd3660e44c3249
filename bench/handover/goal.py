# SPDX-License-Identifier: Apache-2.0
"""A figure and what it should be."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Goal:
    """One line of the table."""

    what: str
    value: float | None                 # None: nothing of that kind happened
    unit: str
    least: float | None = None          # it should be at least this,
    most: float | None = None           # or at most this; neither: it is there for scale

    @property
    def met(self) -> bool | None:
        """None: there is nothing to be met."""
        if self.least is None and self.most is None:
            return None
        if self.value is None:
            return False
        return (
            (self.least is None or self.value >= self.least)
            and (self.most is None or self.value <= self.most)
        )

    def report(self) -> dict[str, Any]:
        """For programs."""
        return {**asdict(self), "met": self.met}


@dataclass(frozen=True, slots=True)
class Result:
    """What one run of programs gave."""

    variant: str
    setting: str                        # of the variant, in words; "" if it has one alone
    goals: tuple[Goal, ...]
    figures: dict[str, Any]
    wrong: tuple[str, ...]              # what programs said that did not end with the right data
    drawing: Mapping[str, Sequence[float]] = field(default_factory=dict)    # see cli/history.py
    marks: Sequence[tuple[float, str]] = ()     # along it

    def report(self) -> dict[str, Any]:
        """For programs."""
        return {
            "variant": self.variant, "setting": self.setting, "right": not self.wrong,
            "wrong": list(self.wrong), "goals": [goal.report() for goal in self.goals],
            "figures": self.figures,
        }
