# SPDX-License-Identifier: Apache-2.0
"""What nvshared works on for a command that takes longer: on stderr, if that is a terminal.

A terminal shows a line for each program, which is erased at the end; one without cursor movement
gets a line for each change. Files, pipes and commands with --json get nothing. The figures are
those of `nvsharectl clients`."""

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TextIO

from nvshared.cli.verb import Options, drawable
from nvshared.control import Daemon
from nvshared.control.snapshot import ClientSnapshot, Snapshot
from nvshared.errors import NotRunning, NvshareError
from nvshared.tui import tables
from nvshared.units import SECOND

if TYPE_CHECKING:
    from rich.live import Live

EVERY = 0.5                             # seconds until the first picture, and between two
LINES_EVERY = 10.0                      # seconds between lines without cursor movement and news
PATIENCE = 10.0                         # seconds for a reply to the watcher
MOST = 8                                # most programs that are shown
NAME, BAR, BAR_LEAST = 24, 30, 8        # characters of a program's name, and of a bar
AMOUNT, SPENT = 16, 6                   # least characters of bytes and time, so that they stay
REST = 9 + AMOUNT + SPENT + 4 * 2 + 1   # characters of a line besides name and bar
# States of a program while it is parked, moved or saved: it is `parking` while its memory leaves.
CHANGING = frozenset({"parking", "restoring", "saving"})


class Work(NamedTuple):
    """Work on a program."""

    name: str
    state: str
    done: int = 0                       # bytes
    whole: int = 0                      # bytes; 0: unknown

    @property
    def amount(self) -> str:
        return tables.of_whole(self.done, self.whole, " of ") if self.whole else ""


class Picture(NamedTuple):
    work: Sequence[Work]
    done: int = 0                       # programs
    whole: int = 1                      # programs; with a single one, no count is shown

    @property
    def programs(self) -> str:
        return f"{self.done} of {self.whole} programs"


class Followed:
    """Programs of which memory leaves a GPU. Remembers how much each had there."""

    def __init__(self) -> None:
        self._most: dict[int, int] = {}

    def work(self, clients: Iterable[ClientSnapshot]) -> list[Work]:
        found = []
        for one in clients:
            most = self._most[one.id] = max(one.resident, self._most.get(one.id, 0))
            has_left = one.state in CHANGING and not one.resident   # only its context is left
            found.append(Work(
                tables.process(one), one.state, most - one.resident, 0 if has_left else most))
        return found


class Progress:
    """Shows pictures from any thread. A context that erases the last one at its end."""

    def __init__(self, options: Options) -> None:
        self.enabled = not options.json and sys.stderr is not None and sys.stderr.isatty()
        self._lock = threading.RLock()
        self._began = self._shown = time.monotonic()
        self._since: dict[str, float] = {}      # when each program was shown first, by name
        self._live: Live | None = None
        self._lines: tuple[object, float] = None, 0.0   # the last lines: their news, and when

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.enabled = False
            self._hide()

    def say(self, line: str, to: TextIO | None = None) -> None:
        """Prints a line of the command's result, on stdout or `to` a stream."""
        with self._lock:
            self._hide()
            print(line, file=to, flush=True)

    def show(self, picture: Picture) -> None:
        """Shows the picture; not one without work, since polkit may be asking for a password."""
        with self._lock:
            now = time.monotonic()
            if not self.enabled or now - self._shown < EVERY:
                return
            self._shown = now
            try:
                if not picture.work:
                    self._hide()
                elif drawable(sys.stderr):
                    self._draw(picture)
                else:
                    self._print(picture)
            except OSError:             # stderr cannot be written
                self.enabled = False

    def _hide(self) -> None:
        if self._live is not None:
            with suppress(OSError):
                self._live.stop()
            self._live = None

    def _times(self, picture: Picture) -> list[str]:
        """For how long each program has been shown, and then how long the command took."""
        now = time.monotonic()
        self._since = {one.name: self._since.get(one.name, now) for one in picture.work}
        return [tables.duration(int((now - since) * SECOND)) for since in (
            *(self._since[one.name] for one in picture.work), self._began)]

    def _print(self, picture: Picture) -> None:
        news = picture.done, [(one.name, one.state) for one in picture.work]
        now, (before, at) = time.monotonic(), self._lines
        *times, total = self._times(picture)
        if news == before and now - at < LINES_EVERY:
            return
        self._lines = news, now
        if picture.whole > 1:
            print(f"{picture.programs}, {total}", file=sys.stderr)
        for one, spent in zip(picture.work[:MOST], times, strict=False):
            print(f"{one.name}: {', '.join(filter(None, (one.state, one.amount, spent)))}",
                  file=sys.stderr)

    def _draw(self, picture: Picture) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        class SteadyConsole(Console):
            def show_cursor(self, show: bool = True) -> bool:
                """A hidden cursor would stay hidden if a signal ended or stopped the command."""
                return False

        wide = 0
        with suppress(OSError):
            wide = os.get_terminal_size(sys.stderr.fileno()).columns
        wide = wide or shutil.get_terminal_size().columns
        bar = min(BAR, wide - NAME - REST)
        fits = bar >= BAR_LEAST
        widths = (0, 0, bar, AMOUNT, SPENT) if fits else (0, 0, 0, 0)
        table = Table.grid(padding=(0, 2 if fits else 1, 0, 0))
        for at, least in enumerate(widths, 2 - len(widths)):
            table.add_column(no_wrap=True, min_width=least, justify="right" if at >= 0 else "left")

        def add(name: str, state: str, done: int, whole: int, amount: str, spent: str) -> None:
            drawn: list[Any] = [ProgressBar(whole, done, bar) if whole else ""]
            # Text: a program's name may have brackets, which rich would take for markup.
            table.add_row(Text(tables.shortened(name, NAME)), state,
                          *(drawn if fits else []), amount, spent)

        *times, total = self._times(picture)
        if picture.whole > 1:
            add(picture.programs, "", picture.done, picture.whole, "", total)
        for one, spent in zip(picture.work[:MOST], times, strict=False):
            add(*one, one.amount, spent)
        if len(picture.work) > MOST:
            add(f"and {len(picture.work) - MOST} more", "", 0, 0, "", "")
        if self._live is None:
            self._live = Live(
                console=SteadyConsole(stderr=True, highlight=False, width=wide), transient=True,
                auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
            self._live.start()
        self._live.console.width = wide
        self._live.update(table, refresh=True)


Look = Callable[[Daemon], Picture]


@contextmanager
def watching(options: Options, look: Look, every: float = EVERY) -> Iterator[Progress]:
    """Shows what `look` finds, from a thread, while the caller waits for a reply of nvshared."""
    ended = threading.Event()
    with Progress(options) as progress:

        def watch() -> None:
            # The caller reports errors, such as the end of nvshared.
            with suppress(NvshareError), Daemon(options.bus, PATIENCE, asks=False) as daemon:
                progress.show(look(daemon))
                while not ended.wait(every):
                    progress.show(look(daemon))

        if progress.enabled:
            # Not joined: it may wait for a reply. What it finds after the end is not shown.
            threading.Thread(target=watch, daemon=True).start()
        try:
            yield progress
        finally:
            ended.set()


def changes_of(pid: int) -> Look:
    """Looks for a process that is parked or moved."""
    followed = Followed()
    return lambda daemon: Picture(followed.work([
        one for one in daemon.snapshot().clients if one.pid == pid and one.state in CHANGING]))


def departures_from(gpu: str) -> Look:
    """Looks for the clients that a GPU had first: those that leave it, and are gone or parked."""
    followed, first = Followed(), set[int]()

    def look(daemon: Daemon) -> Picture:
        index = daemon.gpu(gpu)
        there = [one for one in daemon.snapshot().clients if one.gpu == index]
        first.update(() if first else (one.id for one in there))
        stay = [one for one in there if one.id in first and one.state != "parked"]
        return Picture(followed.work([one for one in stay if one.state in CHANGING]),
                       len(first) - len(stay), len(first))

    return look


def snapshots(daemon: Daemon, every: float, peer: str = "") -> Iterator[Snapshot]:
    """Snapshots of one daemon, `peer` or the running one, with pauses of `every` seconds.

    Raises NotRunning once that daemon has ended: clients come back to the next daemon only after a
    moment, and orders that the old daemon had are lost."""
    while True:
        now = daemon.snapshot()
        peer = peer or daemon.peer
        if daemon.peer != peer:
            raise NotRunning("nvshared was started again meanwhile", "give the command again")
        yield now
        time.sleep(every)
