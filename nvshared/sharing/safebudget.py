# SPDX-License-Identifier: Apache-2.0
"""The host budget where it is not configured.

It is looked up at start. After a restart of the daemon it is looked up again, when all programs
have said what they hold.

What programs swapped out before we started is not free at our start, though it is ours to give:
they go on, and say with their HELLO how much they hold. So when all have said so, we look
again and add that to what is free (machine/host.py says how far they are believed). Both are
looked up in the same moment: memory taken or freed since our start, by them or by others, is
neither counted twice nor missed. We also look again when a program comes late, as it was
draining or moving memory, but only for a while: otherwise a client could time the recount just
after a large process exits that is about to start again.

The budget never shrinks by that, since our clients were promised what it was. Where nobody
holds anything it stays as it was.
"""

import logging
from collections import Counter
from functools import partial

from nvshared.clock import Clock, Timer
from nvshared.lanes import Run, here
from nvshared.machine import host
from nvshared.sharing.gpu import Client
from nvshared.sharing.manager import Manager
from nvshared.units import GIB, SECOND

logger = logging.getLogger(__name__)

LATE = 60 * SECOND                      # after the start; later clients cause no recount
APART = SECOND                          # a look takes a tenth of that with a thousand processes


class SafeBudget:
    """How many bytes are safe to take."""

    def __init__(self, clock: Clock, timer: Timer, run: Run = here) -> None:
        """`run`: Lanes.run; the kernel is slow to tell of processes that end."""
        self.bytes = host.safe_budget()
        self._clock = clock
        self._timer = timer
        self._run = run
        self._until = clock() + LATE
        self._next = clock()            # no look before that
        self._due = False

    def follow(self, manager: Manager) -> None:
        """Recounts when clients of an earlier daemon have said what they hold."""
        manager.gathered.connect(partial(self._look, manager, here))   # before anybody is refused
        manager.client_new.connect(partial(self._came, manager))

    def _came(self, manager: Manager, client: Client) -> None:
        """Recounts for a client of an earlier daemon that comes late."""
        late = not manager.gathering and self._clock() < self._until
        if late and _held(client) and not self._due:
            self._due = True
            if self._clock() >= self._next:
                self._look(manager, self._run)
            else:
                self._timer(self._next, partial(self._look, manager, self._run))

    def _look(self, manager: Manager, run: Run) -> None:
        self._due = False
        self._next = self._clock() + APART
        held: Counter[int] = Counter()
        for client in manager.clients:
            held[client.peer.pid] += _held(client)
        held = +held                    # without processes that hold nothing
        if held:
            run(self, partial(host.safe_budget, held), partial(self._found, manager))

    def _found(self, manager: Manager, more: int | None) -> None:
        if more is not None and more > self.bytes:
            self.bytes = more
            manager.set_safe_budget(more)
            logger.debug("with what programs hold already, %.1f GiB is safe to take", more / GIB)


def _held(client: Client) -> int:
    """Bytes of host memory that the client claims."""
    return client.memory.host + client.memory.beyond
