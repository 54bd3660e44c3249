# SPDX-License-Identifier: Apache-2.0
"""The base of the scheduler's records. A record is declared in the module that alone changes it.
If only modules above that module read a record, the record is kept in Records.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from nvshared.units import SECOND

RECENT = 4                              # a new measurement has a weight of at least 1/4
FAR = 4.0                               # a measurement counts as 1/4 to 4 times the average
# Bytes per microsecond. PCI Express 3, 4 and 5 copy 12,000, 25,000 and 50,000. With the middle
# speed as the start value, a first turn is at worst half or twice as long as it should be.
USUAL_SPEED = 25_000
FAST = 20 * USUAL_SPEED                 # a faster average counts as this when outliers are clamped

T = TypeVar("T")


class Direction(Enum):
    """The direction of a move: off the card or onto the card."""

    OUT = "EVICT"
    IN = "LOAD"


class Records(dict[type, Any]):
    """The records that modules keep of one client, or of one card."""

    def of(self, kind: type[T]) -> T:
        """The record of this kind; made when it is first asked for."""
        if kind not in self:
            self[kind] = kind()
        found: T = self[kind]
        return found


@dataclass(slots=True)
class Counting:
    """Marks the client for recounting (groups.Groups) when a field changes."""

    id: int                             # the client's id
    touched: set[int]                   # ids of clients that changed

    def __setattr__(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)
        if name not in ("id", "touched"):
            self.touched.add(self.id)


@dataclass(frozen=True, slots=True)
class Average:
    """A running average of `number` measurements, at most RECENT. The first replaces the start
    value. Outliers (the host was paging, a load was repeated) are clamped to FAR times the average.
    """

    value: float
    least: float                        # smaller averages count as this when outliers are clamped
    number: int = 0

    def after(self, measured: float) -> "Average":
        """The average with one more measurement."""
        if self.number:
            most = max(self.value, self.least) * FAR
            measured = min(max(measured, self.value / FAR), most)
        number = min(self.number + 1, RECENT)
        return Average(self.value + (measured - self.value) / number, self.least, number)


PACE = Average(1 / USUAL_SPEED, 1 / FAST)       # us per byte of a hand-over; see turns.py
PAUSE = Average(0, SECOND)              # us that a client stays idle between two turns: ahead.py


@dataclass(frozen=True, slots=True)
class Pauses:
    """How long a client pauses between two uses of the card; us. See ahead.py."""

    usual: Average = PAUSE
    spread: Average = PAUSE             # deviation of pauses from `usual`

    def after(self, pause: int) -> "Pauses":
        """The averages with one more pause."""
        known, far = self.usual.number, abs(pause - self.usual.value)
        return Pauses(self.usual.after(pause), self.spread.after(far) if known else self.spread)

    def left(self, since: int) -> float:
        """The us for which a pause that began `since` us ago will probably still last."""
        usual = self.usual.value
        spread = self.spread.value if self.spread.number else usual
        return max(abs(usual - since), spread)


@dataclass(slots=True)
class Backoff:
    """A pause after a failure, twice as long after each further failure in a row; us."""

    least: int
    most: int
    until: int = 0                      # the order is not tried again before this time
    length: int = 0

    def fail(self, now: int) -> None:
        """Begins the pause after another failure."""
        self.length = min(max(2 * self.length, self.least), self.most)
        self.until = now + self.length

    def reset(self) -> None:
        """The next pause is the shortest again."""
        self.length = 0

    def retry_at(self, moment: int) -> None:
        """Lets the next try be made from the time `moment` on."""
        self.until = moment
