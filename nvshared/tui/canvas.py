# SPDX-License-Identifier: Apache-2.0
"""Lines of a screen: cut, filled up, put beside each other and framed. None is ever too wide."""

from collections.abc import Sequence

from rich.text import Text

from nvshared.tui.bar import Bar


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
