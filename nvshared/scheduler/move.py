# SPDX-License-Identifier: Apache-2.0
"""What hooks answer to orders that move memory, and what is learned from failures.

Answers come in the order of the orders. A failure is followed by a pause, as its cause is
outside: another program's memory, the host's, the driver.
"""

from nvshared.scheduler import belief, presave
from nvshared.scheduler.actions import Presave
from nvshared.scheduler.card import Card
from nvshared.scheduler.client import Move, ScheduledClient
from nvshared.scheduler.decision import Decision
from nvshared.scheduler.events import Evicted, Loaded, Presaved
from nvshared.units import SECOND

REFUSED = SECOND                        # how long a client that could not evict is left alone
IN_VAIN = 3                             # so often in a row, all that it has stays
KEEPS = 60 * SECOND                     # for so long
FIRST_PAUSE = SECOND // 4               # before a failed load is tried again,
LONGEST_PAUSE = 2 * SECOND              # doubled each time up to this
# How long the driver is believed to have less than accounted, unless told anew.
SHORTFALL = 10 * SECOND


def _answered(card: Card, client: ScheduledClient, number: int) -> Move | None:
    """Takes the order off the list. None: there is no such order."""
    done = None
    while client.moves and client.moves[0].order.number <= number:
        done, *rest = client.moves
        client.moves = tuple(rest)
    if done is None or done.order.number != number:
        return None
    if client.moves:
        client.moves[0].since = card.now
    if client.confirmed_by and client.confirmed_by <= number:
        client.confirmed_by = client.withdrawn = 0
    return done


def evicted(card: Card, client: ScheduledClient, answer: Evicted) -> None:
    """Memory has left, or should have."""
    before, most = client.room, client.charged
    move = _answered(card, client, answer.number)
    if move is None:
        return
    client.room = min(client.memory.room, most)
    client.bytes_out += answer.bytes
    card.count(bytes_out=answer.bytes)
    if answer.bytes > 0 or client.room < before:
        card.last_evicted = card.now
        presave.taken(client)
    if client.room < before:
        client.kept = 0
    elif move.order.room < before and not (
        (answer.no_memory and client.hopeful) or (answer.yielded and move.cut)
    ):
        if card.now >= client.refuse_until:
            _keep(card, client)         # orders that were on their way together count once
        client.refuse_until = card.now + REFUSED
    if answer.no_memory:
        client.hopeful = False          # next time it is given what it will need
    if answer.no_memory or answer.driver_error:
        client.failures += 1
        card.count(failures=1)


def _keep(card: Card, client: ScheduledClient) -> None:
    """It has freed nothing. One that is asked in vain again and again is not asked for a while."""
    client.kept += 1
    if client.kept >= IN_VAIN and not client.holds:
        client.keeps_until = card.now + KEEPS
        belief.hear(client, client.memory, card.now)


def ask_again(decision: Decision) -> None:
    """Their while is over: their own words count again, even if they say nothing more."""
    for client in decision.card.groups.group("keeping"):
        if decision.due(client.keeps_until):
            belief.hear(client, client.said, decision.now)


def presaved(card: Card, client: ScheduledClient, answer: Presaved) -> None:
    """Memory was copied and has stayed, or should have."""
    move = _answered(card, client, answer.number)
    if move is None or not isinstance(move.order, Presave):
        return
    client.room = client.memory.room
    presave.answered(client, answer.bytes, move.order.size, cut_short=answer.yielded)
    if answer.no_memory or answer.driver_error:
        client.failures += 1
        card.count(failures=1)


def loaded(card: Card, client: ScheduledClient, answer: Loaded) -> None:
    """Memory has come in, or should have."""
    move = _answered(card, client, answer.number)
    if move is None:
        return
    client.room = client.memory.room
    client.bytes_in += answer.bytes
    card.count(bytes_in=answer.bytes)
    if answer.bytes > 0:
        client.progress = card.now
    if client.memory.host <= move.order.host:
        client.trim_after = 0
    if answer.no_memory:
        _learn_shortfall(card, client)
    # Room for all of it, and yet something is absent and nothing came.
    client.cut = answer.yielded and move.cut
    idle = answer.bytes == 0 and not client.whole and client.room >= client.need and not client.cut
    if answer.no_memory or answer.driver_error or (idle and not client.moves):
        client.failures += 1
        card.count(failures=1)
        client.load_pause = min(max(2 * client.load_pause, FIRST_PAUSE), LONGEST_PAUSE)
        client.load_after = card.now + client.load_pause
    else:
        client.load_pause = 0


def _learn_shortfall(card: Card, client: ScheduledClient) -> None:
    """The room that could not be filled is not there: others must give as much.

    What was learned before and is not made good yet is the same shortfall seen
    again; only once it is made good does another failure add to it.
    """
    missing = max(0, client.charged - client.memory.filled)
    if card.free >= 0:
        card.shortfall += missing
    else:
        card.shortfall = max(card.shortfall, missing)
    card.shortfall = min(card.shortfall, card.settings.capacity)
    card.shortfall_until = card.now + SHORTFALL
