# SPDX-License-Identifier: Apache-2.0
"""Lines of text and bars in columns, as wide as there is room where they are drawn."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions
from rich.table import Table
from rich.text import Text

from nvshared.tui.bar import NARROWEST, Bar
from nvshared.tui.tables import Give, fitted, shortened

GAP = 1


@dataclass(frozen=True, slots=True)
class Place:
    """One column."""

    give: Give = Give()
    most: int | None = None             # characters, however much room there is
    wide: int = 0                       # and at least, as long as it is not cut
    right: bool = False


@dataclass(frozen=True, slots=True)
class Grid:
    """Where there is little room, columns give way as those of the tables do."""

    places: Sequence[Place]
    lines: Sequence[Sequence[Text | Bar]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        natural = [
            max([place.wide, *(_width(line[at], place.most) for line in self.lines)])
            for at, place in enumerate(self.places)
        ]
        gives = [place.give for place in self.places]
        widths = fitted(gives, natural, options.max_width, GAP)
        drawn = Table.grid(padding=(0, GAP))
        for at, (place, wide) in enumerate(zip(self.places, widths, strict=True)):
            if wide and any(isinstance(line[at], Bar) for line in self.lines):
                drawn.add_column(ratio=1)       # it has what is left
            elif wide:
                drawn.add_column(
                    width=wide, no_wrap=True, overflow="ellipsis",
                    justify="right" if place.right else "left",
                )
        for line in self.lines:
            drawn.add_row(*(
                _cut(cell, wide) for cell, wide in zip(line, widths, strict=True) if wide
            ))
        yield drawn


def _width(cell: Text | Bar, most: int | None) -> int:
    wide = NARROWEST if isinstance(cell, Bar) else cell.cell_len
    return wide if most is None else min(wide, most)


def _cut(cell: Text | Bar, wide: int) -> Text | Bar:
    return cell if isinstance(cell, Bar) else Text(shortened(cell.plain, wide), style=cell.style)
