# SPDX-License-Identifier: Apache-2.0
"""Each tenant's use of each card since the daemon started, ended programs included.

Of more than GONE_KNOWN tenants without clients, those without one for longest are dropped.
"""

from operator import add

from nvshared.scheduler.tenants import Usage
from nvshared.sharing.gpu import GPU, Client

GONE_KNOWN = 1000                       # tenants without clients that are kept per card


class TenantTotals:
    def __init__(self) -> None:
        # Usage of ended clients by tenant; the tenant of the client that ended last is last.
        self._gone: dict[GPU, dict[str, Usage]] = {}

    def follow(self, gpu: GPU) -> None:
        self._gone[gpu] = {}
        gpu.client_leaves.connect(self._leaves)

    def of(self, gpu: GPU) -> dict[str, Usage]:
        """Returns the usage of this card by tenant, from follow() until now."""
        found = dict(self._gone[gpu])
        for client in gpu.clients.values():
            found[client.tenant] = _both(found.get(client.tenant), client.usage)
        return found

    def _leaves(self, client: Client) -> None:
        gone, name = self._gone[client.gpu], client.tenant
        gone[name] = _both(gone.pop(name, None), client.usage)
        if len(gone) > GONE_KNOWN:
            living = {one.tenant for one in client.gpu.clients.values() if one is not client}
            for old in [one for one in gone if one not in living][:-GONE_KNOWN]:
                del gone[old]


def _both(one: Usage | None, other: Usage) -> Usage:
    return other if one is None else Usage(*map(add, one, other))
