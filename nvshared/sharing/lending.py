# SPDX-License-Identifier: Apache-2.0
"""Sets which cards lend memory to which, and notifies a card when another card changes its loans.

Each scheduler gets only the events of its own clients: when a card has lent more than it can, the
borrowers' cards must plan again; when a loan is returned, the lender must.
"""

from nvshared.clock import Timer
from nvshared.scheduler.events import Event, Tick
from nvshared.sharing.gpu import GPU


class Lending:
    def __init__(self, timer: Timer) -> None:
        self._mode = ""                 # the setting `neighbour`
        self._timer = timer
        self._concerned: dict[GPU, None] = {}   # cards that _notify() will notify
        self._seen: dict[GPU, tuple[int, int]] = {}     # by card: bytes lent, and excess of it

    def add(self, gpu: GPU) -> None:
        self._seen[gpu] = (0, 0)
        self.use(self._mode)
        gpu.happened.connect(self._event_handled)

    def use(self, mode: str) -> None:
        """auto: cards linked by NVLink lend if only clients use them; on: all with peer access."""
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
                gpu.request_sample(lambda: None)    # the sampler then keeps sampling this card

    def _event_handled(self, now: int, _event: Event) -> None:
        due = bool(self._concerned)
        for gpu, (lent, excess) in self._seen.items():
            latest = self._seen[gpu] = (gpu.neighbour.lent, gpu.neighbour.excess)
            if latest[0] < lent:
                self._concerned[gpu] = None
            if latest[1] and latest[1] != excess:
                borrowers = [g for g in self._seen if gpu.neighbour.loans.keys() & g.clients.keys()]
                self._concerned |= dict.fromkeys(borrowers)
        if self._concerned and not due:
            self._timer(now, self._notify)  # after this card has handled its event

    def _notify(self) -> None:
        concerned, self._concerned = self._concerned, {}
        for gpu in concerned:
            gpu.tell(Tick())
