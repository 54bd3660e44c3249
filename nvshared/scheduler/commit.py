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

from collections.abc import Iterable
from dataclasses import replace

from nvshared.scheduler import belief, bounds
from nvshared.scheduler.client import Pin, Question, ScheduledClient
from nvshared.scheduler.decision import Decision
from nvshared.scheduler.demand import margin
from nvshared.units import GIB, MIB, MILLISECOND, SECOND

LENT_LEAST = 64 * MIB                   # less is not worth lending,
LENT_MOST = GIB                         # and more is not needed;
LENT_PART = 16                          # nor more than this part of what is left
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
    belief.greet(decision.card, client, commit, _reachable(decision))
    if client.committed == 0 and decision.now >= decision.card.gathered:
        left = min(_left(decision), bounds.bound(decision.card, client).left)
        client.commit = _lend(decision, client, 0, left)
    _tell(decision, client, 0, _most(decision, client))


def beyond(decision: Decision, client: ScheduledClient, number: int) -> None:
    """Answers whether a client may hold beyond the card what it says it holds."""
    if client.doubts.beyond <= _beyond(decision, client):
        client.doubts = replace(client.doubts, beyond=0)
    left, domain = bounds.bound(decision.card, client)
    why = domain.words if domain is not None and left < 0 <= _left(decision) else ""
    why = next((tenant.words for tenant in client.tenancies), why)
    _tell(decision, client, number, _most(decision, client), why)


def _tell(
    decision: Decision, client: ScheduledClient, number: int, most: int, why: str = ""
) -> None:
    """What it may hold beyond the card is host memory that nobody has been promised.

    A memory limit is a card of that size, and such a client gets no more than that.
    """
    bounded = client.terms.memory_limit or client.tenancies
    beyond = 0 if bounded else max(0, client.beyond + _beyond(decision, client))
    decision.limits(client, number, most, beyond, why)


def _beyond(decision: Decision, client: ScheduledClient) -> int:
    card = decision.card
    left = min(_left(decision), bounds.bound(card, client).left, card.host_free_for(client))
    return belief.may_have(card, client, left)


def plan(decision: Decision) -> None:
    """Answers questions, and tells clients when what they could reach has changed."""
    card = decision.card
    for client in card.groups.group("pinning"):
        pins = tuple(
            pin for pin in client.pins
            if pin.number > client.memory.answered and not decision.due(pin.until)
        )
        if pins != client.pins:
            client.pins = pins
    for client in card.groups.group("bounded"):
        _hold_to(decision, client, client.terms.memory_limit)
    for client in bounds.overdrawn(card):
        _forget_grant(decision, client)
        _call_back(decision, client, client.used)
    while any(_answer_all(decision, account) for account in card.groups.askers()):
        pass                            # what one was granted may decide what others wait for
    for client in card.groups.group("excessive"):
        _hold_to(decision, client, client.need + client.to_pin)
    settings = card.settings
    left = _left(decision)
    _look_for_overdraft(decision, left)
    left = _reachable(decision) if settings.elsewhere else left
    lent, fixed = _lent(decision), settings.capacity - _unpinned(decision)
    least = settings.total // WORTH_TELLING
    # What all have in common decides how far each can reach. While that has hardly changed since
    # all of them were looked at, only those that have changed themselves are.
    # More than the whole card is as good as that to everybody.
    reach = (
        settings.total, settings.capacity, min(left + lent, 2 * settings.total), fixed,
        card.groups.total("unshown"), card.stuck(()),
    )
    changed = card.groups.news("reach")
    if any(abs(new - old) > least // HARDLY for new, old in zip(reach, card.reach, strict=True)):
        card.reach = reach
        card.untold.update(card.clients)
    else:
        card.untold.update(client.id for client in bounds.news(card, least // HARDLY))
    told = _next_to_tell(decision)
    for client in [*told, *(c for c in changed if c.id not in card.untold)]:
        most = _reach(decision, client, left, lent)
        if abs(most - client.last_most) > least or client.last_total != card.total_for(client):
            _tell(decision, client, 0, most)


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


def _left(decision: Decision) -> int:
    """What can still be committed; negative when card or budget shrank."""
    return _left_of(decision, decision.card.settings.host_budget)


def _reachable(decision: Decision) -> int:
    """The same, with what other cards could give up."""
    settings = decision.card.settings
    return _left_of(decision, settings.host_budget + (settings.elsewhere or 0))


def _left_of(decision: Decision, host: int) -> int:
    card = decision.card
    can = card.settings.capacity + host - margin(host, card.groups.margins())
    return can - card.groups.total("committed") - card.groups.total("beyond")


def _look_for_overdraft(decision: Decision, left: int) -> None:
    """Asks other cards although no client asks: promises came with one, or the card shrank."""
    card = decision.card
    if left < 0 and left != card.overdrawn and card.settings.elsewhere is not None:
        decision.want_budget()
    card.overdrawn = min(0, left)


def _ceiling(decision: Decision, client: ScheduledClient) -> int:
    """How far a client could grow if it were alone with what others have pinned."""
    card = decision.card
    by_others = card.groups.total("fixed") - client.fixed + belief.pinning(card, client)
    if card.tight:
        by_others += card.stuck([client])
    return max(0, min(card.total_for(client), card.settings.capacity - by_others))


def _most(decision: Decision, client: ScheduledClient) -> int:
    """How far it could grow if it asked, with everything lent called back."""
    return _reach(decision, client, _reachable(decision), _lent(decision))


def _reach(decision: Decision, client: ScheduledClient, left: int, lent: int) -> int:
    """The same, given what is lent to all clients, this one included."""
    own = client.committed - client.used
    more = belief.may_have(decision.card, client, left + lent - own) + own
    more = min(more, bounds.reach(client))
    return max(0, min(_ceiling(decision, client), client.used + more))


def _lent(decision: Decision) -> int:
    """What all clients have been promised and do not use."""
    groups = decision.card.groups
    return groups.total("committed") - groups.total("used")


def _lend(decision: Decision, client: ScheduledClient, wanted: int, left: int) -> int:
    """The commit to give a client that asked for `wanted` while `left` is left after it."""
    if client.memory.stays:
        return wanted
    more = min(LENT_MOST, left // LENT_PART, _ceiling(decision, client) - wanted)
    if client.account and (more > _spare(decision, client, wanted) or not client.shown):
        return wanted
    return wanted + (more if more >= LENT_LEAST else 0)


def _spare(decision: Decision, client: ScheduledClient, wanted: int) -> int:
    """What its account may be promised, once this one has so much; negative: that is too much."""
    more = max(0, wanted - client.committed)
    left = _reachable(decision)
    return belief.may_have(decision.card, client, left) - more if more else left


def _answer_all(decision: Decision, account: str) -> bool:
    """Those of one account, up to the first that has to wait. False: not even one."""
    groups = decision.card.groups
    answered = False
    while (client := groups.first_asker(account)) is not None:
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
    left = _left(decision) - max(0, wanted - client.committed)
    pins = max(0, wanted - client.fastened) if client.memory.stays else question.pins
    within, domain = bounds.bound(decision.card, client, wanted, pins)
    why = ""
    squeezed = _squeezed(decision, client, pins)
    fits = wanted <= _ceiling(decision, client)
    spare = _spare(decision, client, wanted)
    if fits and min(left, within, spare) >= 0 and not squeezed:
        client.commit = max(
            client.commit, _lend(decision, client, wanted, min(left, within)))
        client.granted = wanted
        client.granted_until = decision.now + TAKEN_WITHIN
        if question.pins:
            until = decision.now + PINNED_WITHIN
            client.pins = (*client.pins, Pin(question.number, question.pins, until))
    elif (not fits and _awaits_return(decision, client, question)) or (fits and (
        _release(decision, question, pins, squeezed) if squeezed
        else _recall(
            decision, client, question, -within, bounds.members(decision.card, domain)
        ) if within < 0 and domain is not None
        else (left < 0 and _borrow(decision, client, question))
        or _recall(
            decision, client, question, max(-left, -spare),
            _lenders(decision, "" if left < 0 else client.account))
    )):
        return False
    else:
        if domain is not None and within < 0 and (domain.term or (fits and not squeezed)):
            why = domain.words
        if client.commit >= wanted:
            # It asked before it heard that it may not any more. The hook takes
            # LIMITS at its word, so a refusal must promise less.
            client.commit = min(client.commit, client.need)
    _tell(decision, client, question.number, _most(decision, client), why)
    return True


def _lenders(decision: Decision, account: str) -> list[ScheduledClient]:
    """To whom something is lent; of this account, or of all."""
    lent = decision.card.groups.group("lent")
    return [client for client in lent if not account or client.account == account]


def _awaits_return(decision: Decision, client: ScheduledClient, question: Question) -> bool:
    """It will fit when those who stay have heard that they may not grow any more."""
    others = [c for c in decision.card.groups.group("staying") if c is not client]
    back = sum(c.committed - max(c.commit, c.used) for c in others)
    if question.bytes > _ceiling(decision, client) + back:
        return False
    return not decision.due(question.since + decision.card.settings.stuck_after)


def _squeezed(decision: Decision, client: ScheduledClient, pins: int) -> list[ScheduledClient]:
    """Clients that would not fit beside all that is pinned if they had all they were promised."""
    if pins == 0:
        return []
    left = _unpinned(decision) - pins
    return [other for other in decision.card.groups.spanning(left) if other is not client]


def _unpinned(decision: Decision) -> int:
    """What nobody has pinned, or is about to."""
    card = decision.card
    return card.settings.capacity - card.groups.total("fixed") - belief.pinning(card)


def _release(
    decision: Decision, question: Question, pins: int, squeezed: list[ScheduledClient]
) -> bool:
    """Calls back what is lent to these, if that is enough and the answers may still come."""
    left = _unpinned(decision) - pins
    for other in squeezed:
        _forget_grant(decision, other)
    if any(other.used - other.fastened > left for other in squeezed) or decision.due(
        question.since + decision.card.settings.stuck_after
    ):
        return False
    for other in squeezed:
        _call_back(decision, other, other.used)
    return True


def _borrow(decision: Decision, client: ScheduledClient, question: Question) -> bool:
    """Asks for what other cards do not need of the host's memory, once; then awaits the answer."""
    card = decision.card
    if card.settings.elsewhere is not None and not question.borrows:
        client.question = replace(question, borrows=True)
        decision.want_budget()
        return True
    return card.borrowing and not decision.due(question.since + card.settings.stuck_after)


def _recall(
    decision: Decision, borrower: ScheduledClient, question: Question, short: int,
    among: Iterable[ScheduledClient],
) -> bool:
    """Calls back what is lent to these, if that is enough and the answers may still come."""
    lenders = [c for c in among if c is not borrower and not c.mute]
    for lender in lenders:
        _forget_grant(decision, lender)
    if sum(c.committed - c.need for c in lenders) < short:
        return False
    if decision.due(question.since + decision.card.settings.stuck_after):
        return False
    for lender in lenders:
        _call_back(decision, lender, lender.used)
    return True


def _hold_to(decision: Decision, client: ScheduledClient, limit: int) -> None:
    """It keeps what it has, and may take no more without asking than its memory limit."""
    _forget_grant(decision, client)
    _call_back(decision, client, max(client.used, limit))


def _forget_grant(decision: Decision, client: ScheduledClient) -> None:
    """If it has been taken, or has not been taken for long."""
    taken = client.need >= client.granted
    if client.granted and (taken or decision.due(client.granted_until)):
        client.granted = 0


def _call_back(decision: Decision, client: ScheduledClient, least: int) -> None:
    """Takes back the part of a client's commit beyond `least`."""
    if client.withdrawn or client.commit <= least:
        return
    client.withdrawn = client.commit
    client.commit = least
    _tell(decision, client, 0, min(client.last_most, decision.card.total_for(client)))
    # Nothing changes by this order; its answer shows that the limits were heard.
    decision.evict(client, client.ordered, client.host_charged)
    client.confirmed_by = client.moves[-1].order.number
