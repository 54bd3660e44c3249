# SPDX-License-Identifier: Apache-2.0
"""Descriptors of physical memory on its way from one program to another, of one card.

Each holds memory of the card for as long as it is open. So none stays open here that the
scheduler does not count (scheduler/passing.py): before any order of a decision goes out, what
that neither keeps nor sends is closed. When the daemon ends, the kernel closes them.

What comes may be memory, as far as can be seen (hook/descriptors.py). What is wrong with it all
the same, only a fellow of the sender finds out, and makes its own.
"""

import os
from collections.abc import Iterable
from dataclasses import replace
from itertools import count

from nvshared.scheduler import Scheduler, actions
from nvshared.scheduler.events import Evidence

MOST = 256                              # at a time; more are not kept


class Handover:
    """Parcels by the ids that the scheduler knows them by."""

    def __init__(self) -> None:
        self._open: dict[int, int] = {}
        self._announced: dict[int, list[tuple[int, int]]] = {}  # descriptors and bytes, by client
        self._ids = count(1)

    def announce(self, client: int, descriptor: int, size: int) -> None:
        """Owns from now on what a client has sent of an order that it has not answered yet."""
        waiting = self._announced.setdefault(client, [])
        if len(self._open) + sum(map(len, self._announced.values())) < MOST:
            waiting.append((descriptor, size))
        else:
            os.close(descriptor)

    def arrive(self, client: int) -> tuple[tuple[int, int], ...]:
        """The answer has come: ids and bytes of what came before, open until keep()."""
        waiting = self._announced.pop(client, [])
        ids = [(next(self._ids), size) for _, size in waiting]
        self._open |= {id: one for (id, _), (one, _) in zip(ids, waiting, strict=True)}
        return tuple(ids)

    def counted(self, evidence: dict[int, Evidence]) -> dict[int, Evidence]:
        """The driver's figures, with what has left a client by an order that it has not answered
        yet: by its own words it has that still."""
        return {
            id: one if one.card is None else replace(
                one, card=one.card + sum(size for _, size in self._announced.get(id, [])))
            for id, one in evidence.items()
        }

    def withdraw(self, client: int) -> None:
        """The client is gone. Harmless when repeated."""
        for descriptor, _ in self._announced.pop(client, []):
            os.close(descriptor)

    def claim(self, ids: Iterable[int]) -> list[int]:
        """Descriptors that are the caller's to close from now on."""
        return [self._open.pop(id) for id in ids]

    def keep(self, scheduler: Scheduler, decided: Iterable[actions.Action] = ()) -> None:
        """Closes what has arrived, but for what counts still, or goes along with orders."""
        if not self._open:
            return
        loads = [one.parcels for one in decided if isinstance(one, actions.Load)]
        kept = {id for some in (scheduler.parcels, *loads) for id in some}
        for id in self._open.keys() - kept:
            os.close(self._open.pop(id))
