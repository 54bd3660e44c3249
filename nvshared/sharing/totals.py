# SPDX-License-Identifier: Apache-2.0
"""What each tenant had of each card since the daemon started, by programs that ended too.

A program's own totals end with it. Those of its tenant go on, so that they never go back. Of very
many tenants that have no program any more the oldest are forgotten.
"""

from operator import add
from typing import NamedTuple

from nvshared.sharing.gpu import GPU, Client

GONE_KNOWN = 1000                       # tenants of a card without programs that are known


class Totals(NamedTuple):
    """Bytes and microseconds."""

    held_time: int = 0
    waited: int = 0
    turns: int = 0
    bytes_in: int = 0
    bytes_out: int = 0

    def and_those_of(self, client: Client) -> "Totals":
        """With what a program had until now."""
        view = client.gpu.snapshot().clients.get(client.id)
        if view is None:                # its scheduler failed as it joined
            return self
        had = (client.held_time, client.waited, view.turns, view.bytes_in, view.bytes_out)
        return Totals(*map(add, self, had))


class TenantTotals:
    """Of all cards that it follows."""

    def __init__(self) -> None:
        self._gone: dict[GPU, dict[str, Totals]] = {}   # by tenant, who lost a program last is last

    def follow(self, gpu: GPU) -> None:
        """Counts what is had of this card from now on."""
        self._gone[gpu] = {}
        gpu.client_leaves.connect(self._leaves)

    def of(self, gpu: GPU) -> dict[str, Totals]:
        """By tenant, until now."""
        found = dict(self._gone[gpu])
        for client in gpu.clients.values():
            name = client.tenant
            found[name] = found.get(name, Totals()).and_those_of(client)
        return found

    def _leaves(self, client: Client) -> None:
        gone, name = self._gone[client.gpu], client.tenant
        gone[name] = gone.pop(name, Totals()).and_those_of(client)
        if len(gone) > GONE_KNOWN:
            others = (one for one in client.gpu.clients.values() if one is not client)
            living = {one.tenant for one in others}
            for old in [one for one in gone if one not in living][:-GONE_KNOWN]:
                del gone[old]
