# SPDX-License-Identifier: Apache-2.0
"""Notifies each card when a shared budget of host memory or of the disk has changed.

The schedulers of all cards share a SharedBudget (scheduler/domains.py). A notified card sends new
limits to its clients, so it is notified of changes above 1/WORTH_REPORTING only. While a card
gathers the HELLOs of an earlier daemon's clients, each promises at most an equal part, and COMMIT
requests beyond that wait. Listeners of `gathered` may enlarge the budget before any is refused.
"""

from collections.abc import Callable, Iterable

from nvshared.clock import Timer
from nvshared.scheduler import events
from nvshared.scheduler.domains import SharedBudget
from nvshared.sharing.gpu import GPU
from nvshared.signal import Signal
from nvshared.units import MILLISECOND

REPORT_WITHIN = 20 * MILLISECOND
WORTH_REPORTING = 64                    # changes below 1/64 of the budget are not reported


class Budget:
    def __init__(
        self, shared: SharedBudget, timer: Timer,
        promisable: Callable[[GPU], int] = lambda gpu: gpu.scheduler.host_promisable,
    ) -> None:
        # Emitted once no card waits any more for the HELLOs of an earlier daemon's clients.
        self.gathered: Signal[()] = Signal("gathered")
        self.shared = shared
        self._promisable = promisable
        self._timer = timer
        self._reported: dict[GPU, int] = {}     # bytes promisable at the card's last notification
        self._ending = False            # all cards have gathered, and _end() is scheduled
        self._due = False               # _report_changed() is scheduled

    def add(self, gpu: GPU) -> None:
        self.shared.gathering = self.shared.gathering or gpu.state == "gathering"
        self._report(self._reported)
        self._reported[gpu] = self._promisable(gpu)
        gpu.happened.connect(self._event_handled)

    def resize(self, size: int) -> None:
        if size != self.shared.size:
            self.shared.size = size
            self._report(self._reported)

    def _event_handled(self, now: int, _event: events.Event) -> None:
        if self.shared.gathering:
            if not self._ending and all(gpu.state != "gathering" for gpu in self._reported):
                self._ending = True
                self._timer(now, self._end)     # after this card has handled its event
        elif not self._due and any(map(self._differs, self._reported)):
            self._due = True
            self._timer(now + REPORT_WITHIN, self._report_changed)

    def _end(self) -> None:
        self.shared.gathering = False
        self.gathered.emit()
        self._report(self._reported)

    def _differs(self, gpu: GPU) -> bool:
        change = abs(self._promisable(gpu) - self._reported[gpu])
        return change > self.shared.size // WORTH_REPORTING

    def _report_changed(self) -> None:
        self._due = False
        self._report(filter(self._differs, self._reported))

    def _report(self, gpus: Iterable[GPU]) -> None:
        for gpu in gpus:
            self._reported[gpu] = self._promisable(gpu)
            gpu.tell(events.BudgetChanged())
