# SPDX-License-Identifier: Apache-2.0
"""Which of a client's claims count, and how much memory one account may be promised.

A client itself reports the memory that it holds, and any user's program may connect and report any
figures. Memory that a client claims is not available to others, so claims are checked.

**Accounts.** Each user has an account. Whatever the clients of one account claim, and however
many they are, other accounts are left memory of the size of the card, on card and host together. A
promise is *shown* as far as figures of the driver or the kernel show that the account's processes
hold the memory. The rest may be memory that a program has not used yet, or a false claim. An
account is always allowed unshown promises up to the size of the card. It is allowed more only while
others are left the size of the card. Clients of root have no account: their claims count without
check, and they may be promised all memory.

**Claims.** Memory may grow only with the scheduler's permission: on the card by LOAD, on the host
by EVICT, commit and pinned memory by COMMIT. Claims beyond that are overclaims and do not count. A
client that joins may hold memory since an earlier daemon. Its claims count as far as they are
shown, or could be promised anew. Its bytes on the disk are not shown.

**Evidence.** About every second the driver and the kernel are sampled for the memory of each
process (Seen). If two samples in a row show less memory on the card than a client claims, the
difference is overclaimed and its room is given to others. A client that drains or moves memory is
not judged, because it may have freed more than it has reported. An unresponsive client counts as
holding only the memory that is shown, because it may have been stopped and cannot report. While the
driver shows no figures of clients, no memory on the card is shown. Then memory that a client claims
to have pinned does not reduce the promises to others: they wait for a turn instead of being
refused.

**Grants to pin** that are not used yet are visible in no figure. All of one account together count
as a small part of the card at most.
"""

from dataclasses import replace

from nvshared.scheduler import events
from nvshared.scheduler.card import MARGINS_MOST, Account, Card
from nvshared.scheduler.client import Overclaims, ScheduledClient
from nvshared.scheduler.domains import margin
from nvshared.scheduler.events import Memory, PinReason

PINNING_PART = 16                       # unused grants to pin count as at most 1/16 of the card


def judge_joined(card: Card, client: ScheduledClient, commit: int, left: int) -> None:
    """Counts the claims of a new client that are shown, or that the `left` bytes could cover."""
    if not client.account:
        client.promise.commit = commit
        return
    memory = client.memory
    client.unproved = memory.disk
    filled = _unshown(memory.filled, client.evidence.card)
    host = _unshown(memory.host - memory.borrowed, client.evidence.host)
    if filled:
        client.room = min(client.room, memory.filled - filled)
    more = max(0, promisable(card, client, left))
    client.promise.commit = min(max(commit, memory.need), client.shown + more)
    more -= max(0, client.promise.commit - client.shown)
    client.overclaims = Overclaims(filled, host, max(0, memory.beyond - more))
    client.memory = replace(memory, disk=min(
        memory.disk, client.promise.commit, max(0, card.disk.budget.unneeded)))


def _unshown(claimed: int, seen: int | None) -> int:
    return 0 if seen is None else max(0, claimed - seen)


def promisable(card: Card, client: ScheduledClient, left: int) -> int:
    """Bytes that the client's account may still be promised, of the `left` bytes; negative: it was
    promised too many."""
    if not client.account:
        return left
    sums = card.groups.accounts().get(client.account, Account())
    worth = card.settings.capacity
    # The account may start more clients, whose margins would leave less for others.
    host, clients = card.host.promisable, card.groups.margins()
    more = MARGINS_MOST - min(sums.clients, MARGINS_MOST) + 1
    others = worth + margin(host, clients + more) - margin(host, clients)
    return min(left, max(worth - sums.unshown, left - others))


def granted_to_pin(card: Card, but: ScheduledClient | None = None) -> int:
    """Bytes that all clients but one are about to pin, bounded for each account."""
    most = card.settings.capacity // PINNING_PART
    total = 0
    for account, sums in card.groups.accounts().items():
        own = 0 if but is None or but.account != account else but.pinned_expected - but.pinned_shown
        total += min(sums.pinned_unshown - own, most) if account else sums.pinned_unshown - own
    return total


def hear(client: ScheduledClient, said: Memory, now: int) -> None:
    """Records the figures that a client reports, and which of them count."""
    client.said = said
    if now < client.failures.pinned_until and not said.pin_reason:
        said = replace(
            said, allocated=max(0, said.allocated - said.resident), resident=0,
            pinned=said.filled, pin_reason=PinReason.KEPT)
    # No other source shows borrowed or stored bytes, so they count up to the ordered ones.
    said = replace(said, borrowed=min(said.borrowed, client.loan.charged),
                   disk=min(said.disk, client.disk_charged))
    before, overclaims = client.memory, client.overclaims
    room, host = client.charged, client.host_counted
    client.silenced, client.unproved = False, min(client.unproved, said.disk)
    if said.disk > before.disk:
        client.failures.store_since, client.failures.store.length = now, 0
    client.history.fill(before, now)
    client.memory = said
    if client.account:
        client.overclaims = Overclaims(
            max(0, said.filled - max(before.filled - overclaims.filled, room)),
            max(0, said.host - max(before.host - overclaims.host, host)),
            max(0, said.beyond - (before.beyond - overclaims.beyond)),
        )


def judge_all(card: Card, seen: events.Seen) -> None:
    """Compares claims with the figures of NVML and the kernel."""
    for id, evidence in seen.evidence.items():
        client = card.clients.get(id)
        if client is None or not client.account:
            continue
        client.evidence = evidence
        client.silenced = client.unresponsive
        if evidence.card is None or (client.owes and not client.unresponsive):
            continue
        filled = client.memory.filled
        unshown = _unshown(min(seen.filled.get(id, 0), filled), evidence.card)
        # A single sample may miss memory that was freed a moment ago.
        overclaimed = min(unshown, max(client.unshown_before, client.overclaims.filled))
        client.unshown_before = unshown
        client.overclaims = replace(client.overclaims, filled=overclaimed)
        if overclaimed:
            client.room = min(client.room, filled - overclaimed)
