# SPDX-License-Identifier: Apache-2.0
"""Splits the host memory for swapped blocks between the cards, as they need it.

All cards together may take so much, and each scheduler keeps to its own part, so that none has
to ask another before it decides. A card keeps what its clients have taken or were promised
(scheduler/demand.py). What nobody needs is split evenly, so a new client finds room on
whichever card it starts.

A scheduler whose part is used up says so (BudgetWanted) before it refuses anything. It is
answered at once: it gets what it lacks out of what the others do not need. What is left then
is split evenly again, so that the next few questions need not come here. A card that has what
it needs decides without asking here. Each card is told how much the others could give up a
moment after that has changed, if it changed by more than a small part of the whole: the card's
clients are told in turn how far they could grow, which costs time where there are a thousand.

Nobody gets anything before another has given it up. While a card is gathering we do not know
what it needs, so nothing moves, and questions are answered when all have gathered. By then the
whole may be another (safebudget.py). Whoever knows says so at `gathered`, before anybody is
refused; that holds for a single card too, which asks for nothing otherwise. On a lost card,
what its clients hold is kept until they end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from nvshared.clock import Clock, Timer
from nvshared.scheduler import events
from nvshared.scheduler.demand import Demand
from nvshared.sharing.gpu import GPU
from nvshared.signal import Signal
from nvshared.units import MILLISECOND

SPLIT_WITHIN = 20 * MILLISECOND         # so soon after such events it is split anew unasked,
MOVING = (
    events.CapacityChanged | events.CommitAsked | events.Evicted | events.GPULost
    | events.Joined | events.Left | events.Loaded | events.Presaved
)
WORTH_SPLITTING = 64                    # if that moves more than this part of it


@dataclass(frozen=True, slots=True)
class Part:
    """What one card has to be told; bytes."""

    own: int
    elsewhere: int                      # what the others could give up


def split(
    whole: int, demands: Sequence[Demand], had: Sequence[int], sharing: Sequence[bool]
) -> list[Part]:
    """The part of each card. Their sum never exceeds the whole, even if more is needed.

    `had`: the parts until now; `sharing`: whether a card gets of what nobody needs.
    """
    needed = sum(demand.needs for demand in demands)
    if needed > whole:
        return [Part(own, 0) for own in _ration(whole, [one.needs for one in demands], had)]
    spare = left = whole - needed
    extras = []
    for demand in demands:
        extra = min(demand.wants - demand.needs, left)
        # Who cannot be helped with all there is gets none of it: it is for those who can.
        extras.append(extra if demand.needs + extra >= demand.enough else 0)
        left -= extras[-1]
    share = left // max(1, sum(sharing))
    parts = []
    for demand, extra, shares in zip(demands, extras, sharing, strict=True):
        own = extra + (share if shares else 0)
        parts.append(Part(demand.needs + own, spare - own))
    return parts


def _ration(whole: int, needs: Sequence[int], had: Sequence[int]) -> list[int]:
    """Where there is not enough for all, a card that has what it needs keeps it.

    Unless the whole shrank. A program that joins needs a margin at least, which cannot be refused.
    """
    parts = [min(need, part) for need, part in zip(needs, had, strict=True)]
    kept = sum(parts)
    if kept > whole:
        return [whole * part // kept for part in parts]
    left = whole - kept
    for number, need in enumerate(needs):
        more = min(need - parts[number], left)
        parts[number] += more
        left -= more
    return parts


class Budget:
    """The whole, and the cards that have it between them."""

    def __init__(self, clock: Clock, timer: Timer) -> None:
        self.gathered: Signal[()] = Signal("gathered")
        self._whole = 0                 # bytes
        self._clock = clock
        self._timer = timer
        self._gpus: list[GPU] = []
        self._asking: list[GPU] = []    # who wanted more and has not been answered
        self._gathering = False         # some of them are, or nobody was told yet that none is
        self._ending = False            # that is about to be told
        self._splitting = False
        self._due = False

    def add(self, gpu: GPU) -> None:
        """One more card, whose part is added to the whole. A single one just keeps it."""
        self._gpus.append(gpu)
        self._whole += gpu.host_budget
        self._gathering = self._gathering or self._gathers()
        gpu.happened.connect(self._heard)
        gpu.budget_wanted.connect(partial(self._wanted, gpu))
        self._split()

    @property
    def gathering(self) -> bool:
        """Whether `gathered` is yet to come."""
        return self._gathering

    def resize(self, whole: int) -> None:
        """So many bytes from now on."""
        self._whole = whole
        self._split()

    def _wanted(self, gpu: GPU) -> None:
        """It can promise no more with what it has."""
        self._asking.append(gpu)
        self._split(self._whole)        # for its sake alone

    def _heard(self, now: int, event: events.Event) -> None:
        """What one card needs may have changed, and so what is left for others."""
        if self._gathering:
            if not self._ending and not self._gathers():
                self._ending = True
                self._timer(now, self._end)     # when this card has done what it is at
        elif isinstance(event, MOVING):
            self._split_soon(now)

    def _end(self) -> None:
        """All have gathered."""
        self._gathering = False
        self.gathered.emit()
        self._split()

    def _gathers(self) -> bool:
        return any(gpu.state == "gathering" for gpu in self._gpus)

    def _split_soon(self, now: int) -> None:
        if not self._due and len(self._gpus) > 1:
            self._due = True
            self._timer(now + SPLIT_WITHIN, self._split_if_worth_it)

    def _split_if_worth_it(self) -> None:
        self._due = False
        self._split(self._whole // WORTH_SPLITTING)

    def _split(self, threshold: int = 0) -> None:
        """Tells all cards their parts if one changes by more than `threshold`, and who asked."""
        if self._splitting:             # a card asks because of what it was just told
            self._split_soon(self._clock())
            return
        self._splitting = True
        try:
            if self._gathering:
                self._hold()
            elif len(self._gpus) == 1:
                self._give_all(self._gpus[0])
            else:
                self._tell(threshold)
        finally:
            self._splitting = False

    def _give_all(self, gpu: GPU) -> None:
        """To the only card. It is not told of others, and so never asks for more again."""
        self._asking.clear()
        if (gpu.host_budget, gpu.elsewhere) != (self._whole, None):
            gpu.set_budget(self._whole, None)

    def _hold(self) -> None:
        """We do not know yet what programs were promised, so all keep what they have, and wait."""
        for gpu in self._gpus:
            if gpu.elsewhere is None:
                gpu.set_budget(gpu.host_budget, 0)

    def _tell(self, threshold: int) -> None:
        asking, self._asking = self._asking, []
        parts = split(
            self._whole, [gpu.scheduler.demand() for gpu in self._gpus],
            [gpu.host_budget for gpu in self._gpus], [not gpu.lost for gpu in self._gpus],
        )
        changed = list(zip(self._gpus, parts, strict=True))
        moves = any(
            _change(gpu, part) > threshold or (gpu in asking and part.own > gpu.host_budget)
            for gpu, part in changed
        )
        # Nobody gets anything before another has given it up.
        for gpu, part in sorted(changed, key=lambda one: one[1].own - one[0].host_budget):
            if moves and _change(gpu, part):
                gpu.set_budget(part.own, part.elsewhere)
            elif gpu in asking:
                gpu.set_budget(gpu.host_budget, part.elsewhere)


def _change(gpu: GPU, part: Part) -> int:
    if gpu.elsewhere is None:
        return part.own + part.elsewhere
    return max(abs(part.own - gpu.host_budget), abs(part.elsewhere - gpu.elsewhere))
