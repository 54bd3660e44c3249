# SPDX-License-Identifier: Apache-2.0
"""How long moves in one direction may still wait for a program that copies; see bus_sharing.py.

It is a store of time. The store empties while moves wait and fills while they do not, equally
fast and up to BURST. So over any time they wait at most half of it plus BURST, whoever reports
what and however often.
"""

from dataclasses import dataclass, replace

from nvshared.units import MILLISECOND

BURST = 500 * MILLISECOND               # that they may wait in a row,
WORTH = 100 * MILLISECOND               # and with less left than this they do not begin to
REST = 10 * MILLISECOND                 # between two times, so that each gets them somewhere


@dataclass(frozen=True, slots=True)
class Yielding:
    """As it was at a moment."""

    left: int = BURST
    giving: bool = False                # they wait
    at: int = 0                         # the moment
    since: int = -REST                  # when `giving` became what it is

    def until(self, now: int) -> "Yielding":
        """As it is now, if nothing else has changed."""
        passed = now - self.at
        left = self.left - passed if self.giving else self.left + passed
        return replace(self, left=min(max(left, 0), BURST), at=now)

    def turned(self) -> "Yielding":
        """They begin to wait, or end."""
        return replace(self, giving=not self.giving, since=self.at)

    @property
    def begins(self) -> int:
        """When, as things stand, they may begin to wait at the earliest."""
        return max(self.since + REST, self.at + max(0, WORTH - self.left))

    @property
    def ends(self) -> int:
        """When they must end it."""
        return self.at + self.left
