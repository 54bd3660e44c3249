# SPDX-License-Identifier: Apache-2.0
"""A bar as wide as there is room: so much of this, so much of that, out of a whole."""

from nvshared.record import dataclass

NARROWEST = 8                           # characters


@dataclass(frozen=True, slots=True)
class Part:
    """An amount and how it is drawn. Told apart by the character, since colours may be missing."""

    amount: int
    character: str
    style: str


@dataclass(frozen=True, slots=True)
class Bar:
    """Parts of a whole. What is more than the whole does not fit into the bar."""

    whole: int
    parts: tuple[Part, ...]
    rest: str = " "                     # drawn where no part reaches

    def characters(self, width: int) -> list[int]:
        """How many of `width` characters each part gets; one at least if there is any of it."""
        found: list[int] = []
        reached, drawn = 0, 0
        for part in self.parts:
            reached += part.amount
            end = min(width, round(width * reached / max(1, self.whole)))
            count = max(end - drawn, 1 if part.amount else 0)
            found.append(min(count, width - drawn))
            drawn += found[-1]
        return found
