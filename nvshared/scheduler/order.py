# SPDX-License-Identifier: Apache-2.0
"""Who goes first: first come, first served.

A client's place is taken when it comes to want the GPU, and kept until its gate
opens. A turn that others cut short sends it to the end; one that never began
does not.
"""

from nvshared.scheduler.card import Card
from nvshared.scheduler.client import Client, Phase


def join(card: Card, client: Client) -> None:
    """The client takes the last place and waits."""
    client.place = next(card.places)
    client.enter(Phase.WAITING, card.now)


def sequence(card: Card) -> list[Client]:
    """Waiting clients, the next one first."""
    return sorted(card.in_phase(Phase.WAITING), key=lambda client: client.place)
