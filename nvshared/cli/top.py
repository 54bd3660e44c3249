# SPDX-License-Identifier: Apache-2.0
"""nvsharectl top: the dashboard, live."""

import argparse
import json
import os
import select
import signal
import sys
import termios
import time
import tty
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from nvshared.cli.verb import Options, Verb
from nvshared.control import Daemon
from nvshared.errors import InvalidArgs, NvshareError

if TYPE_CHECKING:
    from nvshared.control.snapshot import Snapshot

SHORTEST = 0.1                          # seconds; faster is not seen, only paid for
LONGEST = 3600.0
DUMB = ("dumb", "unknown")              # terminals on which rich draws nothing live
WINDOW = 15.0                           # seconds over which rates are taken, two looks at least


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


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-i", "--interval", metavar="SECONDS", type=_interval, default=1.0,
        help="time between two looks; 1",
    )


def _act(options: Options) -> None:
    if options.json:
        _stream(options)
    elif sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") not in DUMB:
        _watch(options)
    else:
        raise InvalidArgs(
            "top needs a terminal that can be drawn on", "for one look, use: nvsharectl status"
        )


def _stream(options: Options) -> None:
    """One line of JSON after the other, until whoever reads them has enough."""
    with Daemon(options.bus) as daemon:
        while True:
            print(json.dumps(daemon.snapshot().as_dict()), flush=True)
            time.sleep(options.interval)


def _watch(options: Options) -> None:
    from rich.console import Console, Group, RenderableType
    from rich.live import Live
    from rich.text import Text

    from nvshared.tui.dashboard import dashboard
    from nvshared.tui.rates import rates

    keys = Text("q quits", style="dim")
    history: deque[tuple[float, Snapshot]] = deque()
    daemon: Daemon | None = None
    screen = Live(console=Console(), screen=True, auto_refresh=False)
    with _ended_in_order(), _keys_at_once(), screen as live:
        try:
            while True:
                shown: RenderableType
                try:
                    daemon = daemon or Daemon(options.bus)
                    now = daemon.snapshot()
                except NvshareError as error:
                    # It may be on its way back: look again at the next turn.
                    if daemon is not None:
                        daemon.close()
                    daemon = None
                    history.clear()
                    shown = Text(f"{error}", style="yellow")
                else:
                    moment = time.monotonic()
                    history.append((moment, now))
                    while len(history) > 2 and moment - history[0][0] > WINDOW:
                        history.popleft()
                    began, before = history[0]
                    height = max(1, live.console.height - 1)    # the keys stand below
                    shown = dashboard(now, rates(before, now, moment - began), height)
                live.update(Group(shown, keys), refresh=True)
                if _quits(options.interval):
                    return
        except KeyboardInterrupt:
            return
        finally:
            if daemon is not None:
                daemon.close()


def _quits(seconds: float) -> bool:
    """Waits that long for a key. Whether it says to end, as does a terminal that is gone."""
    terminal = sys.stdin.fileno()
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if select.select([terminal], [], [], left)[0]:
            # Not through sys.stdin, whose buffer select() does not see.
            struck = os.read(terminal, 64)
            if not struck or b"q" in struck.lower():
                return True
    return False


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """Whoever is told to end gives the screen back first, and then ends as told."""

    def end(number: int, _frame: object) -> NoReturn:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _keys_at_once() -> Iterator[None]:
    """Keys are read as they are struck, and the terminal is left as it was found."""
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


VERB = Verb(
    name="top",
    summary="watch who has each GPU, and memory move",
    description=(
        "Shows each GPU and its programs, live: how full the card is, who holds it (▶) and who "
        "waits, whose memory is on the card (█) and whose in host memory (▒), and how often the "
        "GPU changes hands. The key q quits. On a terminal that is too low for all GPUs, GPUs "
        "where nothing happens get one line each, or are only counted."
    ),
    examples=(
        ("nvsharectl top", "once a second"),
        ("nvsharectl top -i 0.2", "five times a second"),
        ("nvsharectl top --json", "one line of JSON each time, for a program"),
    ),
    configure=_configure,
    act=_act,
)
