# SPDX-License-Identifier: Apache-2.0
"""Shares of the cards' time over a time: a stacked area as SVG, or lines of a terminal."""

from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT, MARGIN, LINE = 960, 360, 48, 20
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#ee8866", "#bbbbbb")
BLOCKS = " ▁▂▃▄▅▆▇█"
COLUMNS = 72
NAMES_ABREAST = 4                       # above a plot
LONGEST = 28                            # characters of a name there

Shares = Mapping[str, Sequence[float]]  # of each name, all in all at most 1 at any moment
Marks = Sequence[tuple[float, str]]     # along the time: where, from 0 to 1, and what is said there


def svg(shares: Shares, marks: Marks) -> str:
    """A picture of them."""
    below = [0.0] * len(next(iter(shares.values())))
    across = (WIDTH - 2 * MARGIN) / max(1, len(below))
    head = MARGIN + LINE * ((len(shares) - 1) // NAMES_ABREAST)
    bottom = head - MARGIN + HEIGHT - MARGIN
    high = bottom - head
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + MARGIN}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{bottom + MARGIN}" fill="white"/>',
    ]
    for number, (name, values) in enumerate(shares.items()):
        above = [one + more for one, more in zip(below, values, strict=True)]
        edge = [(x, bottom - high * y) for x, y in _steps(above, across)]
        edge += reversed([(x, bottom - high * y) for x, y in _steps(below, across)])
        colour = COLOURS[number % len(COLOURS)]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in edge)
        drawn.append(f'<polygon points="{points}" fill="{colour}"/>')
        row, column = divmod(number, NAMES_ABREAST)
        x = MARGIN + column * (WIDTH - 2 * MARGIN) // min(NAMES_ABREAST, len(shares))
        y = 12 + row * LINE
        drawn.append(f'<rect x="{x}" y="{y}" width="12" height="12" fill="{colour}"/>')
        drawn.append(f'<text x="{x + 18}" y="{y + 11}">{escape(_short(name, LONGEST))}</text>')
        below = above
    for percent in (0, 50, 100):
        y = bottom - high * percent // 100
        drawn.append(
            f'<line x1="{MARGIN}" x2="{WIDTH - MARGIN}" y1="{y}" y2="{y}" stroke="#bbb"/>')
        drawn.append(f'<text x="{MARGIN - 6}" y="{y + 4}" text-anchor="end">{percent} %</text>')
    for place, label in marks:
        x = MARGIN + int((WIDTH - 2 * MARGIN) * place)
        drawn.append(
            f'<text x="{x}" y="{bottom + LINE}" text-anchor="middle">{escape(label)}</text>')
    return "\n".join([*drawn, "</svg>", ""])


def _steps(values: Sequence[float], across: float) -> list[tuple[float, float]]:
    points = []
    for number, value in enumerate(values):
        points += [(MARGIN + number * across, value), (MARGIN + (number + 1) * across, value)]
    return points


def terminal(shares: Shares, columns: int = COLUMNS) -> str:
    """A line for each name, the highest block is all of the time."""
    wide = max(10, *map(len, shares))
    return "\n".join(
        f"{name:{wide}}|{_line(values, columns)}|" for name, values in shares.items())


def _line(values: Sequence[float], most: int) -> str:
    columns = min(most, len(values))
    found = ""
    for column in range(columns):
        some = values[column * len(values) // columns:(column + 1) * len(values) // columns]
        mean = sum(some) / len(some)
        # What is there at all is seen.
        found += BLOCKS[min(len(BLOCKS) - 1, int(mean * (len(BLOCKS) - 1)) + (mean > 0))]
    return found


def _short(name: str, width: int) -> str:
    return name if len(name) <= width else f"{name[:width - 1]}…"
