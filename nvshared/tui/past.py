# SPDX-License-Identifier: Apache-2.0
"""The samples of each GPU over the last minutes, one for each snapshot of the daemon."""

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from nvshared.control.snapshot import Snapshot

SPAN = 300.0                            # seconds that are kept
WINDOW = 15.0                           # seconds; rates are computed over so many, or two samples


class Figures(NamedTuple):
    """One GPU's figures in one sample."""

    turns: int
    bytes_in: int
    bytes_out: int
    use: float | None
    waiting: int
    resident: int                       # resident and pinned bytes of its clients
    swapped: int                        # swapped bytes of its clients


class Sample(NamedTuple):
    """One sample of all GPUs, by index."""

    moment: float                       # seconds of a monotonic clock
    gpus: dict[int, Figures]


class Rates(NamedTuple):
    """Rates of one GPU, per second."""

    turns: float
    bytes_in: float
    bytes_out: float


COUNTERS = frozenset({"bytes_in", "bytes_out"})     # Figures of which graphs show the rate


@dataclass(frozen=True, slots=True)
class Past:
    """All samples of the last SPAN seconds."""

    samples: tuple[Sample, ...] = ()

    def after(self, snapshot: Snapshot, moment: float) -> "Past":
        """A Past with one more sample, and without samples older than SPAN."""
        kept = (sample for sample in self.samples if moment - sample.moment <= SPAN)
        return Past((*kept, Sample(moment, {
            gpu.index: Figures(
                gpu.turns, gpu.bytes_in, gpu.bytes_out, gpu.utilization, gpu.queue_length,
                sum(client.resident + client.pinned for client in snapshot.of(gpu)),
                sum(client.swapped for client in snapshot.of(gpu)))
            for gpu in snapshot.gpus})))

    def rates(self, gpu: int) -> Rates | None:
        """Rates over the last WINDOW; None: only one sample since the daemon was started."""
        recent: list[tuple[float, Figures]] = []
        for sample in reversed(self.samples):
            if gpu not in sample.gpus or (recent and _went_back(sample.gpus[gpu], recent[-1][1])):
                break
            recent.append((sample.moment, sample.gpus[gpu]))
            if len(recent) > 1 and recent[0][0] - sample.moment >= WINDOW:
                break
        if len(recent) < 2:
            return None
        (now, last), (then, first) = recent[0], recent[-1]
        seconds = now - then
        return None if seconds <= 0 else Rates(
            (last.turns - first.turns) / seconds, (last.bytes_in - first.bytes_in) / seconds,
            (last.bytes_out - first.bytes_out) / seconds,
        )

    def series(self, gpu: int, figure: str, cells: int) -> list[float | None]:
        """The means of a field of Figures in each of `cells` equal parts of SPAN, the latest last.

        Of COUNTERS, their rates per second. None: a part without samples.
        """
        if not self.samples or cells < 1:
            return [None] * max(0, cells)
        step = SPAN / cells
        last = int(self.samples[-1].moment / step)        # fixed parts, so graphs do not flicker
        values: list[list[float]] = [[] for _ in range(cells)]
        for before, now in pairwise(self.samples):
            at = int(now.moment / step) - last + cells - 1
            seconds = now.moment - before.moment
            if at < 0 or seconds <= 0 or gpu not in before.gpus or gpu not in now.gpus:
                continue
            old, new = before.gpus[gpu], now.gpus[gpu]
            value = getattr(new, figure)
            if figure in COUNTERS:
                value = (value - getattr(old, figure)) / seconds
            if value is not None and not _went_back(old, new):
                values[at].append(value)
        return [sum(some) / len(some) if some else None for some in values]


def _went_back(before: Figures, now: Figures) -> bool:
    """Whether a counter decreased: the daemon was restarted."""
    return any(b > n for b, n in zip(before[:3], now[:3], strict=True))
