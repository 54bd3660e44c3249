# SPDX-License-Identifier: Apache-2.0
"""Runs programs of load.c at the same time, each as another user, so that rules can differ."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache

from bench import program
from bench.daemon.service import message_bus
from bench.handover.card import Card
from bench.harness import ROOT, Sharing, sharing
from bench.trace import Line
from nvshared.control import Daemon
from nvshared.errors import NvshareError
from nvshared.terms import TERMS

PROGRAM = ROOT / "build" / "bench-shares" / "load"
FIRST_USER = 64001                      # user id that no account should have
BINS = 10                               # intervals of a second in which work is counted
SOON = 0.3                              # seconds until all programs have read the time of the start
WORDS, SIMULATED_WORDS = 1 << 19, 1 << 6
PASSED, WORD, CHUNK = 64, 8, 8          # words of a pass per kernel word; bytes of a word; blocks


@dataclass(frozen=True, slots=True)
class Shape:
    """One unit of a program's work; times in microseconds."""

    name: str
    kernels: int
    each: int
    passes: int = 0                     # passes over PASSED times the kernels' memory,
    part: float = 0.0                   # or over this part of the card
    period: int = 0                     # us from unit to unit; 0: at the end of the last
    graph: bool = False
    host: int = 0                       # us of the program's CPU work before each kernel


@dataclass(frozen=True, slots=True)
class Program:
    shape: Shape
    terms: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Work:
    done: tuple[float, ...]             # units finished in each tenth of a second
    milliseconds: tuple[float, ...]     # duration of each unit, if Shape.period is set
    right: bool

    def rate(self, begin: float = 0.0, end: float | None = None) -> float:
        """Units per second, from `begin` to `end` in seconds."""
        bins = self.done[round(begin * BINS):None if end is None else round(end * BINS)]
        return sum(bins) * BINS / len(bins)

    def late(self, part: float) -> float:
        """Returns the quantile `part` (0 to 1) of the units' durations in ms."""
        return sorted(self.milliseconds)[round(part * (len(self.milliseconds) - 1))]


def together(card: Card, seconds: float, programs: Sequence[Program], options: Sequence[str] | None,
             trace: list[Line] | None = None) -> list[Work]:
    """Returns each program's work in `seconds`. `options`: of the daemon; None: no library. Appends
    the lines of the daemon's trace to `trace`."""
    if options is None:
        return work(card, programs, card.plain, seconds)
    # On a simulated card one user runs all programs: a rule of a user would hold for each of these.
    with (
        message_bus(card.log.parent) if card.simulated else nullcontext("none") as bus,
        serving(card, programs, (*options, "--bus", bus)) as daemon,
    ):
        found = work(card, programs, daemon.environment, seconds, bus=bus)
        if trace is not None:
            trace += daemon.trace()
        return found


def user_of(card: Card, number: int | None) -> int | None:
    """The user id of a program; None: the benchmark's own, as always with a simulated card."""
    return None if card.simulated or number is None else FIRST_USER + number


def tenant(card: Card, number: int) -> str:
    """The tenant of the program with this number."""
    return f"user:{user_of(card, number) or os.geteuid()}"


@contextmanager
def serving(card: Card, programs: Sequence[Program], options: Sequence[str]) -> Iterator[Sharing]:
    rules = card.log.with_name("nvshared.conf")
    rules.write_text("".join(
        f"[tenant user:{FIRST_USER + number}]\n"
        + "".join(f"{name} = {value}\n" for name, value in program.terms.items())
        for number, program in enumerate(programs) if program.terms))
    with card.log.open("ab") as log, sharing("--config", str(rules), *options,
                                             environment=dict(card.environment), log=log) as daemon:
        daemon.socket.parent.chmod(0o755)
        yield daemon


@cache
def _rate(card: Card) -> float:
    """Measures the number of a kernel's rounds in a microsecond."""
    with _started(card, Shape("", 1, 1), 0, card.plain, 0.0) as measuring:
        return float(measuring.ready["rate"])


def work(card: Card, programs: Sequence[Program], environment: Mapping[str, str], seconds: float,
         apart: bool = True, bus: str = "none") -> list[Work]:
    """Returns each program's work in `seconds`. `apart`: each runs as another user. `bus`: of a
    daemon that is told each program's terms; "none": the daemon has rules."""
    rate = _rate(card)
    with ExitStack() as stack:
        running = [
            stack.enter_context(
                _started(card, one.shape, number if apart else None,
                         {**environment, **_priority(card, one)}, rate))
            for number, one in enumerate(programs)]
        if bus != "none":
            _tell(bus, programs, [one.pid for one in running])
        begin = time.monotonic() + SOON
        for one in running:
            one.send(begin, seconds)
        answers = [one.receive() for one in running]
    return [Work(tuple(one["done"]), tuple(one["milliseconds"]), one["right"]) for one in answers]


def _priority(card: Card, one: Program) -> dict[str, str]:
    """The variable that lowers a program's priority where no rule does."""
    given = one.terms.get("priority", "normal")
    return {"NVSHARE_PRIORITY": given} if card.simulated and given == "background" else {}


def _tell(bus: str, programs: Sequence[Program], pids: Sequence[int]) -> None:
    """Sets the terms of running programs, as far as programs have them."""
    with Daemon(bus) as daemon:
        for one, pid in zip(programs, pids, strict=True):
            for name, text in one.terms.items():
                if TERMS[name].of_client:
                    for client in daemon.clients_of(pid):
                        daemon.set_client_term(client, name, TERMS[name].unit.parse(text))


def _started(card: Card, shape: Shape, number: int | None, environment: Mapping[str, str],
             rate: float) -> AbstractContextManager[program.Program]:
    if not card.simulated and number is not None and os.geteuid() != 0:
        raise NvshareError("programs of several users are needed", "run this as root")
    words = SIMULATED_WORDS if card.simulated else WORDS
    chunk = memory = PASSED * words if shape.passes else 0
    if shape.part:
        chunk = CHUNK * card.block // WORD
        memory = card.share(shape.part) // WORD
    numbers = (shape.kernels, shape.each, shape.passes, shape.period, int(shape.graph), words,
               rate, memory, chunk, shape.host)
    return program.started([str(PROGRAM), *map(str, numbers)], environment, user_of(card, number))
