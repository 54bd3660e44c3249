# SPDX-License-Identifier: Apache-2.0
"""Descriptors of physical memory on its way from one program to another, of one card.

Each holds memory of the card for as long as it is open. So none stays open here that the
scheduler does not count (scheduler/passing.py): before any order of a decision goes out, what
that neither keeps nor sends is closed. When the daemon ends, the kernel closes them.

What comes may be memory, as far as can be seen (hook/foreign.py). What is wrong with it all
the same, only a fellow of the sender finds out, and makes its own.

There are places for so many. A tenant may have as many as are left when it has them: half of them
alone, and whoever comes finds some, however many others send. What finds none is closed at once.
"""

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import count

from nvshared.record import dataclass
from nvshared.scheduler import Scheduler, actions
from nvshared.scheduler.events import Evidence

PLACES = 256


@dataclass(frozen=True, slots=True)
class Sent:
    """A descriptor, and what is known of it."""

    descriptor: int
    size: int
    tenant: str                         # whose client sent it


class Handover:
    """Parcels by the ids that the scheduler knows them by."""

    def __init__(self) -> None:
        self._open: dict[int, Sent] = {}
        self._announced: dict[int, list[Sent]] = {}     # by client
        self._taken: Counter[str] = Counter()           # places, by tenant
        self._ids = count(1)

    def announce(self, client: int, tenant: str, descriptor: int, size: int) -> None:
        """Owns from now on what a client has sent of an order that it has not answered yet."""
        if self._taken[tenant] >= PLACES - self._taken.total():
            os.close(descriptor)
            return
        self._taken[tenant] += 1
        self._announced.setdefault(client, []).append(Sent(descriptor, size, tenant))

    def arrive(self, client: int) -> tuple[tuple[int, int], ...]:
        """The answer has come: ids and bytes of what came before, open until keep()."""
        came = {next(self._ids): sent for sent in self._announced.pop(client, [])}
        self._open |= came
        return tuple((id, sent.size) for id, sent in came.items())

    def counted(self, evidence: dict[int, Evidence]) -> dict[int, Evidence]:
        """The driver's figures, with what has left a client by an order that it has not answered
        yet: by its own words it has that still."""
        return {
            id: one if one.card is None else replace(
                one, card=one.card + sum(sent.size for sent in self._announced.get(id, [])))
            for id, one in evidence.items()
        }

    def withdraw(self, client: int) -> None:
        """The client is gone. Harmless when repeated."""
        for sent in self._announced.pop(client, []):
            os.close(self._leaves(sent))

    def claim(self, ids: Iterable[int]) -> list[int]:
        """Descriptors that are the caller's to close from now on."""
        return [self._leaves(self._open.pop(id)) for id in ids]

    def keep(self, scheduler: Scheduler, decided: Iterable[actions.Action] = ()) -> None:
        """Closes what has arrived, but for what counts still, or goes along with orders."""
        if not self._open:
            return
        loads = [one.parcels for one in decided if isinstance(one, actions.Load)]
        kept = {id for some in (scheduler.parcels, *loads) for id in some}
        for id in self._open.keys() - kept:
            os.close(self._leaves(self._open.pop(id)))

    def _leaves(self, sent: Sent) -> int:
        self._taken[sent.tenant] -= 1
        if not self._taken[sent.tenant]:
            del self._taken[sent.tenant]
        return sent.descriptor
