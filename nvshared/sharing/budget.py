# SPDX-License-Identifier: Apache-2.0
"""Notifies a card's scheduler when another card has changed a shared budget or a loan.

Each scheduler gets only the events of its own clients. See scheduler/domains.py."""

from collections.abc import Iterable

from nvshared.clock import Timer
from nvshared.scheduler import events
from nvshared.scheduler.domains import SharedBudget
from nvshared.sharing.gpu import GPU
from nvshared.signal import Signal
from nvshared.units import MILLISECOND

REPORT_WITHIN = 20 * MILLISECOND
WORTH_REPORTING = 64                    # changes below 1/64 of the budget are not reported


class Budget:
    """Notifies each card when a shared budget of host memory or of the disk has changed.

    A notified card sends new limits to its clients, so changes up to 1/WORTH_REPORTING are not
    reported. While a card gathers the HELLOs of an earlier daemon's clients, each card promises at
    most an equal part, and COMMIT requests beyond that wait."""

    def __init__(
        self, tier: str, shared: SharedBudget, timer: Timer,
    ) -> None:
        # Emitted when all cards know their clients, so that listeners may enlarge the budget.
        self.gathered: Signal[()] = Signal("gathered")
        self.shared = shared
        self._tier = tier
        self._timer = timer
        self._reported: dict[GPU, int] = {}     # bytes promisable at the card's last notification
        self._ending = False            # all cards know their clients, and _end() is scheduled
        self._due = False               # _report_changed() is scheduled

    def add(self, gpu: GPU) -> None:
        self.shared.gather(self.shared.gathering or gpu.state == "gathering")
        self._report(self._reported)
        self._reported[gpu] = self._promisable(gpu)
        gpu.happened.connect(self._event_handled)

    def remove(self, gpu: GPU) -> None:
        """Removes a lost card and its part of the budget."""
        self._reported.pop(gpu, None)
        self.shared.leave(gpu.scheduler.parts[self._tier])
        self._report(self._reported)

    def resize(self, size: int) -> None:
        if size != self.shared.size:
            self.shared.resize(size)
            self._report(self._reported)

    def _event_handled(self, now: int, _event: events.Event) -> None:
        if self.shared.gathering:
            if not self._ending and not self._gathers():
                self._ending = True
                self._timer(now, self._end)     # after this card has handled its event
        elif not self._due and any(map(self._differs, self._reported)):
            self._due = True
            self._timer(now + REPORT_WITHIN, self._report_changed)

    def _gathers(self) -> bool:
        return any(gpu.state == "gathering" for gpu in self._reported)

    def _end(self) -> None:
        self._ending = False
        if self._gathers():             # a lost card has come back meanwhile
            return
        self.shared.gather(False)
        self.gathered.emit()
        self._report(self._reported)

    def _promisable(self, gpu: GPU) -> int:
        return gpu.scheduler.parts[self._tier].promisable

    def _differs(self, gpu: GPU) -> bool:
        change = abs(self._promisable(gpu) - self._reported[gpu])
        return change > self.shared.size // WORTH_REPORTING

    def _report_changed(self) -> None:
        self._due = False
        self._report(filter(self._differs, self._reported))

    def _report(self, gpus: Iterable[GPU]) -> None:
        for gpu in gpus:
            self._reported[gpu] = self._promisable(gpu)
            gpu.tell(events.Tick())


class Lending:
    """Sets which cards lend memory to which, and notifies the cards that a loan concerns.

    When a card has lent more than it can, its borrowers must plan again; when a loan is returned,
    the lender must plan again."""

    def __init__(self, timer: Timer) -> None:
        self._mode = ""                 # the setting `neighbour`
        self._timer = timer
        self._concerned: dict[GPU, None] = {}   # cards that _notify() will notify
        self._seen: dict[GPU, tuple[int, int]] = {}     # by card: bytes lent, excess bytes

    def add(self, gpu: GPU) -> None:
        self._seen[gpu] = (0, 0)
        self.use(self._mode)
        gpu.happened.connect(self._event_handled)

    def remove(self, gpu: GPU) -> None:
        """Removes a lost card."""
        self._seen.pop(gpu, None)
        self._concerned.pop(gpu, None)
        self.use(self._mode)

    def use(self, mode: str) -> None:
        """Mode auto: cards linked by NVLink lend if only clients use them; on: by peer access."""
        self._mode = mode
        for gpu in self._seen:
            near = {"auto": gpu.facts.linked, "on": gpu.facts.reached}.get(mode, frozenset())
            others = [one for one in self._seen if one is not gpu]
            before = gpu.neighbour.reachable
            gpu.link(tuple(others))
            gpu.neighbour.link(
                tuple(one.neighbour for one in others),
                tuple(one.neighbour for one in others if one.facts.uuid in near),
                exclusive=mode == "auto")
            if gpu.neighbour.reachable != before:
                gpu.tell(events.Tick())
        for gpu in self._seen:
            if gpu.may_lend:
                gpu.request_sample(lambda: None)    # the sampler then keeps sampling this card

    def _event_handled(self, now: int, _event: events.Event) -> None:
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
            gpu.tell(events.Tick())
