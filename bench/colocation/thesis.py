# SPDX-License-Identifier: Apache-2.0
"""The programs of nvshare's thesis, two copies of which share a card of 16 GiB.

Quanta, bursts and memory are the thesis's; the duration is shorter. Both programs are evicted once
before each measurement, because the first eviction also allocates host memory.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from bench.colocation.job import Done, Rates, Work, calibrate, job
from bench.handover.card import Card
from bench.handover.goal import Goal, Result
from bench.harness import Sharing
from bench.trace import MEASURABLE, summary
from nvshared.units import GIB, MIB

CAPACITY = 16 * GIB                     # bytes of the card in the thesis
MOST = 0.7                              # part that is used of a card with less memory
PERIOD = 4.0                            # seconds of one alternation of CPU and GPU work
QUANTA = (1.0, 2.0, 5.0, 30.0)          # seconds
FORCED = 2.0                            # seconds: quantum of programs that fit, in forced turns
HASTE = 0.1                             # factor of all durations on a simulated card
SHAPES = ("sequence", "alternating")
SEEDS = (1, 2)                          # seeds of the copies: their memory must differ
CALIBRATION = 0.5                       # seconds of CPU work and of GPU work


@dataclass(frozen=True, slots=True)
class Program:
    name: str
    bytes: float                        # bytes of its memory; each step works on all
    gpu: float                          # share of its time on the GPU

    def size(self, card: Card) -> int:
        return int(self.bytes * capacity(card) / CAPACITY) // MIB * MIB

    def ways(self, card: Card) -> list[tuple[str, float | None]]:
        """Returns pairs of anti-thrash mode and quantum; quantum None: without the library.

        Programs that fit together run at once, except in the mode `on`, which forces turns.
        """
        if 2 * self.size(card) <= capacity(card):
            return [("free", None), ("auto", QUANTA[0]), ("on", FORCED)]
        return [("auto", quantum) for quantum in QUANTA]

    def work(self, card: Card, rates: Rates, shape: str) -> Work:
        """Returns the work: all CPU work before all GPU work, or in alternation, by `shape`."""
        haste = HASTE if card.simulated else 1.0
        whole = max(card.seconds / 4 / self.gpu, 3 * PERIOD) * haste
        bursts = round(whole / (PERIOD * haste)) if shape == "alternating" else 1
        return rates.work(whole * (1 - self.gpu), whole * self.gpu, bursts)

    def measure(self, card: Card) -> Iterator[Result]:
        rates = _rates(card, self.size(card))
        for shape in SHAPES:
            work = self.work(card, rates, shape)
            alone = [_alone(self.size(card), seed, work, card.plain) for seed in SEEDS]
            for mode, quantum in self.ways(card):
                if quantum is None:
                    found = self._pair(card, work, card.plain)
                    yield self._result(card, shape, mode, alone, *found)
                    continue
                tq = f"{round(1000 * quantum * (HASTE if card.simulated else 1))}ms"
                with card.sharing("--tq", tq, "--anti-thrash", mode, "--capacity",
                                  str(capacity(card))) as daemon:
                    found = self._pair(card, work, daemon.environment, daemon)
                yield self._result(card, shape, f"{mode}, quantum {quantum:g} s", alone, *found)

    def _pair(self, card: Card, work: Work, environment: dict[str, str],
              daemon: Sharing | None = None) -> tuple[list[Done], dict[str, Any]]:
        with ExitStack() as stack:
            copies = [stack.enter_context(job(self.size(card), seed, environment))
                      for seed in SEEDS]
            for copy in copies * 2:
                copy.fill()
            known = 0 if daemon is None else len(daemon.trace())
            for copy in copies:
                copy.begin(work)
            done = [copy.end() for copy in copies]
            return done, {} if daemon is None else moved(daemon, known, card)

    def _result(self, card: Card, shape: str, way: str, alone: list[Done], done: list[Done],
                trace: dict[str, Any]) -> Result:
        serial, together = sum(one.seconds for one in alone), max(one.seconds for one in done)
        stop_to_run = trace.get("stop_to_run_ms")
        return Result(
            self.name, f"{shape}, {way}",
            (
                Goal("together, over one after the other", together / serial, "times"),
                Goal("one after the other", serial, "s"),
                Goal("STOP to RUN", stop_to_run and stop_to_run["median"], "ms")),
            {"bytes": self.size(card), "seconds": together, "serial": serial, "trace": trace,
             "alone": [asdict(one) for one in alone], "each": [asdict(one) for one in done]},
            tuple(f"copy {seed} has another result than alone" for seed, one, other
                  in zip(SEEDS, done, alone, strict=True) if one.digest != other.digest))


def capacity(card: Card) -> int:
    return min(CAPACITY, int(MOST * card.total))


def moved(daemon: Sharing, known: int, card: Card) -> dict[str, Any]:
    """Returns bench.trace.summary() of the trace after its first `known` lines."""
    trace = daemon.trace()
    # Keep each client's last memory figures, lest earlier host memory count as newly allocated.
    had = {line["client"]: line for line in trace[:known] if "memory" in line}
    before = [{**line, "event": "memory"} for line in had.values()]
    return summary([*before, *trace[known:]], card.block if card.simulated else MEASURABLE)


@cache
def _rates(card: Card, size: int) -> Rates:
    with job(size, SEEDS[0], card.plain) as one:
        return calibrate(one, CALIBRATION)


def _alone(size: int, seed: int, work: Work, environment: dict[str, str]) -> Done:
    with job(size, seed, environment) as one:
        one.fill()
        return one.work(work)


PROGRAMS = {
    program.name: program
    for program in (
        Program("big_50", 15.3e9, 0.5),
        Program("big_90", 15.3e9, 0.9),
        Program("small_50", 7.2e9, 0.5),
        Program("small_90", 7.2e9, 0.9))
}
