# SPDX-License-Identifier: Apache-2.0
"""Shares of the time that tenants get in any case: their weights grow with those of the others.

A tenant with a compute request of P percent gets at least so much of the card's time whenever it
wants it, if its weight does not give it more. So among those who want the card now, its weight is
what makes P percent of all their weights. That changes as others come and idle, and virtual times
(order.py) go on at the new pace from then on; nobody has saved anything up or owes anything more.

Of those in the background it is a request of the time that others leave.

A request of a tenant within another is of the card, too: the outer one gets what all in it ask for.

The daemon refuses requests of more than all of the time. Where they come to that nevertheless,
they are met in part, in proportion. The rest, a hundredth, is for those who ask for nothing.
"""

from collections.abc import Iterable, Mapping

from nvshared.scheduler.card import Card
from nvshared.scheduler.share import Lines, Share

MOST = 99.0                             # percent of the time, of all requests together


def meet(card: Card) -> None:
    """Adjusts the weights of those with requests to those who want the card now."""
    if not card.requesting:
        return
    active = card.groups.active()
    asked: dict[Share, float] = {}
    inside: dict[Share, dict[Share, int]] = {}
    for share in card.requesting:
        outer = share.outer or share
        asked.setdefault(outer, 0)
        if share not in active:
            continue
        if share is outer:
            asked[outer] = max(asked[outer], share.request)
        else:
            inside.setdefault(outer, {})[share] = share.request
            asked[outer] = max(asked[outer], sum(inside[outer].values()))
    wholes = {
        lines: _weigh(card, {share: one for share, one in asked.items() if share.among is lines},
                      _weight(active, lines))
        for lines in card.groups.lines.values()
    }
    for outer, requests in inside.items():
        part = outer.rate / wholes[outer.among]     # of the time, that it gets
        _weigh(card, {share: one / part for share, one in requests.items()},
               _weight(active, outer.lines))


def _weight(active: Iterable[Share], among: Lines) -> int:
    return sum(share.weight for share in active if share.among is among)


def _weigh(card: Card, asked: Mapping[Share, float], weight: int) -> float:
    """Sets weights, given how many percent each asks for, and the sum of the weights of all who
    want the card among them; returns that sum as it is then."""
    needing = [share for share in asked if asked[share]]
    needing.sort(key=lambda share: share.weight / asked[share])
    others: float = weight - sum(share.weight for share in needing)
    percent: dict[Share, float] = {}
    while needing:
        percent = _percent(asked, needing)
        if needing[-1].weight * (100 - sum(percent.values())) < percent[needing[-1]] * others:
            break
        others += needing.pop().weight  # its weight gives it enough
    left = 100 - sum(percent[share] for share in needing)
    for share in asked:
        share.bill(card.now)
        share.rate = percent[share] * others / left if share in needing else share.weight
    return others + sum(share.rate for share in needing)


def _percent(asked: Mapping[Share, float], needing: Iterable[Share]) -> dict[Share, float]:
    """What they get of all that want the card."""
    wanted = {share: asked[share] for share in needing}
    part = min(1, MOST / sum(wanted.values()))
    return {share: percent * part for share, percent in wanted.items()}
