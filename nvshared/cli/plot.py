# SPDX-License-Identifier: Apache-2.0
"""What was used, drawn: in the terminal, or as SVG or PNG into a file.

A PNG is made of the SVG by rsvg-convert, if that is there.
"""

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from nvshared.cli.verb import Options
from nvshared.cli.when import STEPS, aligned, shown
from nvshared.errors import InvalidArgs, NvshareError
from nvshared.tui.plot import svg, terminal

if TYPE_CHECKING:
    from nvshared.control.history import History

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
