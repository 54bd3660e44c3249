# SPDX-License-Identifier: Apache-2.0
"""The host budget if none is configured: at start it is computed from the free host memory.

It is computed again ("recount") once an earlier daemon's clients have reported their memory, and
when a client joins within LATE: later, it could choose the time. No recount shrinks the budget.
"""

import logging
from collections import Counter
from functools import partial

from nvshared.clock import Clock, Timer
from nvshared.lanes import Run, here
from nvshared.machine import host
from nvshared.sharing.gpu import GPU, Client
from nvshared.sharing.manager import Manager
from nvshared.units import GIB, SECOND

logger = logging.getLogger(__name__)

LATE = 60 * SECOND                      # clients joining later after the start cause no recount
APART = SECOND                          # between recounts; each takes 0.1 s with 1,000 processes


class SafeBudget:
    def __init__(self, clock: Clock, timer: Timer, run: Run = here) -> None:
        self.bytes = host.safe_budget()
        self._clock = clock
        self._timer = timer
        self._run = run
        self._until = clock() + LATE
        self._next = clock()            # earliest time of the next recount
        self._due = False

    def follow(self, manager: Manager) -> None:
        # Recount in this thread, so that it is done before any client is refused.
        manager.budget.gathered.connect(partial(self._recount, manager, here))

        def add(gpu: GPU) -> None:
            gpu.client_new.connect(partial(self._client_joined, manager))

        manager.gpu_new.connect(add)

    def _client_joined(self, manager: Manager, client: Client) -> None:
        late = not manager.budget.shared.gathering and self._clock() < self._until
        if late and _held(client) and not self._due:
            self._due = True
            if self._clock() >= self._next:
                self._recount(manager, self._run)
            else:
                self._timer(self._next, partial(self._recount, manager, self._run))

    def _recount(self, manager: Manager, run: Run) -> None:
        self._due = False
        self._next = self._clock() + APART
        held: Counter[int] = Counter()
        for client in manager.clients:
            held[client.peer.pid] += _held(client)
        held = +held                    # without processes that hold nothing
        if held:
            run(self, partial(host.safe_budget, held), partial(self._recounted, manager))

    def _recounted(self, manager: Manager, more: int | None) -> None:
        if more is not None and more > self.bytes:
            self.bytes = more
            manager.set_safe_budget(more)
            logger.debug("with what programs hold already, %.1f GiB is safe to take", more / GIB)


def _held(client: Client) -> int:
    return client.memory.host + client.memory.beyond + client.context
