# SPDX-License-Identifier: Apache-2.0
"""How long programs pause between two uses of the card, and so who will want it last.

What has to leave the card is taken from the one that will need it last: then least comes back.
Who was idle longest is often that one, as with notebooks whose owners have left. But of three
models that are asked in turn, who was idle longest is asked next, and who has just answered last.

So of each program two running averages are kept: how long its pauses are, and by how much they
differ from that. A pause that has lasted `since` will probably last

    max(|average - since|, deviation)

more. Regular programs come when their average is over, within the deviation. Where pauses are of
any length, the deviation is about the average, and that is what is to be expected at any moment;
so it is where only one was seen. Once a pause is longer than that, it will probably last as long
again. Where nothing was seen nothing else is known: among such, who is idle longest goes first.

Pauses show at gates that are shut. While programs do not fit together, and memory of one is away,
those that do nothing are therefore stopped, although nobody waits (turns.py).
"""

from collections.abc import Iterable

from nvshared.scheduler.card import Card
from nvshared.scheduler.client import ScheduledClient


def matter(card: Card) -> bool:
    """Somebody's memory is away, and has no place beside all others'."""
    away, _ = card.groups.most_away()
    return away > 0 and card.groups.total("need") > card.settings.capacity


def ended(client: ScheduledClient, now: int) -> None:
    """It wants the card again."""
    if not client.turns:
        return                          # it had not used the card before
    pause = now - client.since
    if client.pauses.number:
        client.strays = client.strays.after(abs(pause - client.pauses.value))
    client.pauses = client.pauses.after(pause)


def latest_first(idle: Iterable[ScheduledClient], now: int) -> list[ScheduledClient]:
    """Who will want the card last comes first."""
    return sorted(idle, key=lambda client: (-left(client, now), client.since, client.id))


def left(client: ScheduledClient, now: int) -> float:
    """For how long it will probably not want the card; us."""
    usual = client.pauses.value
    spread = client.strays.value if client.strays.number else usual
    return max(abs(usual - (now - client.since)), spread)
