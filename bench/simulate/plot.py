# SPDX-License-Identifier: Apache-2.0
"""The shares of the cards' time over the day: a stacked area as SVG, or lines of a terminal."""

from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT, MARGIN, LINE = 960, 360, 48, 20
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44")
HOURS_APART = 3
BLOCKS = " ▁▂▃▄▅▆▇█"
COLUMNS = 72


def svg(shares: Mapping[str, Sequence[float]], hours: float) -> str:
    """Of each kind, all in all at most 1 at any moment."""
    below = [0.0] * len(next(iter(shares.values())))
    across = (WIDTH - 2 * MARGIN) / max(1, len(below))
    bottom = HEIGHT - MARGIN
    high = bottom - MARGIN
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for number, (kind, values) in enumerate(shares.items()):
        above = [one + more for one, more in zip(below, values, strict=True)]
        edge = [(x, bottom - high * y) for x, y in _steps(above, across)]
        edge += reversed([(x, bottom - high * y) for x, y in _steps(below, across)])
        colour = COLOURS[number % len(COLOURS)]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in edge)
        drawn.append(f'<polygon points="{points}" fill="{colour}"/>')
        x = MARGIN + number * (WIDTH - 2 * MARGIN) // len(shares)
        drawn.append(f'<rect x="{x}" y="12" width="12" height="12" fill="{colour}"/>')
        drawn.append(f'<text x="{x + 18}" y="23">{escape(kind)}</text>')
        below = above
    for percent in (0, 50, 100):
        y = bottom - high * percent // 100
        drawn.append(
            f'<line x1="{MARGIN}" x2="{WIDTH - MARGIN}" y1="{y}" y2="{y}" stroke="#bbb"/>')
        drawn.append(f'<text x="{MARGIN - 6}" y="{y + 4}" text-anchor="end">{percent} %</text>')
    for hour in range(0, int(hours) + 1, HOURS_APART):
        x = MARGIN + int((WIDTH - 2 * MARGIN) * hour / hours)
        drawn.append(
            f'<text x="{x}" y="{bottom + LINE}" text-anchor="middle">{hour}:00</text>')
    return "\n".join([*drawn, "</svg>", ""])


def _steps(values: Sequence[float], across: float) -> list[tuple[float, float]]:
    points = []
    for number, value in enumerate(values):
        points += [(MARGIN + number * across, value), (MARGIN + (number + 1) * across, value)]
    return points


def terminal(shares: Mapping[str, Sequence[float]]) -> str:
    """A line for each kind, from the first hour to the last; the highest is all of the time."""
    return "\n".join(f"{kind:10}|{_line(values)}|" for kind, values in shares.items())


def _line(values: Sequence[float]) -> str:
    columns = min(COLUMNS, len(values))
    found = ""
    for column in range(columns):
        some = values[column * len(values) // columns:(column + 1) * len(values) // columns]
        mean = sum(some) / len(some)
        # What is there at all is seen.
        found += BLOCKS[min(len(BLOCKS) - 1, int(mean * (len(BLOCKS) - 1)) + (mean > 0))]
    return found
