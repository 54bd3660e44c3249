# SPDX-License-Identifier: Apache-2.0
"""Each tenant's use of each card since the daemon started, ended programs included.

The totals of a client end with the client. Those of its tenant go on, so they never decrease. Of
more than GONE_KNOWN tenants without a client, those whose last client left first are forgotten.
"""

from operator import add

from nvshared.scheduler.tenants import Usage
from nvshared.sharing.gpu import GPU, Client

GONE_KNOWN = 1000                       # tenants of a card without programs that are known


class TenantTotals:
    """Usage by tenant, for each card given to follow()."""

    def __init__(self) -> None:
        self._gone: dict[GPU, dict[str, Usage]] = {}    # by tenant, latest loss last

    def follow(self, gpu: GPU) -> None:
        """Counts the use of a card from now on."""
        self._gone[gpu] = {}
        gpu.client_leaves.connect(self._leaves)

    def of(self, gpu: GPU) -> dict[str, Usage]:
        """Usage of this card by each tenant since follow(), until now."""
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
