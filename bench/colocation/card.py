# SPDX-License-Identifier: Apache-2.0
"""The card that is shared: a real one, or a simulated one on which all is smaller and shorter."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.trace import MEASURABLE
from nvshared.demo import gpu as demonstration
from nvshared.machine import host
from nvshared.units import GIB, MIB

CAPACITY = 16 * GIB                     # of the thesis's card, which the programs are to share
MOST = 0.9                              # of a card, where it has less than that
SIMULATED = 512 * MIB                   # a simulated card's memory,
SHRUNK = 1 / 128                        # what the programs have of the thesis's bytes there,
HASTE = 0.1                             # and how long everything takes there


@dataclass(frozen=True, slots=True)
class Card:
    """Sizes in bytes."""

    name: str
    simulated: bool
    why: str                            # it is simulated; "" for a real one
    total: int
    shrunk: float                       # bytes are the thesis's times this,
    haste: float                        # and seconds likewise
    budget: int                         # of host memory for what is swapped out
    environment: Mapping[str, str]      # of a program that has the card for itself

    @property
    def capacity(self) -> int:
        """What the thesis's programs share of it."""
        return self.bytes(CAPACITY)

    @property
    def measurable(self) -> int:
        """Bytes of a move that says something of speed."""
        return int(MEASURABLE * self.shrunk)

    def bytes(self, size: float) -> int:
        """The thesis's `size` as it is on this card, in whole megabytes."""
        return int(size * self.shrunk) // MIB * MIB

    @property
    def settings(self) -> dict[str, str]:
        """What a daemon for it is to know."""
        return {"swap_budget": str(self.budget)}


async def find(folder: Path, *, simulate: bool, budget: int | None) -> Card:
    """A real card if there is one that works, and it is wanted.

    `folder`: for a simulated one's state. `budget`: bytes of host memory; None: what is safe.
    """
    found = await demonstration.find(folder, simulate)
    memory = host.safe_budget() if budget is None else budget
    if found.simulated:
        return Card(
            "a simulated GPU", True, found.why, SIMULATED, SHRUNK, HASTE, memory,
            {**found.environment, "NVSHARE_SIM_MEMORY": str(SIMULATED)},
        )
    shrunk = min(1.0, MOST * found.total / CAPACITY)
    return Card(
        found.name, False, "", found.total, shrunk, 1.0, memory, found.environment
    )
