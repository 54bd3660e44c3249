# SPDX-License-Identifier: Apache-2.0
"""How far each client may grow, so that everything allocated fits on card and host together.

A client asks (COMMIT) before it grows beyond its commit, and is granted more, or refused as
out of memory. The sum of all commits never exceeds card and host, less a margin (demand.py).

No client gets more than the card less what others have pinned there, or it could never run
again. For the same reason pinning is refused if another client, grown to its whole commit,
would no longer fit beside it. A grant to pin counts as pinned until the hook says that it has
heard the answer. From then on each record of the hook says how much of it is still to be
pinned. The figure `pinned` alone cannot tell, as another thread may free as much meanwhile.

All that a client may have of which nothing leaves the card any more counts as pinned, and it is
lent nothing.

While there is plenty, a little more is granted than was asked for, so that a program does not
ask for each allocation. That is lent. When memory runs short, what is unused is called back
with a smaller LIMITS. The client may be growing into it at that very moment, so the old commit
counts until the client answers an order sent after the LIMITS. The question waits for that,
and later questions of the same account (belief.py) wait behind it. If a client does not answer at
all, the question is answered without it, and so are all others until it does answer.

The host's memory is split between the cards (nvshared/sharing/budget.py). Before anything is
called back or refused because this card's part is used up, the other cards are asked for what
they do not need (BudgetWanted). The question waits for the answer, which usually is the next
event. How far a client could grow includes what other cards could give up, as far as known.

Clients in a container with a memory limit, and those of a tenant with one, are bounded by that
as well (domains.py, bounds.py).
"""

from dataclasses import replace
from operator import itemgetter

from nvshared.scheduler import belief, bounds, lending, reach
from nvshared.scheduler.card import Card
from nvshared.scheduler.client import Pin, Question, ScheduledClient
from nvshared.scheduler.decision import Decision
from nvshared.units import MILLISECOND, SECOND

# The thread that asked may need a moment to take what it was granted: until it
# has, or for so long, that is not called back.
TAKEN_WITHIN = SECOND
# The same of what it may pin, should the hook not say that it has heard so: usually it does.
PINNED_WITHIN = 60 * SECOND
WORTH_TELLING = 64                      # a smaller part of the card is no change worth telling;
TOLD_AT_ONCE = 4                        # clients,
TELL_APART = MILLISECOND                # and so long after that the next ones
HARDLY = 8                              # below an eighth of that, do not recompute


def welcome(decision: Decision, client: ScheduledClient, commit: int) -> None:
    """The first limits of a client, which may hold a commit from before."""
    belief.greet(decision.card, client, commit, reach.reachable(decision))
    if client.committed == 0 and decision.now >= decision.card.gathered:
        left = min(reach.left(decision), bounds.bound(decision.card, client).left)
        client.commit = lending.lend(decision, client, 0, left)
    reach.tell(decision, client, 0, reach.most(decision, client))


def beyond(decision: Decision, client: ScheduledClient, number: int) -> None:
    """Answers whether a client may hold beyond the card what it says it holds."""
    if client.doubts.beyond <= reach.beyond_card(decision, client):
        client.doubts = replace(client.doubts, beyond=0)
    left, domain = bounds.bound(decision.card, client)
    why = domain.words if domain is not None and left < 0 <= reach.left(decision) else ""
    why = next((tenant.words for tenant in client.tenancies), why)
    reach.tell(decision, client, number, reach.most(decision, client), why)


def plan(decision: Decision) -> None:
    """Answers questions."""
    card = decision.card
    for client in card.groups.group("pinning"):
        pins = tuple(
            pin for pin in client.pins
            if pin.number > client.memory.answered and not decision.due(pin.until)
        )
        if pins != client.pins:
            client.pins = pins
    for client in card.groups.group("bounded"):
        lending.hold_to(decision, client, client.terms.memory_limit)
    while any(_answer_all(decision, account) for account in _askers(card)):
        pass                            # what one was granted may decide what others wait for
    for client in card.groups.group("excessive"):
        lending.hold_to(decision, client, client.need + client.to_pin)
    for client in bounds.overdrawn(card):   # last, as answers may show that a grant is taken
        lending.forget_grant(decision, client)
        lending.call_back(decision, client, client.used)
    _look_for_overdraft(decision, reach.left(decision))


def tell(decision: Decision) -> None:
    """Tells clients when what they could reach has changed, once all else is decided."""
    card, settings = decision.card, decision.card.settings
    left = reach.reachable(decision)
    lent, fixed = reach.lent(decision), settings.capacity - reach.unpinned(decision)
    least = settings.total // WORTH_TELLING
    # What all have in common decides how far each can reach. While that has hardly changed since
    # all of them were looked at, only those that have changed themselves are.
    # More than the whole card is as good as that to everybody.
    common = (
        settings.total, settings.capacity, min(left + lent, 2 * settings.total), fixed,
        card.groups.total("unshown"), card.stuck(()),
    )
    changed = card.groups.news("reach")
    if any(abs(new - old) > least // HARDLY for new, old in zip(common, card.reach, strict=True)):
        card.reach = common
        card.untold.update(card.clients)
    else:
        card.untold.update(client.id for client in bounds.news(card, least // HARDLY))
    told = _next_to_tell(decision)
    for client in [*told, *(c for c in changed if c.id not in card.untold)]:
        most = reach.how_far(decision, client, left, lent)
        if abs(most - client.last_most) > least or client.last_total != card.total_for(client):
            reach.tell(decision, client, 0, most)


def _next_to_tell(decision: Decision) -> list[ScheduledClient]:
    """Some of those that have not been told yet; a few at a time, as others wait for us."""
    card = decision.card
    if not card.untold or not decision.due(card.tell_next):
        return []
    ids = sorted(card.untold)[:TOLD_AT_ONCE]
    card.untold.difference_update(ids)
    if card.untold:
        card.tell_next = decision.now + TELL_APART
        decision.due(card.tell_next)
    return [card.clients[id] for id in ids if id in card.clients]


def _look_for_overdraft(decision: Decision, left: int) -> None:
    """Asks other cards although no client asks: promises came with one, or the card shrank."""
    card = decision.card
    if left < 0 and left != card.overdrawn and card.settings.elsewhere is not None:
        decision.want_budget()
    card.overdrawn = min(0, left)


def _askers(card: Card) -> dict[str, ScheduledClient]:
    """By account, the client that has waited longest for an answer; in that order."""
    asking = [(c.question.since, c) for c in card.groups.group("asking") if c.question]
    first: dict[str, ScheduledClient] = {}
    for _, client in sorted(asking, key=itemgetter(0)):
        if client.account not in first:
            first[client.account] = client
    return first


def _answer_all(decision: Decision, account: str) -> bool:
    """Those of one account, up to the first that has to wait. False: not even one."""
    answered = False
    while (client := _askers(decision.card).get(account)) is not None:
        question, heard = client.question, client.memory.answered
        # Nobody awaits one any more of which a later has been answered.
        if question and question.number > heard and not _answer(decision, client, question):
            break
        client.question = None
        answered = True
    return answered


def _answer(decision: Decision, client: ScheduledClient, question: Question) -> bool:
    """False: the answer depends on what others give back."""
    wanted = question.bytes
    left = reach.left(decision) - max(0, wanted - client.committed)
    pins = max(0, wanted - client.fastened) if client.memory.stays else question.pins
    within, domain = bounds.bound(decision.card, client, wanted, pins)
    squeezed = _squeezed(decision, client, pins)
    fits = wanted <= reach.ceiling(decision, client)
    spare = lending.spare(decision, client, wanted)
    if fits and min(left, within, spare) >= 0 and not squeezed:
        client.commit = max(
            client.commit, lending.lend(decision, client, wanted, min(left, within)))
        client.granted = wanted
        client.granted_until = decision.now + TAKEN_WITHIN
        if question.pins:
            until = decision.now + PINNED_WITHIN
            client.pins = (*client.pins, Pin(question.number, question.pins, until))
        reach.tell(decision, client, question.number, reach.most(decision, client))
        return True
    if not fits:
        waits = _awaits_return(decision, client, question)
    elif squeezed:
        waits = lending.release(decision, question, pins, squeezed)
    elif within < 0 and domain is not None:
        members = bounds.members(decision.card, domain)
        waits = lending.recall(decision, client, question, -within, members)
    else:
        among = lending.lenders(decision, "" if left < 0 else client.account)
        waits = (left < 0 and lending.borrow(decision, client, question)) or lending.recall(
            decision, client, question, max(-left, -spare), among)
    if waits:
        return False
    why = ""
    if domain is not None and within < 0 and (domain.term or (fits and not squeezed)):
        why = domain.words
    if client.commit >= wanted:
        # It asked before it heard that it may not any more. The hook takes
        # LIMITS at its word, so a refusal must promise less.
        client.commit = min(client.commit, client.need)
    reach.tell(decision, client, question.number, reach.most(decision, client), why)
    return True


def _awaits_return(decision: Decision, client: ScheduledClient, question: Question) -> bool:
    """It will fit when those who stay have heard that they may not grow any more."""
    others = [c for c in decision.card.groups.group("staying") if c is not client]
    back = sum(c.committed - max(c.commit, c.used) for c in others)
    if question.bytes > reach.ceiling(decision, client) + back:
        return False
    return not decision.due(question.since + decision.card.settings.stuck_after)


def _squeezed(decision: Decision, client: ScheduledClient, pins: int) -> list[ScheduledClient]:
    """Clients that would not fit beside all that is pinned if they had all they were promised."""
    if pins == 0:
        return []
    left = reach.unpinned(decision) - pins
    return [other for other in decision.card.groups.spanning(left) if other is not client]
