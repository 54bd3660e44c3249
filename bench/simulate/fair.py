# SPDX-License-Identifier: Apache-2.0
"""Each tenant's fair share: the card's time, divided at each moment by the weights of the tenants
that want the card, without the cost of hand-overs. A compute request is a lower bound, a compute
limit an upper bound; time that a limit leaves over goes to no other tenant.
"""

from typing import Protocol

from nvshared.scheduler.events import TenantTerms


class Wanting(Protocol):
    terms: TenantTerms


class Fair:
    """Fair shares of one card's time; microseconds."""

    def __init__(self) -> None:
        self._each = 0.0                # us of the time so far for each unit of weight
        self._until = 0
        self._weights = 0
        self._since: dict[Wanting, tuple[float, int]] = {}

    def enter(self, tenant: Wanting, now: int) -> None:
        self._pass(now)
        self._weights += tenant.terms.weight
        self._since[tenant] = self._each, now

    def leave(self, tenant: Wanting) -> None:
        self._weights -= tenant.terms.weight
        del self._since[tenant]

    def share(self, tenant: Wanting, now: int) -> float:
        """Returns the tenant's fair share in us of the time from its enter() to `now`."""
        self._pass(now)
        each, since = self._since[tenant]
        terms, percent = tenant.terms, (now - since) / 100
        by_weight = (self._each - each) * terms.weight
        return min(max(by_weight, terms.compute_request * percent), terms.compute_limit * percent)

    def _pass(self, now: int) -> None:
        if self._weights:
            self._each += (now - self._until) / self._weights
        self._until = now
