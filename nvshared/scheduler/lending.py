# SPDX-License-Identifier: Apache-2.0
"""What is lent to clients: promised beyond what they asked for, and called back when it runs short.

See commit.py.
"""

from collections.abc import Iterable
from dataclasses import replace

from nvshared.scheduler import belief, reach
from nvshared.scheduler.client import Question, ScheduledClient
from nvshared.scheduler.decision import Decision
from nvshared.units import GIB, MIB

LENT_LEAST = 64 * MIB                   # less is not worth lending,
LENT_MOST = GIB                         # and more is not needed;
LENT_PART = 16                          # nor more than this part of what is left


def lend(decision: Decision, client: ScheduledClient, wanted: int, left: int) -> int:
    """The commit to give a client that asked for `wanted` while `left` is left after it."""
    if client.memory.stays:
        return wanted
    more = min(LENT_MOST, left // LENT_PART, reach.ceiling(decision, client) - wanted)
    if client.account and (more > spare(decision, client, wanted) or not client.shown):
        return wanted
    return wanted + (more if more >= LENT_LEAST else 0)


def spare(decision: Decision, client: ScheduledClient, wanted: int) -> int:
    """What its account may be promised, once this one has so much; negative: that is too much."""
    more = max(0, wanted - client.committed)
    left = reach.reachable(decision)
    return belief.may_have(decision.card, client, left) - more if more else left


def lenders(decision: Decision, account: str) -> list[ScheduledClient]:
    """To whom something is lent; of this account, or of all."""
    lent = decision.card.groups.group("lent")
    return [client for client in lent if not account or client.account == account]


def release(
    decision: Decision, question: Question, pins: int, squeezed: list[ScheduledClient]
) -> bool:
    """Calls back what is lent to these, if that is enough and the answers may still come."""
    left = reach.unpinned(decision) - pins
    for other in squeezed:
        forget_grant(decision, other)
    if any(other.used - other.fastened > left for other in squeezed) or decision.due(
        question.since + decision.card.settings.stuck_after
    ):
        return False
    for other in squeezed:
        call_back(decision, other, other.used)
    return True


def borrow(decision: Decision, client: ScheduledClient, question: Question) -> bool:
    """Asks for what other cards do not need of the host's memory, once; then awaits the answer."""
    card = decision.card
    if card.settings.elsewhere is not None and not question.borrows:
        client.question = replace(question, borrows=True)
        decision.want_budget()
        return True
    return card.borrowing and not decision.due(question.since + card.settings.stuck_after)


def recall(
    decision: Decision, borrower: ScheduledClient, question: Question, short: int,
    among: Iterable[ScheduledClient],
) -> bool:
    """Calls back what is lent to these, if that is enough and the answers may still come."""
    lenders = [c for c in among if c is not borrower and not c.mute]
    for lender in lenders:
        forget_grant(decision, lender)
    if sum(c.committed - c.need for c in lenders) < short:
        return False
    if decision.due(question.since + decision.card.settings.stuck_after):
        return False
    for lender in lenders:
        call_back(decision, lender, lender.used)
    return True


def hold_to(decision: Decision, client: ScheduledClient, limit: int) -> None:
    """It keeps what it has, and may take no more without asking than its memory limit."""
    forget_grant(decision, client)
    call_back(decision, client, max(client.used, limit))


def forget_grant(decision: Decision, client: ScheduledClient) -> None:
    """If it has been taken, or has not been taken for long."""
    taken = client.need >= client.granted
    if client.granted and (taken or decision.due(client.granted_until)):
        client.granted = 0


def call_back(decision: Decision, client: ScheduledClient, least: int) -> None:
    """Takes back the part of a client's commit beyond `least`."""
    if client.withdrawn or client.commit <= least:
        return
    client.withdrawn = client.commit
    client.commit = least
    reach.tell(decision, client, 0, min(client.last_most, decision.card.total_for(client)))
    # Nothing changes by this order; its answer shows that the limits were heard. It allows for no
    # host memory: what orders before it did, or take back, is theirs.
    held = [client.memory.host, *(move.order.host for move in client.moves)]
    decision.evict(client, client.ordered, min(held))
    client.confirmed_by = client.moves[-1].order.number
