# SPDX-License-Identifier: Apache-2.0
"""Which waiting client moves to another card, and when.

Where clients take turns, a client gets its weight's part of the time: `weight / load`, with the
load of a card as the sum of the weights of all clients that use the card or wait for it. A client
may get a larger part on another card. Then a part of its waiting is lost:

    (part there - part here) / (1 - part here)

A client moves once what it has lost, and what it will lose in the present wait by the forecast,
exceed the price of its move. So at the latest it moves when waiting has cost as much as moving,
which takes at most twice what the best decision would (the rule for renting skis). What a client
has lost is forgotten as soon as no other card is better, and when it has moved.

A move that is worth it makes the load of the card that the client comes to smaller than that of the
card that it left was. So moves end, and no two cards hand a client back and forth. Where the
figures mislead (the load of a card on which no client waits is the load that NVML sees), each move
and each refusal raises the client's price: the caller multiplies it.

Weights of tenants are not looked at: a client whose tenant gets more than the others loses less, as
it waits less.
"""

from collections.abc import Iterable, Mapping
from math import inf
from typing import NamedTuple


class Place(NamedTuple):
    """A card."""

    load: float                         # see above
    largest: int                        # bytes that one client could fill


class Contender(NamedTuple):
    """A client that uses a card or waits for it."""

    client: int
    card: str
    weight: int
    size: int                           # bytes that it fills when whole
    wait: float | None                  # us left; inf: for ever; None: it does not wait
    price: float                        # us that its move takes, or more
    cards: tuple[str, ...]              # where it may go


class Choice(NamedTuple):
    """A client is to move."""

    client: int
    card: str                           # to this one
    lost: float                         # us, until now and in the present wait; may be inf
    price: float


def choose(
    places: Mapping[str, Place], contenders: Iterable[Contender], lost: Mapping[int, float],
    passed: int,
) -> tuple[dict[int, float], Choice | None]:
    """Which client is to move, if any: the one that gains most.

    `lost`: what clients had lost `passed` microseconds ago. Returned first is what they have lost
    now.
    """
    now: dict[int, float] = {}
    best: Choice | None = None
    for one in contenders:
        part, card = max(((_spared(one, places, card), card) for card in one.cards),
                         default=(0.0, ""), key=lambda found: found[0])
        if part <= 0:
            continue
        now[one.client] = lost.get(one.client, 0.0)
        if one.wait is None:
            continue
        now[one.client] += passed * part
        choice = Choice(one.client, card, now[one.client] + one.wait * part, one.price)
        if choice.lost > one.price and (best is None or _gain(choice) > _gain(best)):
            best = choice
    return now, best


def _gain(choice: Choice) -> float:
    return choice.lost - choice.price


def _spared(one: Contender, places: Mapping[str, Place], card: str) -> float:
    """The part of its waiting that it would be spared on a card; 0 or less: none."""
    there = places[card]
    if one.size > there.largest:
        return 0.0
    home = max(places[one.card].load, one.weight)
    part, then = one.weight / home, one.weight / (there.load + one.weight)
    if one.wait == inf:
        return then
    return 0.0 if part >= 1 else (then - part) / (1 - part)
