# SPDX-License-Identifier: Apache-2.0
"""Lines of a screen: cut, filled up, framed, in columns, with bars and graphs. None is too wide."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rich.text import Text

from nvshared.tui.tables import Give, fitted, shortened

NARROWEST_BAR = 8                       # characters
LEVELS = " ▁▂▃▄▅▆▇█"
FULL = len(LEVELS) - 1                  # parts of a character
GAP = 1
PART_OF_LINE = 6                        # a bar is at least so large a part of a wide line


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


def fit(what: Text | str, width: int, *, right: bool = False) -> Text:
    """Exactly so wide: cut at its end, or filled up with blanks."""
    line = Text(what) if isinstance(what, str) else what.copy()
    if "\n" in line.plain:
        line = Text(" ", style=line.style).join(line.split("\n"))
    if line.cell_len > width:
        line.truncate(max(0, width), overflow="ellipsis")
    blanks = " " * max(0, width - line.cell_len)
    return Text.assemble(blanks, line) if right else line.append(blanks)


def bar(what: Bar, width: int) -> Text:
    """A bar of that width."""
    line = Text()
    counts = what.characters(width)
    for part, count in zip(what.parts, counts, strict=True):
        line.append(part.character * count, part.style)
    return line.append(what.rest * (width - sum(counts)), "dim")


def ends(left: Text | str, right: Text | str, width: int) -> Text:
    """One at each end of a line; the left one gives way."""
    last = Text(right) if isinstance(right, str) else right
    last = fit(last, min(last.cell_len, width))
    room = width - last.cell_len
    return Text.assemble(fit(left, room), last)


def frame(
    lines: Sequence[Text], width: int, *, title: Text, note: Text | None = None,
    style: str = "bright_black",
) -> list[Text]:
    """A box around lines, with words in its upper border and on the right of the lower one."""
    inner = max(0, width - 4)
    below = Text() if note is None else Text.assemble(" ", note, " ")
    below = fit(below, min(below.cell_len, max(0, width - 3)))
    head = Text.assemble(" ", title, " ")
    head = fit(head, min(head.cell_len, max(0, width - 3)))
    return [
        Text.assemble(("╭─", style), head, ("─" * (width - 3 - head.cell_len) + "╮", style)),
        *(Text.assemble(("│ ", style), fit(line, inner), (" │", style)) for line in lines),
        Text.assemble(("╰" + "─" * (width - 3 - below.cell_len), style), below, ("─╯", style)),
    ]


def wrapped(text: str, width: int, indent: str = "") -> list[Text]:
    """A sentence over several lines, broken between words."""
    found, line = [], ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            found.append(Text(line))
            line = indent
        line += (" " if line.strip() else "") + word
    return [fit(one, min(width, one.cell_len)) for one in [*found, Text(line)]]


def graph(values: Sequence[float | None], most: float, height: int = 1) -> list[str]:
    """Lines from the top down. `most` fills the height.

    Zero is the lowest line, so that it differs from what is not known, which stays blank; and of
    what is more than zero something is seen.
    """
    levels = [_level(value, most, height * FULL) for value in values]
    return [
        "".join(LEVELS[min(FULL, max(0, level - FULL * row))] for level in levels)
        for row in reversed(range(height))
    ]


def _level(value: float | None, most: float, full: int) -> int:
    if value is None:
        return 0
    if value <= 0 or most <= 0:
        return 1
    return full if value >= most else max(2, round(full * value / most))


class Place(NamedTuple):
    """One column."""

    give: Give = Give()
    most: int | None = None             # characters, however much room there is
    wide: int = 0                       # and at least, as long as it is not cut
    right: bool = False


class Grid(NamedTuple):
    """Lines, and where each column begins and ends; one that is left out does nowhere."""

    lines: list[Text]
    spans: list[tuple[int, int]]


def grid(
    places: Sequence[Place], rows: Sequence[Sequence[Text | Bar]], width: int,
    seen: Collection[int] | None = None,
) -> Grid:
    """Where there is little room, columns give way as those of the tables do.

    `seen`: the rows that are to be drawn; columns are as wide as all of them need.
    """
    natural = [
        max([place.wide, *(_natural(row[at], place.most, width) for row in rows)])
        for at, place in enumerate(places)
    ]
    widths = fitted([place.give for place in places], natural, width, GAP)
    spare = width - sum(widths) - GAP * (sum(map(bool, widths)) - 1)
    for at, place in enumerate(places):
        if widths[at] and spare > 0 and any(isinstance(row[at], Bar) for row in rows):
            more = spare if place.most is None else min(spare, max(0, place.most - widths[at]))
            widths[at], spare = widths[at] + more, spare - more
    spans, start = [], 0
    for wide in widths:
        spans.append((start, start + wide))
        start += wide + GAP if wide else 0
    lines = [
        fit(Text(" " * GAP).join(
            _cell(cell, wide, right=place.right)
            for place, cell, wide in zip(places, row, widths, strict=True) if wide
        ), width)
        for number, row in enumerate(rows) if seen is None or number in seen
    ]
    return Grid(lines, spans)


def _natural(cell: Text | Bar, most: int | None, width: int) -> int:
    wide = max(NARROWEST_BAR, width // PART_OF_LINE) if isinstance(cell, Bar) else cell.cell_len
    return wide if most is None else min(wide, most)


def _cell(cell: Text | Bar, wide: int, *, right: bool) -> Text:
    if isinstance(cell, Bar):
        return bar(cell, wide)
    if cell.cell_len > wide:
        cell = Text(shortened(cell.plain, wide), style=cell.style)
    return fit(cell, wide, right=right)
