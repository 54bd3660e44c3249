# SPDX-License-Identifier: Apache-2.0
"""Which cards lend memory to which, and that each hears of what concerns it.

The schedulers decide (scheduler/loans.py), and one hears only of its own clients. So when a card
has lent more than it can lend, the cards whose clients hold that are to look again; when a loan has
come back, its lender is.
"""

from nvshared.clock import Timer
from nvshared.scheduler.events import Event, Tick
from nvshared.sharing.gpu import GPU


class Lending:
    """Between all cards. `mode`: the setting `neighbour`."""

    def __init__(self, mode: str, timer: Timer) -> None:
        self._mode = mode
        self._timer = timer
        self._concerned: dict[GPU, None] = {}   # which are about to hear of it
        self._seen: dict[GPU, tuple[int, int]] = {}     # what each had lent, and of that too much

    def add(self, gpu: GPU) -> None:
        """A card."""
        self._seen[gpu] = (0, 0)
        self.use(self._mode)
        gpu.happened.connect(self._heard)

    def use(self, mode: str) -> None:
        """auto: cards linked by NVLink lend to each other while they have no processes but clients;
        on: all that reach each other; off.

        What has been lent and is not allowed any more is taken back.
        """
        self._mode = mode
        for gpu in self._seen:
            near = {"auto": gpu.facts.linked, "on": gpu.facts.reached}.get(mode, frozenset())
            others = [one for one in self._seen if one is not gpu]
            before = gpu.neighbour.reachable
            gpu.others = tuple(others)
            gpu.neighbour.others = tuple(one.neighbour for one in others)
            gpu.neighbour.exclusive = mode == "auto"
            gpu.neighbour.reachable = tuple(
                one.neighbour for one in others if one.facts.uuid in near)
            if gpu.neighbour.reachable != before:
                gpu.tell(Tick())
        for gpu in self._seen:
            if gpu.may_lend:
                gpu.look(lambda: None)  # the sampler goes on with it

    def _heard(self, now: int, _event: Event) -> None:
        due = bool(self._concerned)
        for gpu, (lent, excess) in self._seen.items():
            latest = self._seen[gpu] = (gpu.neighbour.lent, gpu.neighbour.excess)
            if latest[0] < lent:
                self._concerned[gpu] = None
            if latest[1] and latest[1] != excess:
                borrowers = [g for g in self._seen if gpu.neighbour.loans.keys() & g.clients.keys()]
                self._concerned |= dict.fromkeys(borrowers)
        if self._concerned and not due:
            self._timer(now, self._tell)        # when this card has done what it is at

    def _tell(self) -> None:
        concerned, self._concerned = self._concerned, {}
        for gpu in concerned:
            gpu.tell(Tick())
