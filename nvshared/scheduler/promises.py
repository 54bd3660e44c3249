# SPDX-License-Identifier: Apache-2.0
"""How far each client may grow, so that everything allocated fits on card and host together.

A client asks (COMMIT) before it grows beyond its commit, and is granted more or refused as out
of memory. The sum of all commits never exceeds card and host, less a margin (domains.py), so
something can always move. What other cards do not need of the host budget is this card's.

No client gets more than the card less what others have pinned there, or it could never run
again. For the same reason pinning is refused if another client, grown to its whole commit, would
no longer fit beside it. A grant to pin counts as pinned until the hook says that it has heard
the answer. From then on the hook's records say how much of the grant is still to be pinned. The
figure `pinned` alone cannot tell, as another thread may free as much meanwhile. Everything that
an undrainable client may grow to counts as pinned.

While there is plenty, a grant exceeds the request a little, so that a program does not ask for
each allocation. When memory runs short, the unused part of commits is called back with a smaller
LIMITS. The client may be growing into it at that moment, so its old commit counts until it
answers an order sent after the LIMITS. The question waits for that answer, and later questions
of the same account (trust.py) wait behind it. If the client does not answer at all, the question
is decided without it, and so are all others until the client does answer.

Domains and limits of tenants bound what their clients are promised as well. Of a domain a margin
stays free as of the whole host; of a tenant's limit it does not.

Where swapped blocks may go on to a disk (storage.py), its budget is promised too. A card's needs
are met by host memory first, and by the disk beyond that.
"""

from collections.abc import Callable
from dataclasses import replace
from operator import itemgetter
from typing import NamedTuple

from nvshared.scheduler import queue, trust
from nvshared.scheduler.card import Card
from nvshared.scheduler.client import Phase, Pin, Question, ScheduledClient
from nvshared.scheduler.decision import Decision
from nvshared.scheduler.domains import UNBOUNDED, Domain, least_host, margin
from nvshared.units import GIB, MIB, MILLISECOND, SECOND

# A grant may exceed the request by
OVERGRANT_LEAST = 64 * MIB
OVERGRANT_MOST = GIB
OVERGRANT_PART = 16                     # this part of the bytes left
# A grant is not called back until the thread that asked has used it, or for so long.
USED_WITHIN = SECOND
PINNED_WITHIN = 60 * SECOND             # the same of a grant to pin
WORTH_TELLING = 64                      # a smaller part of the card is no change worth telling;
TOLD_AT_ONCE = 4                        # clients,
TELL_APART = MILLISECOND                # and so long after that the next ones
HARDLY = 8                              # below an eighth of that, do not recompute


def welcome(decision: Decision, client: ScheduledClient, commit: int) -> None:
    """The first limits of a client, which may hold a commit from an earlier daemon."""
    card = decision.card
    trust.judge_joined(card, client, commit, _left(card))
    if client.committed == 0 and decision.now >= card.gathered:
        client.promise.commit = _grant(card, client, 0, min(_left(card), _bound(card, client).left))
    _tell(decision, client, 0, _most(card, client))


def answer_beyond(decision: Decision, client: ScheduledClient, number: int) -> None:
    """Answers whether a client may hold as much host memory beyond the card as it claims."""
    card = decision.card
    if client.overclaims.beyond <= _beyond_card(card, client):
        client.overclaims = replace(client.overclaims, beyond=0)
    left, domain = _bound(card, client)
    why = domain.words if domain is not None and left < 0 <= _left(card) else ""
    why = next((tenant.words for tenant in client.tenancies), why)
    _tell(decision, client, number, _most(card, client), why)


def plan(decision: Decision) -> None:
    """Answers questions, and calls back commit that exceeds a limit."""
    card = decision.card
    for client in card.groups.group("granted_to_pin"):
        pins = tuple(
            pin for pin in client.promise.pins
            if pin.number > client.memory.answered and not decision.due(pin.until)
        )
        if pins != client.promise.pins:
            client.promise.pins = pins
    for client in card.groups.group("memory_limited"):
        _call_back(decision, client, client.terms.memory_limit)
    # A grant to one account may decide the question of another.
    while any(_answer_account(decision, account) for account in _askers(card)):
        pass
    for client in card.groups.group("undrainable_overcommitted"):
        _call_back(decision, client, client.need + client.to_pin)
    for client in _overdrawn(card):     # last, as answers may show that a grant is used
        _call_back(decision, client)
    _load_homeless(card)


def tell(decision: Decision) -> None:
    """Tells clients how far they could grow, where that has changed, once all else is decided."""
    card, settings = decision.card, decision.card.settings
    unused = card.groups.sums.committed - card.groups.sums.used
    least = settings.total // WORTH_TELLING
    # These figures decide how far any client could grow. While they have hardly changed since all
    # clients were looked at, only clients that have changed themselves are. More than the whole
    # card is as good as that to every client.
    common = (
        settings.total, settings.capacity, min(_left(card) + unused, 2 * settings.total),
        settings.capacity - _unpinned(card), card.groups.sums.unshown, card.stuck(()),
    )
    changed = card.groups.news("reach")
    if any(abs(new - old) > least // HARDLY for new, old in zip(common, card.reach, strict=True)):
        card.reach = common
        card.untold.update(card.clients)
    else:
        card.untold.update(_with_changed_domains(card, least // HARDLY))
    told = _next_to_tell(decision)
    for client in [*told, *(c for c in changed if c.id not in card.untold)]:
        most = _most(card, client)
        last = client.promise
        if abs(most - last.last_most) > least or last.last_total != card.total_for(client):
            _tell(decision, client, 0, most)


def settle(card: Card) -> None:
    """Notes for the other cards what this one needs of the budgets of host memory and the disk."""
    sums, clients = card.groups.sums, card.groups.margins()
    card.host.needs, card.disk.needs = sums.host_charged, sums.disk
    if card.lost:                       # the memory that clients hold until they end
        return
    held = sums.host_charged + sums.beyond
    beyond = sums.committed + sums.beyond - card.settings.capacity
    needs = least_host(beyond, clients)
    if card.disk.budget.size:
        needs = min(needs, _host(card))
    card.host.needs = needs = max(held, needs)
    card.disk.needs = max(sums.disk, beyond - needs + margin(needs, clients))


def _next_to_tell(decision: Decision) -> list[ScheduledClient]:
    """A few of the clients that are yet to be told; not all at once, as others wait meanwhile."""
    card = decision.card
    if not card.untold or not decision.due(card.tell_next):
        return []
    ids = sorted(card.untold)[:TOLD_AT_ONCE]
    card.untold.difference_update(ids)
    if card.untold:
        card.tell_next = decision.now + TELL_APART
        decision.due(card.tell_next)
    return [card.clients[id] for id in ids if id in card.clients]


def _askers(card: Card) -> dict[str, ScheduledClient]:
    """By account, the client that has waited longest for an answer; in that order."""
    asking = [(c.promise.question, c) for c in card.groups.group("asking")]
    since = [(question.since, client) for question, client in asking if question is not None]
    first: dict[str, ScheduledClient] = {}
    for _, client in sorted(since, key=itemgetter(0)):
        if client.account not in first:
            first[client.account] = client
    return first


def _answer_account(decision: Decision, account: str) -> bool:
    """Questions of one account, up to the first that has to wait. False: not even one."""
    answered = False
    while (client := _askers(decision.card).get(account)) is not None:
        question, heard = client.promise.question, client.memory.answered
        # The hook does not await the answer to a question if it has that to a later one.
        if question and question.number > heard and not _answer(decision, client, question):
            break
        client.promise.question = None
        answered = True
    return answered


def _answer(decision: Decision, client: ScheduledClient, question: Question) -> bool:
    """False: the answer depends on commit that others are to give back."""
    card, promise, wanted = decision.card, client.promise, question.bytes
    left = _left(card) - max(0, wanted - client.committed)
    pins = max(0, wanted - client.pinned_expected) if client.memory.pin_reason else question.pins
    within, domain = _bound(card, client, wanted, pins)
    squeezed = _squeezed(card, client, pins)
    fits = wanted <= _ceiling(card, client)
    spare = _left_for_account(card, client, wanted)
    if fits and min(left, within, spare) >= 0 and not squeezed:
        promise.commit = max(promise.commit, _grant(card, client, wanted, min(left, within)))
        promise.granted, promise.granted_until = wanted, decision.now + USED_WITHIN
        if question.pins:
            until = decision.now + PINNED_WITHIN
            promise.pins = (*promise.pins, Pin(question.number, question.pins, until))
        _tell(decision, client, question.number, _most(card, client))
        return True
    if not fits:
        # It will, when undrainable clients have heard that they may not grow any more.
        back = sum(c.committed - max(c.promise.commit, c.used)
                   for c in card.groups.group("undrainable") if c is not client)
        waits = wanted <= _ceiling(card, client) + back and not _overdue(decision, question)
    elif squeezed:
        room = _unpinned(card) - pins
        waits = _recall(decision, question, squeezed,
                        lambda: all(c.used - c.pinned_expected <= room for c in squeezed))
    else:
        others, short = card.groups.group("unused_commit"), max(-left, -spare)
        if within < 0 and domain is not None:
            others, short = members(card, domain), -within
        elif left >= 0 and client.account:
            others = [c for c in others if c.account == client.account]
        clients = [c for c in others if c is not client and not c.unresponsive]
        unknown = within >= 0 > left and card.host.budget.gathering
        waits = (unknown and not _overdue(decision, question)) or _recall(
            decision, question, clients,
            lambda: sum(c.committed - c.need for c in clients) >= short)
    if waits:
        return False
    why = ""
    if domain is not None and within < 0 and (domain.term or (fits and not squeezed)):
        why = domain.words
    if promise.commit >= wanted:
        # The hook asked before it heard that it may not any more. It takes
        # LIMITS at its word, so a refusal must promise less.
        promise.commit = min(promise.commit, client.need)
    _tell(decision, client, question.number, _most(card, client), why)
    return True


def _overdue(decision: Decision, question: Question) -> bool:
    """The question has waited for so long that others need not answer first."""
    return decision.due(question.since + decision.card.settings.stuck_after)


def _recall(
    decision: Decision, question: Question, clients: list[ScheduledClient],
    enough: Callable[[], bool],
) -> bool:
    """Calls back unused commits, if that will be enough and the clients may still answer."""
    for client in clients:
        _forget_grant(decision, client)
    if not enough() or _overdue(decision, question):
        return False
    for client in clients:
        _call_back(decision, client)
    return True


def _forget_grant(decision: Decision, client: ScheduledClient) -> None:
    """The grant has been used, or has not been used for long."""
    promise = client.promise
    used = client.need >= promise.granted
    if promise.granted and (used or decision.due(promise.granted_until)):
        promise.granted = 0


def _call_back(decision: Decision, client: ScheduledClient, limit: int = 0) -> None:
    """Takes back the unused part of a commit beyond the limit."""
    _forget_grant(decision, client)
    promise, least = client.promise, max(client.used, limit)
    if promise.withdrawn or promise.commit <= least:
        return
    promise.withdrawn, promise.commit = promise.commit, least
    _tell(decision, client, 0, min(promise.last_most, decision.card.total_for(client)))
    # Nothing changes by this order; its answer shows that the limits were heard. It allows for no
    # host memory: orders before it account for theirs.
    held = [client.memory.host, *(move.order.host for move in client.moves)]
    decision.evict(client, client.ordered, min(held))
    promise.confirmed_by = client.moves[-1].order.number


def _tell(
    decision: Decision, client: ScheduledClient, number: int, most: int, why: str = ""
) -> None:
    """Sends LIMITS. Beyond the card the client may hold host memory that is not promised.

    A memory limit is a card of that size, and such a client gets no more than that.
    """
    bounded = client.terms.memory_limit or client.tenancies
    more = 0 if bounded else max(0, client.beyond + _beyond_card(decision.card, client))
    decision.limits(client, number, most, more, why)


def _grant(card: Card, client: ScheduledClient, wanted: int, left: int) -> int:
    """The commit of a client that asked for `wanted`, while `left` is left after it."""
    if client.memory.pin_reason:
        return wanted
    more = min(OVERGRANT_MOST, left // OVERGRANT_PART, _ceiling(card, client) - wanted)
    if client.account and (
        more > _left_for_account(card, client, wanted) or not client.shown
    ):
        return wanted
    return wanted + (more if more >= OVERGRANT_LEAST else 0)


def _left(card: Card) -> int:
    """Bytes that can still be promised; negative after card or budget shrank."""
    can = card.settings.capacity + _host_less_margin(card) + card.disk.promisable
    return can - card.groups.sums.committed - card.groups.sums.beyond


def _host_less_margin(card: Card) -> int:
    """Bytes of host memory that can be promised in all."""
    host = _host(card)
    return host - margin(host, card.groups.margins())


def _host(card: Card) -> int:
    """The same, with the margin."""
    return card.host.most if card.disk.budget.size else card.host.promisable


def _left_for_account(card: Card, client: ScheduledClient, wanted: int) -> int:
    """The same of the client's account, once the client has `wanted`."""
    more = max(0, wanted - client.committed)
    left = _left(card)
    return trust.promisable(card, client, left) - more if more else left


def _unpinned(card: Card) -> int:
    """Bytes of the card that no client pins, or is about to pin."""
    return card.settings.capacity - card.groups.sums.pinned_shown - trust.granted_to_pin(card)


def _squeezed(card: Card, client: ScheduledClient, pins: int) -> list[ScheduledClient]:
    """Clients that would not fit beside all that is pinned if they had all they were promised."""
    if pins == 0:
        return []
    return [c for c in card.groups.with_unpinned_commit(_unpinned(card) - pins) if c is not client]


def _ceiling(card: Card, client: ScheduledClient) -> int:
    """How far a client could grow if it were alone with what others have pinned."""
    by_others = card.groups.sums.pinned_shown - client.pinned_shown
    by_others += trust.granted_to_pin(card, client)
    if card.tight:
        by_others += card.stuck([client])
    return max(0, min(card.total_for(client), card.settings.capacity - by_others))


def _most(card: Card, client: ScheduledClient) -> int:
    """How far a client could grow if it asked, with all unused commits called back."""
    own = client.committed - client.used
    unused = card.groups.sums.committed - card.groups.sums.used - own
    more = trust.promisable(card, client, _left(card) + unused) + own
    for domain in (*client.domains, *client.tenancies):
        more = min(more, _left_in(domain) + domain.sums.unused)
    return max(0, min(_ceiling(card, client), client.used + more))


def _beyond_card(card: Card, client: ScheduledClient) -> int:
    """How much more a client may hold beyond the card."""
    least = min(_left(card), _bound(card, client).left, card.host_free_for(client))
    if card.disk.budget.size:           # which does not hold it
        least = min(least, _host_less_margin(card) - card.groups.sums.beyond)
    return trust.promisable(card, client, least)


class Bound(NamedTuple):
    """The tightest host memory limit that a client shares (domains.py), and the bytes it leaves."""

    left: int                           # bytes that can still be promised; negative: too many are
    domain: Domain | None               # None: there is no bound


def _bound(card: Card, client: ScheduledClient, commit: int = 0, pins: int = 0) -> Bound:
    """`commit`, `pins`: as if it had been granted so much, and so much more of it to be pinned."""
    card.groups.settle()
    committed = max(commit, client.committed)
    pinned = client.pinned_expected
    more = max(0, committed - pinned - pins) - max(0, client.committed - pinned)
    bounds = [Bound(_left_in(domain) - more, domain) for domain in client.domains]
    grows = committed - client.committed
    bounds += [Bound(_left_in(tenant) - grows, tenant) for tenant in client.tenancies]
    return min(bounds, default=Bound(UNBOUNDED, None), key=lambda one: one.left)


def _left_in(domain: Domain) -> int:
    if domain.capacity is None or domain.whole:
        return UNBOUNDED
    kept = 0 if domain.term else margin(domain.capacity, len(domain.stakes))
    return domain.capacity - kept - domain.sums.promised


def members(card: Card, domain: Domain) -> list[ScheduledClient]:
    """Its clients on this card, in the order of their joining."""
    return [card.clients[id] for id in sorted(domain.stakes) if id in card.clients]


def _overdrawn(card: Card) -> list[ScheduledClient]:
    """Clients of domains in which more is promised than there is, and some of it is unused.

    A domain or a limit has shrunk, or memory that was pinned and counted nowhere has been freed.
    """
    card.groups.settle()
    return [
        client for domain in (*card.domains.full, *card.tenancies.full)
        if domain.sums.unused > 0 > _left_in(domain)
        for client in members(card, domain)
    ]


def _with_changed_domains(card: Card, threshold: int) -> list[int]:
    """Ids of clients of domains in which what they can grow to has changed by more than that."""
    card.groups.settle()
    found: dict[int, None] = {}
    for domain in (*card.domains.news(card.groups), *card.tenancies.news(card.groups)):
        # More than the whole card is as good as that to every client.
        now = min(_left_in(domain) + domain.sums.unused, card.settings.total)
        if abs(now - card.domain_reach.get(domain.name, card.settings.total)) > threshold:
            card.domain_reach[domain.name] = now
            found.update(dict.fromkeys(domain.stakes))
    return [id for id in found if id in card.clients]


def _load_homeless(card: Card) -> None:
    """Clients with swapped blocks for which a shrunken domain has no host memory load them."""
    card.groups.settle()
    for domain in card.domains.lacking:
        for client in members(card, domain) if domain.untaken < 0 else ():
            swapped = client.memory.resident < client.memory.allocated
            if swapped and client.phase is Phase.IDLE:
                queue.arrive(card, client)
