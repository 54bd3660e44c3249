# SPDX-License-Identifier: Apache-2.0
"""Which waiting client moves to another card, and when.

Where clients take turns, a client gets its weight's part of the time: `weight / load`, with the
load of a card as the sum of the weights of all clients that use the card or wait for it. A client
may get a larger part on another card. Then this part of its waiting time is lost:

    (part there - part here) / (1 - part here)

A client moves once the time that it has lost, plus the time that it will lose in the current wait
by the forecast, exceeds the price of its move in microseconds. So a client moves at the latest when
waiting has cost as much as moving, and its total cost is at most twice that of the best decision
(the ski-rental rule). The lost time is reset as soon as no other card is better, and when the
client has moved.

After a move that pays, the load of the new card is smaller than the load of the old card was
before it. So moves end, and no client is moved back and forth between two cards. The figures may
mislead: the load of a card on which no client waits is the load that NVML sees. So the caller
multiplies a client's price after each move and each refusal.

The weights of tenants are ignored: a client whose tenant gets more time than others waits less, so
it loses less.
"""

from collections.abc import Iterable, Mapping
from math import inf
from typing import NamedTuple


class Place(NamedTuple):
    """A card."""

    load: float                         # sum of weights, see above
    largest: int                        # bytes that a single client could fill


class Contender(NamedTuple):
    """A client that uses a card or waits for it."""

    client: int
    card: str
    weight: int
    size: int                           # bytes of the card that the client fills when whole
    wait: float | None                  # us left of its wait; inf: endless; None: it does not wait
    price: float                        # us that its move takes, times the caller's factor
    cards: tuple[str, ...]              # cards that the client may move to


class Choice(NamedTuple):
    """A move of a client that pays."""

    client: int
    card: str                           # the destination
    lost: float                         # us lost until now and in the current wait; may be inf
    price: float


def choose(
    places: Mapping[str, Place], contenders: Iterable[Contender], lost: Mapping[int, float],
    passed: int,
) -> tuple[dict[int, float], Choice | None]:
    """Returns the microseconds that each client has lost until now, and the move that gains most.

    `lost`: the microseconds that each client had lost `passed` microseconds ago.
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
    """The part of its waiting time that the client would save on a card; 0 or less: none."""
    there = places[card]
    if one.size > there.largest:
        return 0.0
    home = max(places[one.card].load, one.weight)
    part, then = one.weight / home, one.weight / (there.load + one.weight)
    if one.wait == inf:
        return then
    return 0.0 if part >= 1 else (then - part) / (1 - part)
