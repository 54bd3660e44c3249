# SPDX-License-Identifier: Apache-2.0
"""The programs of nvshare's thesis, two copies of which share a card of 16 GiB.

There each computes for about 650 s on the GPU, and for as long or for a ninth of
that on the CPU. A `scale` makes the programs shorter, and nothing else: quanta,
bursts and memory stay, because the hand-over, whose cost is to be seen next to
the quantum, stays what it is. No program is shorter than some bursts.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.colocation.card import Card
from bench.colocation.job import Rates, Work

GPU_SECONDS = 650.0                     # of each program in the thesis, about
PERIOD = 4.0                            # seconds on CPU and GPU together, where they alternate
LEAST_BURSTS = 3                        # however small the scale
QUANTA = (1.0, 2.0, 5.0, 30.0, 1000.0)  # seconds
AUTO = 0.0                              # the daemon's choice
SCALE = 0.009                           # 12 s, as long as the least bursts take
SHAPES = ("sequence", "alternating")
# A quantum so many times as long as all that one of the programs does ends no turn of it.
ENDLESS = 1.5


@dataclass(frozen=True, slots=True)
class Program:
    """One of the four."""

    name: str
    bytes: float                        # its memory, all of which each step works on
    gpu: float                          # share of its time on the GPU

    def size(self, card: Card) -> int:
        """Bytes it has on this card."""
        return card.bytes(self.bytes)

    def fit_together(self, card: Card) -> bool:
        """Whether two copies do."""
        return 2 * self.size(card) <= card.capacity

    def seconds(self, card: Card, scale: float) -> float:
        """What it takes alone."""
        return max(GPU_SECONDS * scale / self.gpu, LEAST_BURSTS * PERIOD) * card.haste

    def work(self, card: Card, rates: Rates, scale: float, shape: str) -> Work:
        """What it is to do, all of the CPU part first or a little of each in turns."""
        whole = self.seconds(card, scale)
        bursts = round(whole / (PERIOD * card.haste)) if shape == "alternating" else 1
        return rates.work(whole * (1 - self.gpu), whole * self.gpu, bursts)


PROGRAMS = {
    program.name: program
    for program in (
        Program("big_50", 15.3e9, 0.5),
        Program("big_90", 15.3e9, 0.9),
        Program("small_50", 7.2e9, 0.5),
        Program("small_90", 7.2e9, 0.9),
    )
}


@dataclass(frozen=True, slots=True)
class Way:
    """How two programs share: the daemon's anti-thrash mode and its quantum."""

    mode: str                           # auto or on; "none" without daemon and library
    tq: float                           # seconds, or AUTO; of no meaning without a daemon

    def setting(self, haste: float) -> str:
        """The daemon's tq for it, where seconds are the thesis's times `haste`."""
        return words(self.tq) if self.tq == AUTO else f"{max(1, round(self.tq * haste * 1000))}ms"


WITHOUT = Way("none", AUTO)


def words(tq: float) -> str:
    """A quantum as people and the daemon know it."""
    return "auto" if tq == AUTO else f"{tq:g}"


def ways(program: Program, card: Card, quanta: Sequence[float], scale: float) -> list[Way]:
    """All that are compared; what cannot differ from another is left out.

    Programs that fit together run together and take no turns: without the library, with it (the
    shortest quantum would show if there were turns), and with turns forced upon them.
    """
    if program.fit_together(card):
        forced = sorted(quanta)[min(1, len(quanta) - 1)]
        return [WITHOUT, Way("auto", min(quanta)), Way("on", forced)]
    alike = {measured_for(program, card, quanta, scale, tq) for tq in quanta}
    return [Way("auto", tq) for tq in sorted(alike)]


def measured_for(
    program: Program, card: Card, quanta: Sequence[float], scale: float, tq: float
) -> float:
    """The quantum whose figure under anti-thrash auto is that of `tq` too."""
    if program.fit_together(card):
        return min(quanta)
    endless = ENDLESS * program.seconds(card, scale)
    return max(quanta) if tq * card.haste > endless else tq


@dataclass(frozen=True, slots=True)
class Published:
    """Two copies on a Tesla P100 of 16 GB, in the thesis; seconds from the first to the last."""

    program: str
    serial: float
    without: float                      # unified memory, shared freely
    turns: dict[str, float]             # by TQ in seconds


PUBLISHED = (
    Published("big_50", 2766, 11757, {"5": 3496, "10": 2465, "30": 2170, "60": 2122, "1000": 2043}),
    Published("big_90", 1438, 11434, {"5": 2788, "30": 1521, "1000": 1380}),
    Published("small_50", 2636, 1772, {"30": 2017}),
    Published("small_90", 1384, 1128, {"30": 1366}),
)


def published() -> list[dict[str, Any]]:
    """For the report."""
    return [asdict(one) for one in PUBLISHED]
