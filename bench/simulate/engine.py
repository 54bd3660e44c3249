# SPDX-License-Identifier: Apache-2.0
"""The card's multiprocessors, which divide their time equally among programs in flight.

One figure counts the time that each program in flight got since the start. A flight (submitted
work of one program) ends when that figure has grown by the size of the flight.
"""

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from math import ceil
from typing import Protocol

NEARLY = 1e-3                           # microseconds: rounding error of sums


class Agenda(Protocol):
    now: int

    def schedule(self, when: int, callback: Callable[[], None]) -> None:
        """Call `callback` at `when`, in microseconds."""


class Flyer(Protocol):
    """A program that can have work in flight."""

    kernel: int

    def landed(self, done: int | None = None) -> None:
        """Called when `done` microseconds of the program's work in flight have finished."""


@dataclass(eq=False, slots=True)
class Flight:
    """Submitted work of one program that has not finished."""

    flyer: Flyer
    begun: float                        # Engine._had at the start of the flight
    size: int                           # microseconds that the flight needs in all


class Engine:
    def __init__(self, agenda: Agenda) -> None:
        self._agenda = agenda
        self._had = 0.0                 # us that each program in flight got since the start
        self._until = agenda.now
        self._flights: dict[Flyer, Flight] = {}
        self._ends: list[tuple[float, int, Flight]] = []
        self._ties = count()
        self._armed = 0                 # number of timers set; only the last one is valid

    def start(self, flyer: Flyer, size: int) -> None:
        self._pass()
        flight = self._flights[flyer] = Flight(flyer, self._had, size)
        self._push(flight)

    def cut(self, flyer: Flyer) -> None:
        """Ends a program's flight after the kernel that runs now, as the program was stopped."""
        self._pass()
        flight = self._flights[flyer]
        done = self._had - flight.begun - NEARLY
        flight.size = min(flight.size, ceil(max(done, 1) / flyer.kernel) * flyer.kernel)
        self._push(flight)

    def under_way(self) -> Iterator[tuple[Flyer, float]]:
        """Returns programs with work in flight, and the finished microseconds of that work."""
        self._pass()
        return ((flight.flyer, self._had - flight.begun) for flight in self._flights.values())

    def drop(self, flyer: Flyer) -> None:
        self._pass()
        if self._flights.pop(flyer, None) is not None:
            self._arm()

    def _pass(self) -> None:
        now = self._agenda.now
        if self._flights:
            self._had += (now - self._until) / len(self._flights)
        self._until = now

    def _push(self, flight: Flight) -> None:
        heapq.heappush(self._ends, (flight.begun + flight.size, next(self._ties), flight))
        self._arm()

    def _arm(self) -> None:
        while self._ends and self._stale():
            heapq.heappop(self._ends)
        self._armed += 1
        if self._ends:
            armed, left = self._armed, self._ends[0][0] - self._had
            when = self._agenda.now + max(0, ceil((left - NEARLY) * len(self._flights)))
            self._agenda.schedule(when, lambda: self._land() if armed == self._armed else None)

    def _stale(self) -> bool:
        ends, _, flight = self._ends[0]
        return self._flights.get(flight.flyer) is not flight or ends > flight.begun + flight.size

    def _land(self) -> None:
        self._pass()
        landed = []
        while self._ends and (self._stale() or self._ends[0][0] <= self._had + NEARLY):
            if not self._stale():
                landed.append(self._flights.pop(self._ends[0][2].flyer))
            heapq.heappop(self._ends)
        self._arm()
        for flight in landed:
            flight.flyer.landed(flight.size)
