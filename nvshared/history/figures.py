# SPDX-License-Identifier: Apache-2.0
"""Who used how much: sums of usage by party, and how many parties are kept apart."""

from collections.abc import Mapping
from typing import NamedTuple

from nvshared.scheduler.tenants import Usage

OTHERS = ""                             # a name that stands for several
NOBODY = -1                             # their user's number
# Far more than a card can do in a step, and so little that no sum of a few is too large for sqlite:
# a program may say anything of itself.
MOST = 1 << 60


class Party(NamedTuple):
    """Whose usage it is."""

    uid: int
    user: str
    tenant: str                         # KIND:NAME, the most telling

    @property
    def of_user(self) -> "Party":
        """All of its user's that are not kept apart."""
        return self._replace(tenant=OTHERS)


EVERYBODY = Party(NOBODY, OTHERS, OTHERS)
Used = dict[Party, Usage]
Batch = dict[str, Used]                 # what was used of each card, by its UUID


class Asked(NamedTuple):
    """What somebody wants to know. Seconds of the wall clock."""

    since: int
    until: int
    step: int                           # seconds of a row; 0: all in one
    by: str                             # user, tenant or gpu
    card: str = ""                      # UUID; "": all
    uid: int | None = None              # whose alone
    most: int = 0                       # so many names, the largest; 0: as many as there may be


class Row(NamedTuple):
    """One line of an answer."""

    start: int                          # second
    name: str                           # of user, tenant or card; OTHERS
    user: str                           # of a tenant, if it is one
    usage: Usage


class Found(NamedTuple):
    """The answer; `since`, `until` and `step` are those of what is kept."""

    since: int
    until: int
    step: int                           # 0: all in one
    rows: list[Row]
    missing: str = ""                   # why what was used lately is not in it


def added(one: Usage, other: Usage) -> Usage:
    """Both together, as far as that can be."""
    return Usage(*(min(a + b, MOST) for a, b in zip(one, other, strict=True)))


def add(to: Used, party: Party, usage: Usage) -> None:
    """It used so much more."""
    to[party] = added(to.get(party, Usage()), usage)


def joined(used: Mapping[Party, Usage], most: int) -> Used:
    """At most so many parties: the smallest are put together, by user as long as that is enough."""
    kept = dict(used)
    for wider in (lambda party: party.of_user, lambda _: EVERYBODY):
        if len(kept) <= most:
            return kept
        largest = sorted(kept, key=lambda one: (kept[one].gpu, kept[one].held, one), reverse=True)
        # One place is for those that are put together.
        before, kept = kept, {}
        for number, party in enumerate(largest):
            add(kept, party if number < most - 1 else wider(party), before[party])
    return kept
