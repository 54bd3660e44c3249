# SPDX-License-Identifier: Apache-2.0
"""The host memory to take where nobody has said how much: looked up at start, and after a restart.

What programs swapped out before we started is not free then, though it is ours to give: they
go on, and say with their HELLO how much they hold. So when all have said so, it is looked up
again, with that added to what is free (host.py says how far they are believed). Both are looked
up in the same moment: whatever was taken or freed since our start, by them or by others, does
not count twice, nor is it missing. So the same is done when one comes late, as it was draining
or moving memory, but only for a while: who could have it done at any time would choose the
moment when something large has just ended that is about to begin again.

It never becomes less by that, since our clients have been promised what it was. Where nobody
holds anything it stays as it was.
"""

import logging
from collections import Counter
from functools import partial

from nvshared.clock import Clock, Timer
from nvshared.machine import host
from nvshared.sharing.gpu import Client
from nvshared.sharing.manager import Manager
from nvshared.units import GIB, SECOND

logger = logging.getLogger(__name__)

LATE = 60 * SECOND                      # after our start; who comes later is not looked for
APART = SECOND                          # a look takes a tenth of that with a thousand processes


class SafeBudget:
    """How much that is."""

    def __init__(self, clock: Clock, timer: Timer) -> None:
        self.bytes = host.safe_budget()
        self._clock = clock
        self._timer = timer
        self._until = clock() + LATE
        self._next = clock()            # no look before that
        self._due = False

    def follow(self, manager: Manager) -> None:
        """Tells it what is safe to take with what clients of a daemon before us hold."""
        manager.gathered.connect(partial(self._look, manager))
        manager.client_new.connect(partial(self._came, manager))

    def _came(self, manager: Manager, client: Client) -> None:
        """All others of the daemon before us have been heard, if this is one of them."""
        late = not manager.gathering and self._clock() < self._until
        if late and _held(client) and not self._due:
            self._due = True
            if self._clock() >= self._next:
                self._look(manager)
            else:
                self._timer(self._next, partial(self._look, manager))

    def _look(self, manager: Manager) -> None:
        self._due = False
        self._next = self._clock() + APART
        held: Counter[int] = Counter()
        for client in manager.clients:
            held[client.peer.pid] += _held(client)
        held = +held                    # those that hold anything
        more = host.safe_budget(held) if held else 0
        if more > self.bytes:
            self.bytes = more
            manager.set_safe_budget(more)
            logger.debug("with what programs hold already, %.1f GiB is safe to take", more / GIB)


def _held(client: Client) -> int:
    """Bytes of the host's memory, by its own words."""
    return client.memory.host + client.memory.beyond
