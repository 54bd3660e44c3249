# SPDX-License-Identifier: Apache-2.0
"""nvsharectl history: the use of GPUs by user, tenant or GPU, as a table, CSV, JSON or plot.

Times are microseconds since 1970, shown in the local time zone and, in CSV, in UTC."""

import json
import os
import re
import shutil
import sys
import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

from nvshared import quantity
from nvshared.cli.days import DAY, by_days, edges
from nvshared.cli.verb import GPU, Options, argument, show_table, verb, whole
from nvshared.control import Daemon
from nvshared.control.snapshot import UsageTable, Used
from nvshared.errors import InvalidArgs, NoSuchGPU, NvshareError
from nvshared.quantity import counted
from nvshared.tui.tables import NARROWEST, Column, duration, figure, shortened, size
from nvshared.units import SECOND

RIGHT = "give how long ago, as in 7d or 90min, or a date, as in 2026-11-01 or 2026-11-01T08:30"
STEPS = {"minute": 60 * SECOND, "hour": 3600 * SECOND, "day": DAY}
LONGEST_STEP = 366 * DAY


def moment(text: str) -> int:
    """Parses 7d (ago) or a local date to microseconds since 1970. Raises InvalidArgs."""
    wrong = InvalidArgs(f"{text!r} is no moment since 1970", RIGHT)
    today = datetime.now().replace(hour=0, minute=0, second=0, microsecond=0)
    days = {"now": datetime.now(), "today": today, "yesterday": today - timedelta(days=1)}
    try:
        if re.fullmatch(r"[\d.]+ *[a-z]+", text, re.ASCII):
            usec = int(time.time() * SECOND) - quantity.duration(text)
        else:
            usec = int((days.get(text) or datetime.fromisoformat(text)).timestamp() * SECOND)
    except (ValueError, OverflowError, OSError):
        raise wrong from None
    if usec < 0:
        raise wrong
    return usec


def step(text: str) -> int:
    found = STEPS.get(text, 0)
    with suppress(ValueError):
        found = found or quantity.duration(text)
    if not STEPS["minute"] <= found <= LONGEST_STEP:
        raise InvalidArgs(f"the step cannot be {text!r}",
                          "give minute, hour, day, or a time from 1min to 366d, as in 6h")
    return found


def aligned(usec: int, step: int) -> int:
    """Rounds `usec` down to the beginning of a step in the local time zone."""
    if step % DAY == 0:
        return edges(usec, usec, step)[0]
    offset = datetime.fromtimestamp(usec / SECOND).astimezone().utcoffset() or timedelta()
    return max(0, usec - (usec + int(offset.total_seconds()) * SECOND) % step)


def shown(usec: int, *, day_only: bool = False) -> str:
    """A time in the local time zone, to the minute or to the day."""
    then = datetime.fromtimestamp(usec / SECOND)
    return then.strftime("%Y-%m-%d" if day_only else "%Y-%m-%d %H:%M")


BY = ("user", "tenant", "gpu")
OTHERS = "others"
MOST_NAMES = 1000
GIB_HOUR = 1024 * 3600                  # MiB-seconds in a GiB-hour
TOTAL = "\0"                            # name of the row of sums; no tenant's name has a NUL
TERMINAL = "-"                          # value of --plot without a file: draws in the terminal


@verb(
    "history",
    argument("--since", "WHEN", "start of the period: how long ago, as in 12h, or a date, as in "
             "2026-11-01, 2026-11-01T08:30, yesterday (default: 7d)", type=moment, default="7d"),
    argument("--until", "WHEN", "end of the period (default: now)", type=moment, default="now"),
    argument("--by", "WHAT", "a line for each user, tenant or gpu", choices=BY),
    GPU,
    argument(
        "--step", "TIME", "a line for each minute, hour, day, or a time such as 6h", type=step),
    argument("--top", "N", "the N names with the largest use, and the rest in one line",
             type=whole(1, MOST_NAMES, "{!r} is no number of names")),
    argument(
        "--all", "", "the use by all users' programs, not only by your own; always on for root"),
    argument("--csv", "", "print lines with commas between the values"),
    argument("--plot", "FILE", "draw the shares of the time over the time: in the terminal, or "
             "into FILE.svg or FILE.png", nargs="?", const=TERMINAL))
def history(options: Options) -> None:
    """The use of the GPUs by user, tenant or GPU.

    Shows the past use of the GPUs, for accounting: by your own programs, or as root or with --all
    by those of all users. GPU-SECONDS divides the GPUs' time at each moment equally among the
    programs that held the GPU and had work, so the sum is never more than the time; of a pause, the
    first two seconds count. HELD and WAITED count each program by itself, HELD also all pauses; a
    program holds the GPU until another one waits. HAND-OVERS are
    turns for which memory moved, IN and OUT the memory that moved onto and off the GPU. GPU-GIBH is
    memory on the GPU in GiB times hours, HOST-GIBH, BORROWED-GIBH and DISK-GIBH swapped memory in
    host memory, on other GPUs and on the disk. nvshared keeps minutes for two days, hours for two
    months and days (of UTC) for five years; where the minutes are deleted, --since and --until mean
    the hour or day around them. With --step day, a line is a day of the local time zone, also where
    clocks are changed, and a day of UTC for periods that begin before the hours that are kept. The
    last minute is lost if the machine goes down; use while nvshared does not run is not counted.

        nvsharectl history                                              # the last seven days
        nvsharectl history --since 2026-11-01 --until 2026-12-01 --csv  # a month's bill
        nvsharectl history --by tenant --since 1d --top 10              # the largest jobs of a day
        nvsharectl history --by gpu --step day  # how busy each GPU was on each day
        nvsharectl history --since 12h --plot                           # drawn in the terminal
        nvsharectl history --plot week.svg                              # as a picture
    """
    everyone = options.all or os.geteuid() == 0
    by = options.by or ("user" if everyone else "tenant")
    if sum((options.json, options.csv, options.plot is not None)) > 1:
        raise InvalidArgs("--plot, --csv and --json exclude each other", "give one of them")
    if options.gpu == "":               # as of a variable that is not set; nvshared: all GPUs
        raise NoSuchGPU("'' is no GPU", "give an index, UUID or PCI address, or leave out --gpu")
    if options.until <= options.since:
        raise InvalidArgs("--until is not later than --since", "give an earlier --since")
    if options.plot is not None and options.step and (
            options.until - options.since > MOST_POINTS * options.step):
        raise InvalidArgs(f"a plot has at most {MOST_POINTS} steps", "give a longer --step")
    if options.plot not in (None, TERMINAL) and Path(options.plot).suffix.lower() not in SUFFIXES:
        raise InvalidArgs(f"no plot can be written to {options.plot!r}",
                          "give FILE.svg or FILE.png")
    with Daemon(options.bus) as daemon:
        gpus = {gpu["UUID"]: gpu["Index"] for gpu in daemon.gpus()}
        since, every, names = options.since, options.step or 0, options.top or 0
        if options.plot is not None:
            points = _plot_width() if options.plot == TERMINAL else POINTS
            every = every or max(STEPS["minute"], (options.until - since) // points)
            names = names or NAMES

        def ask(since: int, until: int, step: int, names: int) -> UsageTable:
            return daemon.history(
                since, until, step, by, options.gpu or "", names, everyone=everyone)

        if options.step is None:
            found = ask(since, options.until, every, names)
        elif every % DAY:
            found = ask(aligned(since, every), options.until, every, names)
        else:
            found = by_days(ask, since, options.until, every, names)
        if options.gpu and not found.rows:
            _warn_of_unknown(daemon, options.gpu)
    cards = 1 if options.gpu else max(1, len(gpus))
    labels = {row.name: str(gpus.get(row.name, row.name or OTHERS)) for row in found.rows}
    if options.json:
        print(json.dumps({"by": by, "gpus": cards, **found.as_dict()}, indent=2))
        return
    if options.csv:
        _csv(found, by)
    elif options.plot is not None:
        draw_plot(options.plot, found, labels, cards)
    else:
        _print(found, by, labels, cards)
    # This warning goes to stderr, because stdout may be redirected to a file.
    if found.missing:
        print(f"The latest use is missing: it cannot be written: {found.missing}", file=sys.stderr)
    if not everyone and sys.stdout.isatty():
        print("This is the use by your own programs. All users' programs: nvsharectl history --all",
              file=sys.stderr)


def _warn_of_unknown(daemon: Daemon, gpu: str) -> None:
    """Warns if there is no such GPU now: a UUID may be wrong, or that of a GPU taken out."""
    try:
        daemon.gpu(gpu)
    except NoSuchGPU as error:
        print(f"nvsharectl: warning: the history has no use of {gpu!r} in that time, and "
              f"{error.message}", file=sys.stderr)


def _print(found: UsageTable, by: str, labels: dict[str, str], cards: int) -> None:
    until = min(found.until_usec, int(time.time() * SECOND))
    print(f"From {shown(found.since_usec)} until {shown(until)}, {counted(cards, 'GPU')}:\n")
    if not found.rows:
        print("No GPU was used.")
        return
    rows = [*found.rows]
    if len(rows) > 1 and not found.step_usec:
        figures = zip(*(row[3:] for row in rows), strict=True)
        rows.append(Used(0, TOTAL, "", *map(sum, figures)))
    show_table(_columns(found, by, labels, cards), rows)


def _columns(found: UsageTable, by: str, labels: dict[str, str], cards: int) -> list[Column]:
    labels = {**labels, TOTAL: "total"}
    def share(row: Used) -> float:
        return row.gpu_usec / found.length(row) / (
            1 if by == "gpu" and row.name != TOTAL else cards)

    # Days of UTC, where hours are not kept any more, begin at another hour.
    whole_days = found.step_usec % DAY == 0 and all(
        row.start_usec == aligned(row.start_usec, DAY) for row in found.rows)
    beginning = Column("FROM", lambda row: shown(row.start_usec, day_only=whole_days))
    return [
        *([beginning] if found.step_usec else []),
        Column(by.upper(), lambda row: labels[row.name], shrinks_to=12),
        *([Column("USER", lambda row: row.user, drop_rank=5, shrinks_to=NARROWEST)]
          if by == "tenant" else []),
        figure("GPU-SECONDS", lambda row: row.gpu_usec / SECOND, "{:.0f}".format, short="GPU-SEC"),
        figure("SHARE", share, "{:.1%}".format, drop_rank=1),
        figure("HELD", lambda row: row.held_usec, duration, drop_rank=8),
        figure("WAITED", lambda row: row.waited_usec, duration, drop_rank=2),
        figure("TURNS", lambda row: row.turns, drop_rank=6),
        figure("HAND-OVERS", lambda row: row.handovers, short="MOVES", drop_rank=7),
        figure("IN", lambda row: row.bytes_in, size, drop_rank=5),
        figure("OUT", lambda row: row.bytes_out, size, drop_rank=5),
        figure("GPU-GIBH", lambda row: row.card_mib_sec, _gib_hours, drop_rank=3),
        figure("HOST-GIBH", lambda row: row.host_mib_sec, _gib_hours, drop_rank=4),
        figure("BORROWED-GIBH", lambda row: row.borrowed_mib_sec, _gib_hours, optional=True,
               short="BORROWED", drop_rank=4),
        figure("DISK-GIBH", lambda row: row.disk_mib_sec, _gib_hours, optional=True, drop_rank=4)]


def _gib_hours(mib_seconds: int) -> str:
    hours = mib_seconds / GIB_HOUR
    return f"{hours:.{0 if hours >= 99.5 else 1 if hours >= 9.95 else 2}f}"


# For each CSV column, in the order of a row's figures: the figure's divisor; None: no division.
CSV = {
    **dict.fromkeys(("gpu_seconds", "held_seconds", "waited_seconds"), SECOND),
    "turns": None, "handovers": None, "handover_seconds": SECOND, "bytes_in": None,
    "bytes_out": None, **dict.fromkeys((
        "gpu_memory_gib_hours", "host_memory_gib_hours", "borrowed_gib_hours", "disk_gib_hours"),
        GIB_HOUR)}


def _csv(found: UsageTable, by: str) -> None:
    import csv

    out = csv.writer(sys.stdout, lineterminator="\n")
    user = ["user"] * (by == "tenant")
    out.writerow(["start", "seconds", by, *user, *CSV])
    for row in found.rows:
        begins = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(row.start_usec // SECOND))
        out.writerow([
            begins, found.length(row) // SECOND, row.name or OTHERS, *([row.user] if user else []),
            *(value if unit is None else f"{value / unit:.3f}"
              for value, unit in zip(row[3:], CSV.values(), strict=True))])


WIDTH, HEIGHT, MARGIN, LINE = 960, 360, 48, 20
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#ee8866", "#bbbbbb")
BLOCKS = " ▁▂▃▄▅▆▇█"
NAMES_ABREAST = 4                       # names in one line of a plot's legend
LONGEST = 28                            # most characters of a name in a plot's legend

Shares = Mapping[str, Sequence[float]]  # by name, share of GPU time at each point; sums at most 1
Marks = Sequence[tuple[float, str]]     # labels of the time axis: position from 0 to 1, text


def svg(shares: Shares, marks: Marks) -> str:
    from html import escape

    below = [0.0] * len(next(iter(shares.values())))
    across = (WIDTH - 2 * MARGIN) / max(1, len(below))
    head = MARGIN + LINE * ((len(shares) - 1) // NAMES_ABREAST)
    bottom = head - MARGIN + HEIGHT - MARGIN
    high = bottom - head
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + MARGIN}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{bottom + MARGIN}" fill="white"/>']
    for number, (name, values) in enumerate(shares.items()):
        above = [one + more for one, more in zip(below, values, strict=True)]
        edge = [*_steps(above, across), *reversed(_steps(below, across))]
        colour = COLOURS[number % len(COLOURS)]
        points = " ".join(f"{x:.1f},{bottom - high * share:.1f}" for x, share in edge)
        drawn.append(f'<polygon points="{points}" fill="{colour}"/>')
        row, column = divmod(number, NAMES_ABREAST)
        x = MARGIN + column * (WIDTH - 2 * MARGIN) // min(NAMES_ABREAST, len(shares))
        y = 12 + row * LINE
        drawn.append(f'<rect x="{x}" y="{y}" width="12" height="12" fill="{colour}"/>')
        drawn.append(f'<text x="{x + 18}" y="{y + 11}">{escape(shortened(name, LONGEST))}</text>')
        below = above
    for percent in (0, 50, 100):
        y = bottom - high * percent // 100
        drawn.append(f'<line x1="{MARGIN}" x2="{WIDTH - MARGIN}" y1="{y}" y2="{y}" stroke="#bbb"/>')
        drawn.append(f'<text x="{MARGIN - 6}" y="{y + 4}" text-anchor="end">{percent} %</text>')
    for place, label in marks:
        x = MARGIN + int((WIDTH - 2 * MARGIN) * place)
        drawn.append(
            f'<text x="{x}" y="{bottom + LINE}" text-anchor="middle">{escape(label)}</text>')
    return "\n".join([*drawn, "</svg>", ""])


def _steps(values: Sequence[float], across: float) -> list[tuple[float, float]]:
    return [(MARGIN + end * across, value)
            for number, value in enumerate(values) for end in (number, number + 1)]


def terminal(shares: Shares, columns: int = 72) -> str:
    """Draws the shares as a line of blocks for each name; the highest block is a share of 1."""
    wide = max(10, *map(len, shares))
    return "\n".join(f"{name:{wide}}|{_line(values, columns)}|" for name, values in shares.items())


def _line(values: Sequence[float], most: int) -> str:
    columns = min(most, len(values))
    found = ""
    for column in range(columns):
        some = values[column * len(values) // columns:(column + 1) * len(values) // columns]
        mean = sum(some) / len(some)
        # A share above zero is drawn as the lowest visible block or a higher block.
        found += BLOCKS[min(len(BLOCKS) - 1, int(mean * (len(BLOCKS) - 1)) + (mean > 0))]
    return found


NAMES = 7                               # names in a plot besides OTHERS; each has its own colour
POINTS = 240                            # points on the time axis of an .svg or .png plot
LABELS = 8                              # most labels on the time axis
# Microseconds between two labels on the time axis: the smallest value with at most LABELS labels.
APART = [unit * number for unit, numbers in (
    (STEPS["minute"], (1, 5, 15, 30)), (STEPS["hour"], (1, 2, 3, 6, 12)),
    (STEPS["day"], (1, 2, 7, 14, 30, 90, 180, 365)),
) for number in numbers]
SUFFIXES = (".svg", ".png")
MOST_POINTS = 10_000
CONVERTER = "rsvg-convert"


def _plot_width() -> int:
    return max(20, shutil.get_terminal_size().columns - 32)


def draw_plot(where: str, found: UsageTable, labels: dict[str, str], cards: int) -> None:
    """Draws the shares of `cards` GPUs' time. Raises NvshareError if a file cannot be written."""
    if not found.rows:
        print("No GPU was used.")
        return
    shares = _shares(found, labels, cards)
    if where == TERMINAL:
        print(terminal(shares, _plot_width()))
        print(f"From {shown(found.since_usec)} until {shown(found.until_usec)}; a whole block is "
              "all of the time.")
        return
    picture = svg(shares, _marks(found)).encode()
    path = Path(where)
    try:
        path.write_bytes(_png(picture) if path.suffix.lower() == ".png" else picture)
    except OSError as error:
        raise NvshareError(f"{path} cannot be written: {error.strerror}") from error
    print(f"{path} shows the shares of the time.")


def _shares(found: UsageTable, labels: dict[str, str], cards: int) -> dict[str, list[float]]:
    """By label, its shares of the GPUs' time in each step; the largest first, OTHERS last."""
    steps = found.edges_usec[:-1] or range(found.since_usec, found.until_usec, found.step_usec)
    sums: dict[str, int] = {}
    for row in found.rows:
        sums[row.name] = sums.get(row.name, 0) + row.gpu_usec
    order = sorted(sums, key=lambda name: (name == "", -sums[name]))
    shares = {name: [0.0] * len(steps) for name in order}
    for row in found.rows:
        at = bisect_right(steps, row.start_usec) - 1
        shares[row.name][at] += row.gpu_usec / (found.length(row) * cards)
    return {labels[name]: values for name, values in shares.items()}


def _marks(found: UsageTable) -> list[tuple[float, str]]:
    since, span = found.since_usec, found.until_usec - found.since_usec
    apart = next((one for one in APART if span < LABELS * one), APART[-1])
    if apart >= DAY:
        return [((at - since) / span, shown(at, day_only=True))
                for at in edges(since, since + span, apart)[:-1] if at >= since]
    first = aligned(since, apart) + (apart if aligned(since, apart) < since else 0)
    return [((at - since) / span, shown(at)[5:]) for at in range(first, since + span, apart)]


def _png(picture: bytes) -> bytes:
    import subprocess

    if not shutil.which(CONVERTER):
        raise NvshareError(f"a PNG is made by {CONVERTER}, which is not installed", "install it "
                           "(Debian: librsvg2-bin, Fedora: librsvg2-tools), or give FILE.svg")
    made = subprocess.run(
        [CONVERTER, "--format=png", "--zoom=2"], input=picture, capture_output=True, check=False)
    if made.returncode:
        raise NvshareError(f"{CONVERTER} failed: {made.stderr.decode(errors='replace').strip()}")
    return made.stdout
