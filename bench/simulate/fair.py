# SPDX-License-Identifier: Apache-2.0
"""What each tenant is entitled to: the card's time, divided at each moment by the weights of those
who want it.

Nobody loses anything there to hand-overs, and nobody waits. A tenant with a compute request is
entitled to that at least, and one with a compute limit to no more than that. What it leaves then
is nobody's.
"""

from typing import Protocol

from nvshared.scheduler.settings import TenantTerms


class Wanting(Protocol):
    """A tenant."""

    terms: TenantTerms


class Fair:
    """One card's; microseconds."""

    def __init__(self) -> None:
        self._each = 0.0                # of the time so far, for each unit of weight
        self._until = 0
        self._weights = 0
        self._since: dict[Wanting, tuple[float, int]] = {}

    def enter(self, tenant: Wanting, now: int) -> None:
        """It wants the card from now on."""
        self._pass(now)
        self._weights += tenant.terms.weight
        self._since[tenant] = self._each, now

    def leave(self, tenant: Wanting) -> None:
        """It does not any more."""
        self._weights -= tenant.terms.weight
        del self._since[tenant]

    def share(self, tenant: Wanting, now: int) -> float:
        """What it is entitled to since it wants the card, of all the time until now."""
        self._pass(now)
        each, since = self._since[tenant]
        terms, percent = tenant.terms, (now - since) / 100
        by_weight = (self._each - each) * terms.weight
        return min(max(by_weight, terms.compute_request * percent), terms.compute_limit * percent)

    def _pass(self, now: int) -> None:
        if self._weights:
            self._each += (now - self._until) / self._weights
        self._until = now
