# SPDX-License-Identifier: Apache-2.0
"""nvsharectl top: the dashboard, live."""

import json
import os
import sys
import time

from nvshared.cli.verb import Options, Verb, argument
from nvshared.control import Daemon
from nvshared.errors import InvalidArgs

SHORTEST = 0.1                          # seconds; faster is not seen, only paid for
LONGEST = 3600.0
DUMB = ("dumb", "unknown")              # terminals on which nothing can be drawn twice


def _interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not SHORTEST <= seconds <= LONGEST:
        raise InvalidArgs(
            f"the interval cannot be {text!r}", f"give seconds from {SHORTEST} to {LONGEST:.0f}"
        )
    return seconds


def _act(options: Options) -> None:
    if options.json:
        _stream(options)
    elif not sys.stdin.isatty() or not sys.stdout.isatty():
        raise InvalidArgs("top needs a terminal", "for one look, use: nvsharectl status")
    elif os.environ.get("TERM") in DUMB:
        _print(options)
    else:
        from nvshared.tui.live import watch

        watch(options.bus, options.interval)


def _stream(options: Options) -> None:
    """One line of JSON after the other, until whoever reads them has enough."""
    with Daemon(options.bus) as daemon:
        while True:
            print(json.dumps(daemon.snapshot().as_dict()), flush=True)
            time.sleep(options.interval)


def _print(options: Options) -> None:
    """One picture below the other, on a terminal that can do no more."""
    from rich.console import Console

    from nvshared.tui.listing import Dashboard
    from nvshared.tui.past import Past

    past = Past()
    with Daemon(options.bus) as daemon:
        while True:
            now = daemon.snapshot()
            past = past.after(now, time.monotonic())
            Console().print(Dashboard(now, past))
            time.sleep(options.interval)


TOP = Verb(
    name="top",
    summary="watch who has each GPU, and memory move",
    description=(
        "Shows each GPU, live: how full the card is, and for the last minutes how much it was "
        "used, how many programs waited, and how much memory came in and went out. Below stand "
        "the programs: who holds a GPU (▶), whose memory is on the card (█) and whose in host "
        "memory (▒), who waits, since when, and about how much longer; and programs that use a "
        "GPU without sharing it. The arrows select a program, Enter shows its details: whose it "
        "is, its memory, what is set for it and where that comes from, its last turns. m, c, w, "
        "s, r and p limit its memory or time, set its weight, suspend, resume and preempt, and "
        "ask first; Tab makes it all programs of its tenant together. / filters, < and > sort, "
        "? shows all keys, q quits. A mouse selects, sorts and scrolls. A small terminal shows "
        "less of each GPU; one that cannot be drawn on (TERM=dumb) gets one picture below the "
        "other."
    ),
    examples=(
        ("nvsharectl top", "once a second"),
        ("nvsharectl top -i 0.2", "five times a second"),
        ("nvsharectl top --json", "one line of JSON each time, for a program"),
    ),
    arguments=(
        argument(
            "-i", "--interval", metavar="SECONDS", type=_interval, default=1.0,
            help="time between two looks; 1",
        ),
    ),
    act=_act,
)
