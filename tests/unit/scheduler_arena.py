# SPDX-License-Identifier: Apache-2.0
"""The fake hook's blocks, and the host memory they are swapped to.

Host memory is taken in slabs. A block that comes back keeps its place in one
for the next time, unless host memory is short; a slab goes when it is empty.
"""

from dataclasses import dataclass, field
from enum import Enum


class Location(Enum):
    """Where a block's bytes are."""

    EMPTY = "empty"                     # never loaded, so stored nowhere
    RESIDENT = "resident"
    SWAPPED = "swapped"
    STORED = "stored"                   # on the disk


@dataclass(eq=False)
class Slab:
    """Host memory taken in one piece."""

    size: int
    used: int = 0


@dataclass(eq=False)
class Block:
    """Part of the program's memory; it moves as a whole."""

    size: int
    location: Location = Location.EMPTY
    moving: bool = False
    doomed: bool = False                # freed while on the move
    slab: Slab | None = None
    saved: bool = False                 # its place holds the same as it
    filed: bool = False                 # it is in the file; if resident, a copy
    stale: bool = False                 # its copy there is


@dataclass(eq=False)
class Arena:
    """One client's host memory."""

    slabs: list[Slab] = field(default_factory=list)
    held: int = 0                       # sum over slabs

    def take(self, block: Block, allowance: int, grain: int) -> bool:
        """A place for a block. False: there is none within the allowance."""
        if block.slab is not None:
            return True
        slab = next((s for s in self.slabs if s.size - s.used >= block.size), None)
        if slab is None:
            size = min(grain, max(0, allowance - self.held))
            if size < block.size:
                return False
            slab = Slab(size)
            self.slabs.append(slab)
            self.held += size
        slab.used += block.size
        block.slab = slab
        return True

    def give(self, block: Block) -> None:
        """The block's place is free again."""
        if block.slab is not None:
            block.slab.used -= block.size
            block.slab = None
        block.saved = False

    def settle(self, blocks: list[Block], allowance: int) -> None:
        """Resident blocks, oldest first, give up their places until the allowance is kept."""
        for block in blocks:
            if self.held <= allowance:
                return
            if block.location is Location.RESIDENT and not block.moving:
                self.give(block)
                self.trim(allowance)

    def trim(self, allowance: int) -> None:
        """Empty slabs go until the allowance is kept."""
        for slab in self.slabs.copy():
            if slab.used == 0 and self.held > allowance:
                self.slabs.remove(slab)
                self.held -= slab.size
