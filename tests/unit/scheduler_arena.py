# SPDX-License-Identifier: Apache-2.0
"""The model hook's blocks, and the host memory they are swapped to.

Host memory is allocated in slabs. A loaded block keeps its space in a slab for the
next eviction, unless host memory is short; an empty slab is freed.
"""

from dataclasses import dataclass, field
from enum import Enum


class Location(Enum):
    EMPTY = "empty"                     # never written, so it has no content
    RESIDENT = "resident"
    SWAPPED = "swapped"
    STORED = "stored"                   # in the disk file


@dataclass(eq=False)
class Slab:
    size: int
    used: int = 0


@dataclass(eq=False)
class Block:
    """Part of the program's memory; it moves as a whole."""

    size: int
    location: Location = Location.EMPTY
    moving: bool = False
    doomed: bool = False                # freed by the program during its move
    slab: Slab | None = None
    saved: bool = False                 # clean: its host copy is current
    filed: bool = False                 # the disk file has a copy of it
    stale: bool = False                 # the copy in the disk file is outdated


@dataclass(eq=False)
class Arena:
    """One client's host memory."""

    slabs: list[Slab] = field(default_factory=list)
    held: int = 0                       # bytes of all slabs

    def take(self, block: Block, allowance: int, grain: int) -> bool:
        """Reserve host memory for a block. False: the allowance has no space for the block."""
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
        if block.slab is not None:
            block.slab.used -= block.size
            block.slab = None
        block.saved = False

    def settle(self, blocks: list[Block], allowance: int) -> None:
        """Free host memory of resident blocks, oldest first, until the allowance is kept."""
        trimmed = False
        for block in blocks:
            if self.held <= allowance:
                return
            if block.location is Location.RESIDENT and not block.moving:
                slab = block.slab
                self.give(block)
                if not trimmed or (slab is not None and not slab.used):
                    self.trim(allowance)
                    trimmed = True

    def trim(self, allowance: int) -> None:
        for slab in self.slabs.copy():
            if slab.used == 0 and self.held > allowance:
                self.slabs.remove(slab)
                self.held -= slab.size
