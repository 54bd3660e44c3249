# SPDX-License-Identifier: Apache-2.0
"""Lines of text and bars in columns, as wide as there is room."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from rich.text import Text

from nvshared.tui.bar import NARROWEST, Bar
from nvshared.tui.canvas import bar, fit
from nvshared.tui.tables import Give, fitted, shortened

GAP = 1
PART = 6                                # a bar is at least so large a part of a wide line


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
    wide = max(NARROWEST, width // PART) if isinstance(cell, Bar) else cell.cell_len
    return wide if most is None else min(wide, most)


def _cell(cell: Text | Bar, wide: int, *, right: bool) -> Text:
    if isinstance(cell, Bar):
        return bar(cell, wide)
    if cell.cell_len > wide:
        cell = Text(shortened(cell.plain, wide), style=cell.style)
    return fit(cell, wide, right=right)
