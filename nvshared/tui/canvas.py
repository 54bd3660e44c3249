# SPDX-License-Identifier: Apache-2.0
"""Lines of a screen: truncated, padded, framed, in columns, with bars and graphs."""

import textwrap
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from rich.cells import cell_len
from rich.text import Text

from nvshared.tui.tables import Bar, Column, chosen, fitted, shortened

WIDE = 100                              # characters from which on a line is wide
NARROWEST_BAR = 8                       # least characters of a bar
LEVELS = " ▁▂▃▄▅▆▇█"
FULL = len(LEVELS) - 1                  # levels of a graph that one character has
PART_OF_LINE = 6                        # on a wide line a bar has at least 1/6 of the line


def fit(text: Text | str, width: int, *, right: bool = False) -> Text:
    """Truncates `text` at its end, or pads it with blanks, to exactly `width` characters."""
    line = Text(text) if isinstance(text, str) else text.copy()
    if "\n" in line.plain:
        line = Text(" ", style=line.style).join(line.split("\n"))
    line.overflow = "ellipsis"
    line.align("right" if right else "left", max(0, width))
    return line


def bar(drawn: Bar, width: int) -> Text:
    line = Text()
    counts = drawn.characters(width)
    for part, count in zip(drawn.parts, counts, strict=True):
        line.append(part.character * count, part.style)
    return line.append(drawn.rest * (width - sum(counts)), "dim")


def frame(lines: Sequence[Text], width: int, *, title: Text, note: Text | None = None,
          style: str = "bright_black") -> list[Text]:
    """A box around lines, with `title` in the upper and `note` at the right of the lower border."""
    inner = max(0, width - 4)
    below = Text() if note is None else Text.assemble(" ", note, " ")
    below = fit(below, min(below.cell_len, max(0, width - 3)))
    head = Text.assemble(" ", title, " ")
    head = fit(head, min(head.cell_len, max(0, width - 3)))
    return [
        Text.assemble(("╭─", style), head, ("─" * (width - 3 - head.cell_len) + "╮", style)),
        *(Text.assemble(("│ ", style), fit(line, inner), (" │", style)) for line in lines),
        Text.assemble(("╰" + "─" * (width - 3 - below.cell_len), style), below, ("─╯", style))]


def wrapped(text: str, width: int, style: str = "") -> list[Text]:
    found = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]
    return [fit(Text(line, style=style), min(width, cell_len(line))) for line in found]


def graph(values: Sequence[float | None], most: float, height: int = 1) -> list[str]:
    """A graph of one character per value, as lines from the top down. `most` fills the height.

    None is blank; zero is the lowest level, and any value above zero is drawn higher than zero."""
    levels = [_level(value, most, height * FULL) for value in values]
    return [
        "".join(LEVELS[min(FULL, max(0, level - FULL * row))] for level in levels)
        for row in reversed(range(height))]


def _level(value: float | None, most: float, full: int) -> int:
    if value is None:
        return 0
    if value <= 0 or most <= 0:
        return 1
    return full if value >= most else max(2, round(full * value / most))


class Grid(NamedTuple):
    title: Text
    lines: list[Text]
    spans: list[tuple[int, int]]        # by column: index of its first character, and its end


def grid(columns: Sequence[Column], rows: Iterable[Any], width: int, gap: int = 1,
         titles: Sequence[Text] = (), seen: Collection[int] | None = None, empty: str = "") -> Grid:
    """Draws rows as lines of `width` characters; narrow lines have fewer, shorter table columns.

    `titles`: replace the columns' names. `seen`: numbers of the rows to draw, None: all; the widths
    of columns are computed from all rows. `empty`: the text of an empty cell."""
    cells: list[Sequence[Text | Bar]] = [titles or [Text(column.name) for column in columns]]
    for row in rows:
        values = [(column, column.cell(row) or empty) for column in columns]
        cells.append([Text(cell, style=column.style(row)) if isinstance(cell, str) else cell
                      for column, cell in values])
    bar_width = max(NARROWEST_BAR, width // PART_OF_LINE)
    natural = [
        max(column.min_width, *(
            min(bar_width if isinstance(cell, Bar) else cell.cell_len, column.max_width)
            for cell in (line[at] for line in cells)))
        for at, column in enumerate(columns)]
    widths = fitted(columns, natural, width, gap)
    spare = width - sum(widths) - gap * (sum(map(bool, widths)) - 1)
    for at, column in enumerate(columns):
        if widths[at] and spare > 0 and any(isinstance(line[at], Bar) for line in cells):
            more = min(spare, max(0, min(column.max_width, width) - widths[at]))
            widths[at], spare = widths[at] + more, spare - more
    spans, start = [], 0
    for wide in widths:
        spans.append((start, start + wide))
        start += wide + gap if wide else 0
    title, *lines = (
        fit(Text(" " * gap).join(
            _drawn(cell, wide, right=column.right)
            for column, cell, wide in zip(columns, line, widths, strict=True) if wide), width)
        for number, line in enumerate(cells, -1) if seen is None or number in seen or number < 0)
    return Grid(title, lines, spans)


def table(columns: Sequence[Column], rows: Sequence[Any], width: int) -> Text:
    """A table with headings for a terminal of `width` columns; may cut or omit table columns."""
    columns, narrow = chosen(columns, rows), width < WIDE
    titles = [
        Text(column.short if narrow and column.short else column.name, style="bold")
        for column in columns]
    title, lines, spans = grid(columns, rows, width, 1 if narrow else 2, titles, empty="-")
    rule = Text("─" * min(width, max(end for _, end in spans)))
    for line in (title, *lines):
        line.rstrip()
    return Text("\n").join([title, rule, *lines])


def _drawn(cell: Text | Bar, wide: int, *, right: bool) -> Text:
    if isinstance(cell, Bar):
        return bar(cell, wide)
    if cell.cell_len > wide:
        cell = Text(shortened(cell.plain, wide), style=cell.style)
    return fit(cell, wide, right=right)
