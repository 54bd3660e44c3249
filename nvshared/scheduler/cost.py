# SPDX-License-Identifier: Apache-2.0
"""What a hand-over costs: an estimate, learned from those before.

The cost is the time in which nobody uses the place of the client that leaves: from the end of
its drain until the gate opens for the client that waited for its room. The drain is not part of
it, as work in flight is work. What was loaded ahead, while others ran, cost nothing.

So the next hand-over will cost

    latency + pace * (bytes that the coming client lacks at that moment)

**Latency** is what passes even if nothing has to move: orders and answers on their way. It is
measured at each STOP: the time until STOPPED came, less the time in which, by the hook's own
words, it drained.

**Pace** is microseconds per byte, from being chosen to being whole. It is learned from whole
hand-overs and not from the times that hooks report for each move. Moves of both directions
overlap and wait for each other's room, zero and unchanged blocks cross no bus, a slow host
makes everything longer: all of that is in the pace. Each client has its own, as the content of
its memory makes the largest difference: of 100 GiB that a framework has set aside and not used,
nothing moves. A client that was not seen yet is taken to be like the others lately. Hand-overs
of a few blocks teach nothing about the pace.

Both are running averages, whose expectation is the mean. That keeps the lost part of the time
where it should be (quantum.py) when hand-overs differ. The first measurement replaces the start
value, later ones weigh less, and the last few count in all. An outlier (the host was paging, a
load failed and was tried again) counts as not quite so far from the average. A lasting change
is learned within a few hand-overs, even if until now nothing had to move at all.
"""


from dataclasses import dataclass

from nvshared.scheduler.settings import BLOCK
from nvshared.units import SECOND

MEMORY = 4                              # a new measurement is this part of the average, or more
FAR = 4.0                               # times the average; what is farther counts as that
# Bytes per microsecond. PCI Express 3, 4 and 5 copy 12, 25 and 50 thousand. Started with the
# middle, a first turn is half or twice as long as it should be.
USUAL_SPEED = 25_000
FAST = 20 * USUAL_SPEED                 # what was faster than that on average is soon unlearned
SLOWEST = 100                           # what is slower waited for something else than a bus
TELLING = 4 * BLOCK                     # bytes that must have been lacking to teach the pace
USUAL_LATENCY = 1000                    # us
LEAST_LATENCY, MOST_LATENCY = 100, 50_000


@dataclass(frozen=True, slots=True)
class Average:
    """A running average of `number` measurements, at most MEMORY."""

    value: float
    least: float                        # of an average, when it is asked what is far from it
    number: int = 0

    def after(self, measured: float) -> "Average":
        """With one measurement more."""
        if self.number:
            measured = max(measured, self.value / FAR)
            measured = min(measured, max(self.value, self.least) * FAR)
        number = min(self.number + 1, MEMORY)
        return Average(self.value + (measured - self.value) / number, self.least, number)


# A latency that was measured once may be any, so what it starts with counts as a measurement.
LATENCY = Average(USUAL_LATENCY, USUAL_LATENCY, 1)
PACE = Average(1 / USUAL_SPEED, 1 / FAST)
PAUSE = Average(0, SECOND)             # see pauses.py


def paced(pace: Average, lacked: int, took: int) -> Average:
    """The pace, now that `lacked` bytes were there after `took` microseconds."""
    if lacked < TELLING:
        return pace
    return pace.after(min(took / lacked, 1 / SLOWEST))


def delayed(latency: Average, waited: int, drained: int) -> Average:
    """The latency, now that STOPPED came `waited` us after STOP, of which it drained `drained`."""
    return latency.after(min(max(waited - drained, LEAST_LATENCY), MOST_LATENCY))
