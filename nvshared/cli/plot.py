# SPDX-License-Identifier: Apache-2.0
"""Shares of the cards' time, drawn: lines of a terminal, or a stacked area as SVG or PNG in a file.

rsvg-convert makes a PNG of the SVG, if it is there.
"""

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from nvshared.cli.verb import Options
from nvshared.cli.when import STEPS, aligned, shown
from nvshared.errors import InvalidArgs, NvshareError
from nvshared.tui.tables import shortened

if TYPE_CHECKING:
    from nvshared.control.history import History

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
        drawn.append(f'<text x="{x + 18}" y="{y + 11}">{escape(shortened(name, LONGEST))}</text>')
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


NAMES = 7                               # besides others, so that each has a colour
POINTS = 240                            # of a picture
LABELS = 8                              # at most, along the time
APART = [unit * number for unit, numbers in (
    (STEPS["minute"], (1, 5, 15, 30)), (STEPS["hour"], (1, 2, 3, 6, 12)),
    (STEPS["day"], (1, 2, 7, 14, 30, 90, 180, 365)),
) for number in numbers]
SUFFIXES = (".svg", ".png")
MOST_POINTS = 10_000
CONVERTER = "rsvg-convert"


def check(options: Options) -> None:
    """Raises InvalidArgs for what we cannot draw, before anything is asked for."""
    where = options.plot
    if options.step and options.until - options.since > MOST_POINTS * options.step:
        raise InvalidArgs(f"a plot has at most {MOST_POINTS} steps", "give a longer --step")
    if where != "-" and Path(where).suffix.lower() not in SUFFIXES:
        raise InvalidArgs(f"no plot can be written to {where!r}", "give FILE.svg or FILE.png")


def step(options: Options) -> int:
    """Microseconds of a point."""
    points = _columns() if options.plot == "-" else POINTS
    span: int = options.until - options.since
    return max(STEPS["minute"], span // points)


def _columns() -> int:
    return max(20, shutil.get_terminal_size().columns - 32)


def draw(where: str, found: "History", labels: dict[str, str], cards: int) -> None:
    """Shares of the time of so many cards. Raises NvshareError if it cannot be written."""
    if not found.rows:
        print("Nothing was used.")
        return
    shares = _shares(found, labels, cards)
    if where == "-":
        print(terminal(shares, _columns()))
        print(f"From {shown(found.since_usec)} until {shown(found.until_usec)}; a whole block is "
              "all of the time.")
        return
    picture = svg(shares, _marks(found))
    path = Path(where)
    try:
        if path.suffix.lower() == ".png":
            path.write_bytes(_png(picture))
        else:
            path.write_text(picture, encoding="utf-8")
    except OSError as error:
        raise NvshareError(f"{path} cannot be written: {error.strerror}") from error
    print(f"{path} shows the shares of the time.")


def _shares(found: "History", labels: dict[str, str], cards: int) -> dict[str, list[float]]:
    """Of each name, the largest first; others last."""
    number = -(-(found.until_usec - found.since_usec) // found.step_usec)
    sums: dict[str, int] = {}
    for row in found.rows:
        sums[row.name] = sums.get(row.name, 0) + row.gpu_usec
    order = sorted(sums, key=lambda name: (name == "", -sums[name]))
    shares = {name: [0.0] * number for name in order}
    for row in found.rows:
        at = (row.start_usec - found.since_usec) // found.step_usec
        shares[row.name][at] += row.gpu_usec / (found.step_usec * cards)
    return {labels[name]: values for name, values in shares.items()}


def _marks(found: "History") -> list[tuple[float, str]]:
    """At whole hours or days of the local time zone."""
    since, span = found.since_usec, found.until_usec - found.since_usec
    apart = next((one for one in APART if span < LABELS * one), APART[-1])
    first = aligned(since, apart) + (apart if aligned(since, apart) < since else 0)
    return [
        ((at - since) / span, shown(at, day_only=True) if apart >= STEPS["day"] else shown(at)[5:])
        for at in range(first, since + span, apart)
    ]


def _png(picture: str) -> bytes:
    if not shutil.which(CONVERTER):
        raise NvshareError(
            f"a PNG is made by {CONVERTER}, which is not installed",
            "install it (Debian: librsvg2-bin, Fedora: librsvg2-tools), or give FILE.svg",
        )
    made = subprocess.run([CONVERTER, "--format=png", "--zoom=2"], input=picture.encode(),
                          capture_output=True, check=False)
    if made.returncode:
        raise NvshareError(f"{CONVERTER} failed: {made.stderr.decode(errors='replace').strip()}")
    return made.stdout
