# SPDX-License-Identifier: Apache-2.0
"""nvsharectl history: who used the GPUs, and how much."""

import argparse
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from nvshared.cli.output import show_table
from nvshared.cli.verb import Options, Verb, add_gpu, whole
from nvshared.cli.when import aligned, moment, shown, step
from nvshared.control import Daemon
from nvshared.errors import InvalidArgs
from nvshared.quantity import counted
from nvshared.tui.quantities import duration, size
from nvshared.tui.tables import Column, Give
from nvshared.units import SECOND

if TYPE_CHECKING:
    from nvshared.control.history import History, Used

BY = ("user", "tenant", "gpu")
OTHERS = "others"
MOST_NAMES = 1000
GIB_HOUR = 1024 * 3600                  # mebibytes times seconds
TOTAL = "\0"                            # no name
TERMINAL = "-"                          # where --plot draws, if no file is given


def _names(text: str) -> int:
    wrong = f"{text!r} is no number of names"
    return whole(text, MOST_NAMES, wrong, f"give a whole number from 1 to {MOST_NAMES}")


def _configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--since", metavar="WHEN", type=moment, default="7d",
        help="from when on: how long ago, as in 12h, or a date, as in 2026-11-01, "
        "2026-11-01T08:30, yesterday; without it, 7d")
    add("--until", metavar="WHEN", type=moment, default="now", help="until when; without it, now")
    add("--by", metavar="WHAT", choices=BY, help="user, tenant or gpu: what each line is about")
    add_gpu(parser)
    add("--step", metavar="TIME", type=step,
        help="a line for each minute, hour, day, or a time such as 6h")
    add("--top", metavar="N", type=_names, help="those N that used most, others in one line")
    add("--all", action="store_true",
        help="what everybody used, not only your own programs; so it is for root in any case")
    add("--csv", action="store_true", help="print lines with commas between the values")
    add("--plot", metavar="FILE", nargs="?", const=TERMINAL,
        help="draw the shares of the time over the time: in the terminal, or into FILE.svg or "
        "FILE.png")


def _act(options: Options) -> None:
    everyone = options.all or os.geteuid() == 0
    by = options.by or ("user" if everyone else "tenant")
    if sum((options.json, options.csv, options.plot is not None)) > 1:
        raise InvalidArgs("a plot, --csv and --json do not go together", "give one of them")
    if options.until <= options.since:
        raise InvalidArgs("the time ends before it begins", "give an earlier --since")
    if options.plot is not None:
        from nvshared.cli import plot

        plot.check(options)
    with Daemon(options.bus) as daemon:
        gpus = {gpu["UUID"]: gpu["Index"] for gpu in daemon.gpus()}
        since, every, names = options.since, options.step or 0, options.top or 0
        if options.plot is not None:
            every, names = every or plot.step(options), names or plot.NAMES
        if options.step is not None:
            since = aligned(since, every)
        found = daemon.history(
            since, options.until, every, by, options.gpu or "", names, everyone=everyone)
    cards = 1 if options.gpu else max(1, len(gpus))
    labels = {row.name: _label(row.name, gpus) for row in found.rows}
    if options.json:
        print(json.dumps({"by": by, "gpus": cards, **found.as_dict()}, indent=2))
    elif options.csv:
        _csv(found, by, labels)
    elif options.plot is not None:
        plot.draw(options.plot, found, labels, cards)
    else:
        _print(found, by, labels, cards)
    if not options.json:
        _notes(found, everyone=everyone)


def _label(name: str, gpus: dict[str, int]) -> str:
    return str(gpus[name]) if name in gpus else name or OTHERS


def _notes(found: "History", *, everyone: bool) -> None:
    """For a person, beside what may go to a file."""
    if found.missing:
        print(f"What was used lately is missing: it cannot be written: {found.missing}",
              file=sys.stderr)
    if not everyone and sys.stdout.isatty():
        print("That is what your own programs used. What everybody used: "
              "nvsharectl history --all", file=sys.stderr)


def _print(found: "History", by: str, labels: dict[str, str], cards: int) -> None:
    until = min(found.until_usec, int(time.time() * SECOND))
    print(f"From {shown(found.since_usec)} until {shown(until)}, {counted(cards, 'GPU')}:\n")
    if not found.rows:
        print("Nothing was used.")
        return
    show_table(_columns(found, by, labels, cards), [*found.rows, *_total(found)])


def _total(found: "History") -> list["Used"]:
    """Of all lines, if there are several and each is of the same time."""
    if found.step_usec or len(found.rows) < 2:
        return []
    kind = type(found.rows[0])
    figures = zip(*(row[3:] for row in found.rows), strict=True)
    return [kind(0, TOTAL, "", *map(sum, figures))]


def _columns(found: "History", by: str, labels: dict[str, str], cards: int) -> list[Column]:
    labels = {**labels, TOTAL: "total"}
    length = found.step_usec or found.until_usec - found.since_usec

    def share(row: "Used") -> str:
        of = 1 if by == "gpu" and row.name != TOTAL else cards
        return f"{row.gpu_usec / (length * of):.1%}"

    whole_days = found.step_usec % (86400 * SECOND) == 0
    columns = [
        Column("FROM", lambda row: shown(row.start_usec, day_only=whole_days)),
        Column(by.upper(), lambda row: labels[row.name], give=Give(0, 12)),
        Column("USER", lambda row: row.user or "-", give=Give(5, 4)),
        Column("GPU-SECONDS", lambda row: f"{row.gpu_usec / SECOND:.0f}", right=True,
               short="GPU-SEC"),
        Column("SHARE", share, right=True, give=Give(1)),
        Column("HELD", lambda row: duration(row.held_usec), right=True, give=Give(8)),
        Column("WAITED", lambda row: duration(row.waited_usec), right=True, give=Give(2)),
        Column("TURNS", lambda row: str(row.turns), right=True, give=Give(6)),
        Column("HAND-OVERS", lambda row: str(row.handovers), right=True, short="MOVES",
               give=Give(7)),
        Column("IN", lambda row: size(row.bytes_in), right=True, give=Give(5)),
        Column("OUT", lambda row: size(row.bytes_out), right=True, give=Give(5)),
        Column("GPU-GIBH", lambda row: _gib_hours(row.card_mib_sec), right=True,
               give=Give(3)),
        Column("HOST-GIBH", lambda row: _gib_hours(row.host_mib_sec), right=True,
               give=Give(4)),
    ]
    from_when, name, user, *figures = columns
    return [
        *([from_when] if found.step_usec else []), name, *([user] if by == "tenant" else []),
        *figures,
    ]


def _gib_hours(mib_seconds: int) -> str:
    hours = mib_seconds / GIB_HOUR
    return f"{hours:.{0 if hours >= 99.5 else 1 if hours >= 9.95 else 2}f}"


def _csv(found: "History", by: str, labels: dict[str, str]) -> None:
    import csv

    out = csv.writer(sys.stdout, lineterminator="\n")
    length = found.step_usec or found.until_usec - found.since_usec
    out.writerow([
        "start", "seconds", by, *(["user"] if by == "tenant" else []), "gpu_seconds",
        "held_seconds", "waited_seconds", "turns", "handovers", "handover_seconds", "bytes_in",
        "bytes_out", "gpu_memory_gib_hours", "host_memory_gib_hours",
    ])
    for row in found.rows:
        begins = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(row.start_usec // SECOND))
        names: list[Any] = [row.name or OTHERS, *([row.user] if by == "tenant" else [])]
        out.writerow([
            begins, length // SECOND, *names, _seconds(row.gpu_usec), _seconds(row.held_usec),
            _seconds(row.waited_usec), row.turns, row.handovers, _seconds(row.handover_usec),
            row.bytes_in, row.bytes_out, f"{row.card_mib_sec / GIB_HOUR:.3f}",
            f"{row.host_mib_sec / GIB_HOUR:.3f}",
        ])


def _seconds(usec: int) -> str:
    return f"{usec / SECOND:.3f}"


VERB = Verb(
    name="history",
    summary="who used the GPUs, and how much",
    description=(
        "Shows what was used of the GPUs, for accounting: by your own programs, or as root or with "
        "--all by everybody's. GPU-SECONDS is the time of the GPUs, divided equally at each moment "
        "among the programs that held the GPU: together they are never more than the time. A "
        "program that nobody waits for holds the GPU also while it computes nothing. HELD and "
        "WAITED count each program by itself. HAND-OVERS are turns for which memory had to move, "
        "IN and OUT what moved. GPU-GIBH and HOST-GIBH are memory on the GPU, and host memory for "
        "what was away, in GiB times hours. Kept are minutes for two days, hours for two months "
        "and days (of UTC) for five years; where minutes have gone, --since and --until mean the "
        "hour or day around them. The last minute is lost if the machine goes down, and what is "
        "used while nvshared does not run is not counted."
    ),
    examples=(
        ("nvsharectl history", "the last seven days"),
        ("nvsharectl history --since 2026-11-01 --until 2026-12-01 --csv", "a month's bill"),
        ("nvsharectl history --by tenant --since 1d --top 10", "the largest jobs of a day"),
        ("nvsharectl history --by gpu --step day", "how busy each GPU was on each day"),
        ("nvsharectl history --since 12h --plot", "drawn in the terminal"),
        ("nvsharectl history --plot week.svg", "as a picture"),
    ),
    configure=_configure,
    act=_act,
)
