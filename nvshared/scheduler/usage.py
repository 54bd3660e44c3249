# SPDX-License-Identifier: Apache-2.0
"""What programs have used of a card: totals since each joined, kept for the history.

The time of the card is divided among the programs that hold it, equally at each moment, as the
card itself divides it. So the sum over all programs is the time in which anybody held the card,
however they are put together: by tenant, by user. `Division` finds each one's part in a step
when a gate opens or shuts, whatever the number of programs.
"""

from dataclasses import dataclass
from typing import NamedTuple

from nvshared.scheduler.events import Memory
from nvshared.units import MIB, SECOND

MIB_SECOND = MIB * SECOND               # as byte-microseconds


class Usage(NamedTuple):
    """Microseconds, bytes, and mebibytes times seconds."""

    gpu: int = 0                        # its part of the card's time
    held: int = 0                       # time with the gate open,
    waited: int = 0                     # and wanting it open
    turns: int = 0
    handovers: int = 0                  # turns for which memory had to move,
    handover: int = 0                   # and how long that took
    bytes_in: int = 0
    bytes_out: int = 0
    card_memory: int = 0
    host_memory: int = 0                # for what is away


@dataclass(slots=True)
class Division:
    """The card's time, among the programs whose gates are open."""

    holders: int = 0
    since: int = 0
    each: float = 0                     # what somebody who had held it all along would have

    def at(self, now: int) -> float:
        """The same at this moment."""
        return self.each + (now - self.since) / self.holders if self.holders else self.each

    def turn(self, now: int, more: int) -> float:
        """So many more hold it, or fewer. Returns what `each` is at this moment."""
        self.each, self.since = self.at(now), now
        self.holders += more
        return self.each


@dataclass(slots=True)
class Tally:
    """One program's figures that nobody else needs."""

    division: Division
    since: int                          # of its present figures of memory
    gpu: float = 0
    began: float = 0                    # `each`, when its gate opened
    taken_over: int = 0                 # turns that an earlier daemon began
    handovers: int = 0
    handover: int = 0
    card: int = 0                       # byte-microseconds
    host: int = 0

    def hold(self, now: int, more: int) -> None:
        """Its gate opens (1) or shuts (-1)."""
        each = self.division.turn(now, more)
        if more < 0:
            self.gpu += each - self.began
        self.began = each

    def fill(self, memory: Memory, now: int) -> None:
        """It has had this much until now."""
        passed, self.since = now - self.since, now
        self.card += passed * (memory.resident + memory.pinned)
        self.host += passed * memory.host
