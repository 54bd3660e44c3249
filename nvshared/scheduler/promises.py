# SPDX-License-Identifier: Apache-2.0
"""How far each client may grow, so that everything allocated fits on card and host together.

docs/internals/scheduler.md explains promises, pinning, trust, claims and evidence.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter, itemgetter
from weakref import WeakKeyDictionary

from nvshared.quantity import sized
from nvshared.scheduler import events, queue
from nvshared.scheduler.actions import Limits
from nvshared.scheduler.card import Card
from nvshared.scheduler.client import Phase, ScheduledClient
from nvshared.scheduler.domains import UNBOUNDED, Bounds, Domain, least_host, margin
from nvshared.scheduler.events import CommitAsked, TenantTerms
from nvshared.scheduler.groups import MARGINS_MOST, Account
from nvshared.scheduler.promise import Overclaims, Pin
from nvshared.units import GIB, MIB, MILLISECOND, SECOND

OVERGRANT_PART = 16                     # a grant exceeds the request by 1/16 of promisable bytes,
OVERGRANT_LEAST = 64 * MIB              # within these bounds, or not at all
OVERGRANT_MOST = GIB
USED_WITHIN = SECOND                    # an unused grant is not called back for this time
PINNED_WITHIN = 60 * SECOND             # an unused grant to pin is kept for this time
CHANGE_PART = 64                        # `most` changed by less than 1/64 of the card: no LIMITS
MINOR_PART = 8                          # a change by 1/8 of that part or less causes no check
CHECKED_AT_ONCE = 4                     # most clients for which one plan checks the LIMITS
CHECKS_APART = MILLISECOND              # us until the LIMITS of further clients are checked
EXACT_RUNS = 8                          # most clients for which _beside_disk_limits() is exact
PINNING_PART = 16                       # an account's unused grants to pin: up to 1/16 of the card
ALL_PROMISED = (                        # why a request is refused for which the card has room
    "all that fits on the GPU and in the host memory that nvshared may use (swap-budget) is "
    "promised to programs")


@dataclass(slots=True)
class _Checks:
    """Which clients may need new LIMITS."""

    growth: tuple[int, ...] = (0,) * 6  # figures of the card when a full check began last
    # Bytes left at the last check, by domain. Weak: control groups end with their programs.
    left: WeakKeyDictionary[Domain, int] = field(default_factory=WeakKeyDictionary)
    unchecked: set[int] = field(default_factory=set)    # ids of clients still to be checked
    at: int = 0                         # time of the next check of a client in `unchecked`


def send_first_limits(card: Card, client: ScheduledClient, commit: int) -> None:
    """Sends the first LIMITS to a client, which may hold memory and a commit from an earlier
    daemon: both count as far as NVML and the kernel show memory, or it could be promised now."""
    memory, promise, left = client.memory, client.promise, _promisable(card)
    if not client.claims.account:
        promise.make(commit)
    else:
        evidence = client.claims.evidence
        filled = _excess_claim(memory.filled, evidence.card)
        host = _excess_claim(memory.host - memory.borrowed, evidence.host)
        client.claims.begin(memory.disk)
        if filled:
            client.orders.confirm(min(client.orders.room, memory.filled - filled))
        more = max(0, _promisable_to_account(card, client, left))
        promise.make(min(max(commit, memory.need), client.shown + more))
        more -= max(0, promise.commit - client.shown)
        client.claims.overclaim(Overclaims(filled, host, max(0, memory.beyond - more)))
        client.count_stored(min(promise.commit, max(0, card.disk.budget.unneeded)))
    if client.committed == 0 and card.now >= card.gathered:
        left = min(_promisable(card), _tightest_limit(card, client)[0])
        promise.make(_commit_to_grant(card, client, 0, left))
    _send_limits(card, client, 0, _largest_commit(card, client))


def answer_beyond(card: Card, client: ScheduledClient, number: int) -> None:
    """Answers whether a client may hold its `beyond` (events.Memory) bytes of host memory."""
    if client.claims.over.beyond <= _beyond_card(card, client):
        client.claims.overclaim(client.claims.over._replace(beyond=0))
    left, domain = _tightest_limit(card, client)
    granted = client.memory.beyond <= _most_beyond(card, client)
    lacks, reason = client.claims.over.beyond, ""   # the sums have the rest of `beyond`
    if domain is not None and left < lacks <= _promisable(card):
        reason = domain.reason
    elif not granted and not client.terms.memory_limit and _host_for_beyond(card) < lacks:
        reason = ALL_PROMISED
    reason = next((tenant.reason for tenant in client.bounds.memory_limits), reason)
    _send_limits(card, client, number, _largest_commit(card, client), reason, granted=granted)


def plan(card: Card) -> None:
    """Answers COMMIT requests, and calls back commits that exceed a limit."""
    for client in card.groups["granted_to_pin"]:
        client.promise.grant_pins(*(
            pin for pin in client.promise.pins
            if pin.number > client.memory.answered and not card.due(pin.until)))
    for client in card.groups["memory_limited"]:
        _call_back(card, client, client.terms.memory_limit)
    # A grant to one account may decide the request of another.
    while any(_answer_account(card, account) for account in _first_requests(card)):
        pass
    for client in card.groups["undrainable_overcommitted"]:
        _call_back(card, client, client.memory.need + client.to_pin)
    # The commits in a domain may exceed its limit after the limit was lowered, or after a client
    # has freed pinned memory, which does not count in the domain. Requests are answered first,
    # because a grant turns unused commit into used commit, which is not called back.
    card.groups.settle()
    overdrawn: list[ScheduledClient] = []
    for domain in (*card.domains.full, *card.memory_limits.full):
        if domain.sums.unused > 0 > _promisable_in(domain):
            overdrawn += members(card, domain)
    for client in overdrawn:
        _call_back(card, client)
    # Idle clients load swapped blocks that exceed a shrunken domain.
    card.groups.settle()
    for domain in card.domains.unevictable:
        for client in members(card, domain) if domain.untaken < 0 else ():
            if client.swapped and client.phase is Phase.IDLE:
                queue.arrive(card, client)


def send_limits(card: Card) -> None:
    """Sends LIMITS to clients whose largest possible commit has changed. Runs last in a plan."""
    settings = card.settings
    unused = card.groups.sums.committed - card.groups.sums.used
    least = settings.total // CHANGE_PART
    minor = least // MINOR_PART
    # These figures decide how far any client could grow. While they have hardly changed since all
    # clients were checked, only clients with changed figures of their own, or in changed domains,
    # are checked. No client can use more than the card, so larger figures are cut off.
    common = (
        settings.total, settings.capacity, min(_promisable(card) + unused, 2 * settings.total),
        settings.capacity - _unpinned(card), card.groups.sums.unshown, card.unevictable_outside(()))
    changed, checks = card.groups.take_changed("limits"), card.records.of(_Checks)
    if any(abs(new - old) > minor for new, old in zip(common, checks.growth, strict=True)):
        checks.growth = common
        checks.unchecked.update(card.clients)
    else:
        both = (card.domains, card.memory_limits)
        for domain in chain.from_iterable(one.take_changed(card.groups) for one in both):
            left = min(_promisable_in(domain) + domain.sums.unused, settings.total)
            if abs(left - checks.left.get(domain, settings.total)) > minor:
                checks.left[domain] = left
                checks.unchecked.update(domain.stakes.keys() & card.clients.keys())
    ids: list[int] = []
    if checks.unchecked and card.due(checks.at):
        ids = sorted(checks.unchecked)[:CHECKED_AT_ONCE]    # more would delay events
        checks.unchecked.difference_update(ids)
        if checks.unchecked:
            checks.at = card.now + CHECKS_APART
            card.due(checks.at)
    to_check = [card.clients[id] for id in ids if id in card.clients]
    for client in [*to_check, *(c for c in changed if c.id not in checks.unchecked)]:
        most, last = _largest_commit(card, client), client.promise
        if abs(most - last.last_most) > least or last.last_total != _total_for(card, client):
            _send_limits(card, client, 0, most)


def settle(card: Card) -> None:
    """Records this card's needs of the budgets of host memory and the disk, for other cards."""
    sums, clients = card.groups.sums, card.groups.margins()
    held = sums.host_charged + sums.beyond
    card.host.need(held)
    card.disk.need(sums.disk)
    if card.lost:                       # a lost card promises nothing: only held memory counts
        return
    beyond = sums.committed + sums.beyond - card.settings.capacity
    needs = least_host(beyond, clients)
    if card.disk.budget.size:
        needs = min(needs, _usable_host(card))
    needs = max(held, needs)
    card.host.need(needs)
    card.disk.need(max(sums.disk, beyond - needs + margin(needs, clients)))


def _first_requests(card: Card) -> dict[str, ScheduledClient]:
    """By account, the client whose COMMIT request has waited longest; the longest wait first."""
    first: dict[str, ScheduledClient] = {}
    for client in sorted(card.groups["requesting"], key=attrgetter("promise.requested")):
        if client.claims.account not in first:
            first[client.claims.account] = client
    return first


def _answer_account(card: Card, account: str) -> bool:
    """Answers an account's COMMIT requests until a request has to wait. False: answered none."""
    answered = False
    while (client := _first_requests(card).get(account)) is not None:
        request, answered_number = client.promise.request, client.memory.answered
        # A hook that has the reply to a later request no longer waits for this one.
        if request and request.number > answered_number and not _answer(card, client, request):
            break
        client.promise.ask(None, card.now)
        answered = True
    return answered


def _answer(card: Card, client: ScheduledClient, request: CommitAsked) -> bool:
    """Answers a COMMIT request. False: the reply has to wait until others return commit."""
    promise, wanted = client.promise, request.wanted
    left = _promisable(card) - max(0, wanted - client.committed)
    pins = max(0, wanted - client.pinned_expected) if client.memory.pin_reason else request.pins
    within, domain = _tightest_limit(card, client, wanted, pins)
    squeezed = _displaced_by_pins(card, client, pins)
    fits = wanted <= _ceiling(card, client)
    spare = _left_for_account(card, client, wanted)
    if fits and min(left, within, spare) >= 0 and not squeezed:
        commit = _commit_to_grant(card, client, wanted, min(left, within))
        promise.grant(commit, wanted, card.now + USED_WITHIN)
        if request.pins:
            until = card.now + PINNED_WITHIN
            promise.grant_pins(*promise.pins, Pin(request.number, request.pins, until))
        _send_limits(card, client, request.number, _largest_commit(card, client), granted=True)
        return True
    if not fits:
        # The request may fit once undrainable clients acknowledge that they may not grow further.
        back = sum(c.committed - max(c.promise.commit, c.used)
                   for c in card.groups["undrainable"] if c is not client)
        waits = wanted <= _ceiling(card, client) + back and not _overdue(card, client)
    elif squeezed:
        room = _unpinned(card) - pins
        waits = _recall(card, client, squeezed,
                        lambda: all(c.used - c.pinned_expected <= room for c in squeezed))
    else:
        others, short = card.groups["unused_commit"], max(-left, -spare)
        if within < 0 and domain is not None:
            others, short = members(card, domain), -within
        elif left >= 0 and client.claims.account:
            others = [c for c in others if c.claims.account == client.claims.account]
        clients = [c for c in others if c is not client and not c.unresponsive]
        # While other cards gather clients, the card may promise a part of the host memory only.
        unknown = within >= 0 > min(left, spare) and card.host.budget.gathering
        waits = (unknown and not _overdue(card, client)) or _recall(
            card, client, clients,
            lambda: sum(c.committed - c.memory.need - c.to_pin for c in clients) >= short)
    if waits:
        return False
    lacks = fits and not squeezed       # it would fit on the card alone
    if domain is not None and within < 0 and (domain.of_tenant or lacks):
        reason = domain.reason
    else:
        reason = ALL_PROMISED if lacks and left < 0 else ""
    _send_limits(card, client, request.number, _largest_commit(card, client), reason)
    return True


def _overdue(card: Card, client: ScheduledClient) -> bool:
    """Whether the client's COMMIT request is `stuck_after` old, so that its answer is due now."""
    return card.due(client.promise.requested + card.settings.stuck_after)


def _recall(
    card: Card, requester: ScheduledClient, clients: list[ScheduledClient],
    enough: Callable[[], bool],
) -> bool:
    """Calls back the clients' unused commits if that may be `enough`. True: the request waits."""
    for client in clients:
        _forget_grant(card, client)
    recalled = enough() and not _overdue(card, requester)
    for client in clients if recalled else ():
        _call_back(card, client)
    return recalled


def _forget_grant(card: Card, client: ScheduledClient) -> None:
    """Clears a grant that has been used, or that has not been used in time."""
    promise, need = client.promise, client.memory.need
    if promise.wanted and (need >= promise.wanted or card.due(promise.wanted_until)):
        promise.forget_grant()


def _call_back(card: Card, client: ScheduledClient, limit: int = 0) -> None:
    """Takes back the unused part of a commit beyond `limit` (bytes; 0: its whole unused part)."""
    _forget_grant(card, client)
    promise, least = client.promise, max(client.used, client.memory.need + client.to_pin, limit)
    if promise.withdrawn or promise.commit <= least:
        return
    promise.call_back(least)
    _send_limits(card, client, 0, min(promise.last_most, _total_for(card, client)))
    # This order moves nothing; its reply shows that the hook has received the LIMITS. It allows no
    # host memory beyond that of earlier orders.
    host = min([client.memory.host, *(move.order.host for move in client.orders.moves)])
    card.evict(client, client.ordered, host)
    promise.confirm_by(client.orders.moves[-1].order.number)


def _send_limits(
    card: Card, client: ScheduledClient, number: int, most: int, reason: str = "", *,
    granted: bool = False,
) -> None:
    promise = client.promise
    promise.note_limits(most, _total_for(card, client))
    card.send(Limits(client.id, number, promise.commit, most, promise.last_total,
                     _most_beyond(card, client), reason, granted))


def _most_beyond(card: Card, client: ScheduledClient) -> int:
    """The `beyond` that a client may have. With a memory limit it may not allocate more than fits
    the card."""
    if card.lost:
        return client.memory.beyond
    bounded = client.terms.memory_limit or client.bounds.memory_limits
    return 0 if bounded else max(0, client.beyond + _beyond_card(card, client))


def grant_when_lost(card: Card, client: ScheduledClient, request: CommitAsked) -> None:
    """Grants a COMMIT request on a lost card, so that the program gets the driver's error."""
    client.promise.make(max(client.promise.commit, request.wanted))
    _send_limits(card, client, request.number, client.promise.commit, granted=True)


def _total_for(card: Card, client: ScheduledClient) -> int:
    """The size of the card that this client's program is shown; bytes."""
    limits = (client.terms.memory_limit, *(domain.limit for domain in client.bounds.memory_limits))
    return min([card.settings.total, *filter(None, limits)])


def _commit_to_grant(card: Card, client: ScheduledClient, wanted: int, left: int) -> int:
    """The commit to grant for a request of `wanted` bytes, if `left` more could be promised."""
    if client.memory.pin_reason:
        return wanted
    more = min(OVERGRANT_MOST, left // OVERGRANT_PART, _ceiling(card, client) - wanted)
    left = _left_for_account(card, client, wanted)
    if client.claims.account and (more > left or not client.shown):
        return wanted
    return wanted + (more if more >= OVERGRANT_LEAST else 0)


def _promisable(card: Card) -> int:
    """Bytes that can still be promised; negative after card or budget shrank."""
    can = card.settings.capacity + _host_less_margin(card) + card.disk.promisable
    return can - card.groups.sums.committed - card.groups.sums.beyond


def _host_less_margin(card: Card) -> int:
    """Bytes of host memory that this card can promise in all, without the margin."""
    host = _usable_host(card)
    return host - margin(host, card.groups.margins())


def _usable_host(card: Card) -> int:
    """Bytes of host memory that this card may count on, including the margin."""
    return card.host.most if card.disk.budget.size else card.host.promisable


def _left_for_account(card: Card, client: ScheduledClient, wanted: int) -> int:
    """Bytes that the client's account can still be promised once the client has `wanted` bytes."""
    more = max(0, wanted - client.committed)
    left = _promisable(card)
    return _promisable_to_account(card, client, left) - more if more else left


def _unpinned(card: Card) -> int:
    """Bytes of the card that no client has pinned or was granted to pin."""
    return card.settings.capacity - card.groups.sums.pinned_shown - _granted_to_pin(card)


def _displaced_by_pins(card: Card, client: ScheduledClient, pins: int) -> list[ScheduledClient]:
    """Clients that, grown to their commits, would not fit beside pinned memory and `pins` more."""
    if pins == 0:
        return []
    room = max(0, _unpinned(card) - pins)
    found = [id for id, one in card.groups.each() if one.unpinned_commit > room]
    return [card.clients[id] for id in sorted(found) if id != client.id]


def _ceiling(card: Card, client: ScheduledClient) -> int:
    """How far a client could grow with only pinned memory of others on the card; bytes."""
    by_others = card.groups.sums.pinned_shown - client.pinned_shown + _granted_to_pin(card, client)
    if card.tight:
        by_others += card.unevictable_outside([client])
    most = min(_total_for(card, client), card.settings.capacity - by_others)
    return _beside_disk_limits(card, client, max(0, most))


def _beside_disk_limits(card: Card, client: ScheduledClient, most: int) -> int:
    """A commit of the client, `most` at most, with which card, host and disk hold the memory of all
    clients, whichever client runs: the largest, or a lower one if the turns of more than EXACT_RUNS
    clients could lower it."""
    if not card.disk.budget.size or not card.groups["disk_limited"]:
        return most
    others = {id: one.committed for id, one in card.clients.items() if one is not client}
    beside = card.settings.capacity + _host_less_margin(card) - sum(others.values())
    bounded: dict[Domain, list[int]] = {}
    for id, one in card.clients.items():
        for domain in one.bounds.disk:
            bounded.setdefault(domain, []).append(id)
    # A tenant's limit spans all cards: another card's scheduler may have removed it before this
    # card's scheduler handles TenantChanged.
    limits = [(one.limit, ids) for one, ids in bounded.items() if one.limit is not None]
    limits.sort(key=lambda entry: len(entry[1]))    # inner limits bound fewer clients
    stored, free = _stored(others, limits, client.id)
    left = beside + sum(stored.values())
    fits, exact = min(most, max(0, left)), EXACT_RUNS
    for id in sorted(stored, key=stored.__getitem__, reverse=True):
        # While the client `id` runs, the disk holds none of its bytes,
        left_then, free_then = left - stored[id], free
        if exact and (left_then < 0 or left_then + free < fits):
            # so the disk may hold more bytes of other clients with the same limits.
            stored_then, free_then = _stored(others | {id: 0}, limits, client.id)
            left_then = beside + sum(stored_then.values())
            exact -= 1
        fits = min(fits, left_then + free_then if left_then >= 0 else 0)
    return min(most, max(fits, client.committed))


def _stored(
    commits: dict[int, int], limits: list[tuple[int, list[int]]], client: int
) -> tuple[dict[int, int], int]:
    """The bytes that the disk may hold of clients with these commits, and of one more client beside
    them. `limits`: each with the ids of its clients, inner limits first."""
    stored, free = dict(commits), UNBOUNDED
    for limit, ids in limits:
        over = sum(stored.get(id, 0) for id in ids) - limit
        if client in ids:
            free = min(free, max(0, -over))
        for id in filter(stored.__contains__, ids):
            cut = max(0, min(over, stored[id]))
            stored[id] -= cut
            over -= cut
    return stored, free


def _largest_commit(card: Card, client: ScheduledClient) -> int:
    """How far a client could grow if it asked, with all unused commits called back."""
    own = client.committed - client.used
    unused = card.groups.sums.committed - card.groups.sums.used - own
    more = _promisable_to_account(card, client, _promisable(card) + unused) + own
    for domain in (*client.bounds.host, *client.bounds.memory_limits):
        more = min(more, _promisable_in(domain) + domain.sums.unused)
    return max(0, min(_ceiling(card, client), client.used + more))


def _beyond_card(card: Card, client: ScheduledClient) -> int:
    """Bytes of host memory that the client's allocations too large for the card may still take."""
    least = min(_tightest_limit(card, client)[0], card.host_free_for(client),
                _host_for_beyond(card))
    return _promisable_to_account(card, client, least)


def _host_for_beyond(card: Card) -> int:
    """The same for any client, without its limits and the part left for other accounts."""
    least = min(_promisable(card), card.host_free)
    if card.disk.budget.size:           # such allocations cannot go to the disk
        least = min(least, _host_less_margin(card) - card.groups.sums.beyond)
    return least


def _tightest_limit(
    card: Card, client: ScheduledClient, commit: int = 0, pins: int = 0
) -> tuple[int, Domain | None]:
    """The bytes that can still be promised if the client had this commit and pinned `pins` more of
    it, and the limit (domains.py) that bounds them; negative: too many are promised."""
    card.groups.settle()
    committed, pinned = max(commit, client.committed), client.pinned_expected
    more = max(0, committed - pinned - pins) - max(0, client.committed - pinned)
    grows = committed - client.committed
    bounds: list[tuple[int, Domain | None]] = [(UNBOUNDED, None)]
    bounds += [(_promisable_in(domain) - more, domain) for domain in client.bounds.host]
    bounds += [(_promisable_in(tenant) - grows, tenant) for tenant in client.bounds.memory_limits]
    return min(bounds, key=itemgetter(0))


def _promisable_in(domain: Domain) -> int:
    if domain.limit is None or domain.whole:
        return UNBOUNDED
    margin_bytes = 0 if domain.of_tenant else margin(domain.limit, len(domain.stakes))
    return domain.limit - margin_bytes - domain.sums.promised


def members(card: Card, domain: Domain) -> list[ScheduledClient]:
    """The domain's clients on this card, in the order in which they joined."""
    return [card.clients[id] for id in sorted(domain.stakes) if id in card.clients]


def bind_limits(card: Card, client: ScheduledClient, groups: Iterable[str] | None = None) -> None:
    """Binds a client to limits of its tenants, and of `groups` (names; None: unchanged)."""
    if groups is None:
        groups = [one.name for one in client.bounds.host if one.name not in client.tenants]
    terms = {name: card.tenants.terms_for(name) for name in client.tenants}
    client.bind(Bounds(
        card.domains.named([*groups, *(n for n, one in terms.items() if one.host_memory_limit)]),
        card.memory_limits.named(n for n, one in terms.items() if one.memory_limit),
        card.disk.budget.limits.named(n for n, one in terms.items() if one.disk_limit)))


def limit_tenant(card: Card, tenant: str, before: TenantTerms, terms: TenantTerms) -> None:
    """Applies a tenant's changed limits of GPU memory, host memory and disk."""
    for domains, limit, old, of_memory in (
        (card.memory_limits, terms.memory_limit, before.memory_limit, ""),
        (card.domains, terms.host_memory_limit, before.host_memory_limit, " of host memory"),
        (card.disk.budget.limits, terms.disk_limit, before.disk_limit, " of the disk"),
    ):
        if limit != old or (limit and terms.shown != before.shown):
            shown = terms.shown or tenant
            reason = f"all programs of {shown} together are limited to {sized(limit)}{of_memory}"
            of_tenant = bool(limit) and domains is not card.disk.budget.limits
            domains.set_limit(tenant, limit or None, reason, of_tenant=of_tenant)
            for client in card.clients.values():
                if tenant in client.tenants:
                    bind_limits(card, client)   # marks the client as changed: gets LIMITS
            card.groups.settle()
            if not limit:
                domains.drop(tenant)


def _excess_claim(claimed: int, seen: int | None) -> int:
    return 0 if seen is None else max(0, claimed - seen)


def _promisable_to_account(card: Card, client: ScheduledClient, left: int) -> int:
    """Bytes that the client's account may still be promised of `left` bytes; negative: too many."""
    if not (account := client.claims.account):
        return left
    sums, allowance = card.groups.accounts().get(account, Account()), card.settings.capacity
    # The account may start more clients, whose margins would leave less for others.
    host, clients = card.host.promisable, card.groups.margins()
    more = MARGINS_MOST - min(sums.clients, MARGINS_MOST) + 1
    others = allowance + margin(host, clients + more) - margin(host, clients)
    return min(left, max(allowance - sums.unshown, left - others))


def _granted_to_pin(card: Card, but: ScheduledClient | None = None) -> int:
    """Bytes that all clients but one are about to pin, bounded for each account."""
    most = card.settings.capacity // PINNING_PART
    total = 0
    for account, sums in card.groups.accounts().items():
        own = 0
        if but is not None and but.claims.account == account:
            own = but.pinned_expected - but.pinned_shown
        total += min(sums.pinned_unshown - own, most) if account else sums.pinned_unshown - own
    return total


def judge_claims(card: Card, seen: events.Seen) -> None:
    """Records a sample of NVML's and the kernel's figures."""
    for id, evidence in seen.evidence.items():
        client = card.clients.get(id)
        if client is None or not client.claims.account:
            continue
        client.claims.see(evidence, silenced=client.unresponsive)
        owes = client.orders.moves or client.phase is Phase.DRAINING
        if evidence.card is None or (owes and not client.unresponsive):
            continue
        filled = client.memory.filled
        claimed = min(seen.filled.get(id, 0), filled)
        client.claims.judge(_excess_claim(claimed, evidence.card))
        if overclaimed := client.claims.over.filled:
            client.orders.confirm(min(client.orders.room, filled - overclaimed))
