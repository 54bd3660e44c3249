# SPDX-License-Identifier: Apache-2.0
"""Clients grouped by what they have in common, and sums over them, kept up to date as they change.

There may be a thousand clients, and each event makes a plan. To go through all of them for each
sum and each group would take ten milliseconds, which every hand-over would wait for; and since
the last event only one or two clients have changed. So a client notes each change of a figure
that counts here (ScheduledClient.__setattr__, so that none is forgotten). Before anything is
read, those clients are counted anew, and no others.
"""

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterator, Mapping
from sys import maxsize
from typing import NamedTuple

from nvshared.record import dataclass
from nvshared.scheduler.client import Phase, ScheduledClient
from nvshared.scheduler.domains import NOTHING as NO_STAKE
from nvshared.scheduler.domains import Domain, Stake
from nvshared.scheduler.events import Standing, Stays
from nvshared.scheduler.settings import Priority
from nvshared.scheduler.share import Head, Line, Lines, Share

# Who is in which group; and those in a phase are one that is named like it.
GROUPS = (
    "queued",                           # wants a turn and may have one
    "holding",                          # chosen, running or draining
    "moving",                           # an EVICT or LOAD is on its way
    "presaving",                        # an EVICT that keeps is
    "asking",                           # a COMMIT is unanswered
    "lent",                             # was promised more than it uses
    "pinning",                          # was allowed to pin some more, and may not know yet
    "bounded",                          # has a memory limit
    "staying",                          # nothing of it leaves the card any more,
    "keeping",                          # and for a while only
    "excessive",                        # of those, who was promised more than it may have,
    "entering",                         # who is whole and wants a turn,
    "settled",                          # and who is whole and has one
    "suspended",
    "ganged",                           # in a gang,
    "granted",                          # and of those who waits and goes before all others
    "rationed",                         # has a compute limit, or a tenant of its
    "lacking",                          # chosen or running, and short of room or of memory
    "occupying",                        # has room on the card
    "background",                       # of those holding, who gives way to
    "urgent",                           # all others who may launch without waiting for memory
    "measured",                         # of those holding or queued, who came in for another once
    *(phase.value for phase in Phase),
)

# What is summed up over whom; bytes, if not said otherwise.
SUMS = (
    "charged", "host_charged", "committed", "used", "pinned", "fixed", "beyond", "unshown",
    "staying_take",                     # over those chosen or running
    "holders_take",                     # over those, and those that drain
    "queued_want",                      # room that those in the queue have not been promised
    "cost",                             # over those measured; us
    "need", "filled",
    "out_of_reach",                     # of those that do not answer
    "presaved",                          # over those idle: what could leave without a copy
)
HEADS = 16                              # clients of one account, for which a margin is kept
QUEUING = (Standing.FREE, Standing.CLAIMS)
POSITIONS = {name: position for position, name in enumerate(SUMS)}


class Counted(NamedTuple):
    """What a client was counted as, so that it can be taken out again."""

    groups: tuple[str, ...]
    sums: tuple[int, ...]               # in the order of SUMS
    place: tuple[int, int] | None       # in the queue, and its id; None: it is not there
    takes: int
    away: tuple[int, int] | None        # idle: bytes that are not on the card, and its id
    domains: tuple[Domain, ...] = ()
    stake: Stake = NO_STAKE             # in each of those
    tenancies: tuple[Domain, ...] = ()
    promise: Stake = NO_STAKE           # in those
    span: tuple[int, int] | None = None     # what it was promised and may leave, and its id
    asks: tuple[int, int] | None = None     # when its question came, and which it is
    account: str = ""
    parts: tuple[int, int, int] = (0, 0, 0)         # of the sums of that, in their order
    lines: tuple[Line, ...] = ()        # in which it waits
    active: tuple[Share, ...] = ()      # whose it is, if it holds the card or waits


@dataclass(slots=True)
class Account:
    """Sums over the clients of one account, see belief.py."""

    unshown: int = 0
    pinning: int = 0
    heads: int = 0                      # those that have anything, or may

    def add(self, parts: tuple[int, int, int], sign: int) -> None:
        """What one client counts as comes, or goes."""
        self.unshown += sign * parts[0]
        self.pinning += sign * parts[1]
        self.heads += sign * parts[2]


def counted(client: ScheduledClient) -> Counted:
    """What a client counts as. One function, as it runs at each change of a client."""
    memory, terms, phase, charged = client.memory, client.terms, client.phase, client.charged
    wants = max(0, memory.need - client.ordered)
    takes = client.takes
    holds = client.turn is not None
    waits = phase is Phase.WAITING and not terms.suspended
    queued = waits and client.standing in QUEUING
    stays = phase is Phase.LOADING or phase is Phase.RUNNING
    groups = [phase.value]
    if queued:
        groups.append("queued")
    if holds:
        groups.append("holding")
    if client.moves:
        groups.append("moving")
        if any(move.presaves for move in client.moves):
            groups.append("presaving")
    if client.question is not None:
        groups.append("asking")
    if client.committed > client.need:
        groups.append("lent")
    if client.pins:
        groups.append("pinning")
    if terms.memory_limit:
        groups.append("bounded")
    if memory.stays:
        groups.append("staying")
        if memory.stays is Stays.KEPT:
            groups.append("keeping")
        most = max(client.used, memory.need + client.to_pin)
        if client.granted > memory.need or client.commit > most:
            groups.append("excessive")
        if client.settled and (holds or queued):
            groups.append("settled" if holds else "entering")
    if terms.suspended:
        groups.append("suspended")
    if client.standing:
        groups.append("ganged")
        if waits and client.standing is Standing.GRANTED:
            groups.append("granted")
    if client.rationed:
        groups.append("rationed")
    if stays and (wants or not client.whole):
        groups.append("lacking")
    if charged:
        groups.append("occupying")
    if client.priority is Priority.BACKGROUND:
        if holds:
            groups.append("background")
    elif holds or client.whole:
        groups.append("urgent")
    rests = phase is Phase.IDLE and not terms.suspended
    measured = client.cost is not None and (holds or queued) and not client.settled
    if measured:
        groups.append("measured")
    span = max(0, client.committed - client.fastened)
    return Counted(
        tuple(groups),
        (
            charged, client.host_counted, client.committed, client.used,
            client.pinned, client.fixed, client.beyond, client.unshown if client.account else 0,
            takes if stays else 0, takes if holds else 0, wants if queued else 0,
            client.cost or 0 if measured else 0,
            memory.need, memory.filled - client.doubts.filled, client.out_of_reach,
            min(client.presaved, client.staying) if rests else 0,
        ),
        (client.place, client.id) if queued else None,
        takes,
        (memory.allocated - memory.resident, client.id)
        if rests and memory.allocated > memory.resident else None,
        client.domains, client.stake if client.domains else NO_STAKE,
        client.tenancies, client.promise if client.tenancies else NO_STAKE,
        (span, client.id) if span else None,
        (client.question.since, client.question.number) if client.question else None,
        client.account,
        (client.unshown, client.pinning, 1 if client.committed or not client.account else 0),
        (client.share.line, client.inner.line) if queued else (),
        client.shares if queued or holds else (),
    )


def _margins(account: str, heads: int) -> int:
    return min(heads, HEADS) if account else heads


NOTHING = Counted((), (0,) * len(SUMS), None, 0, None)


class Groups:
    """All clients of a card, grouped and summed up."""

    def __init__(self, clients: Mapping[int, ScheduledClient]) -> None:
        """`clients` by id. Whoever adds or removes one adds the id to `touched`."""
        self.touched: set[int] = set()
        self._clients = clients
        self._counted: dict[int, Counted] = {}
        self._groups: dict[str, dict[int, ScheduledClient]] = {name: {} for name in GROUPS}
        # Members in order, until one comes or goes.
        self._sorted: dict[str, list[ScheduledClient]] = {}
        self._sums = [0] * len(SUMS)
        self.lines = {priority: Lines() for priority in sorted(Priority, reverse=True)}
        self._active: Counter[Share] = Counter()
        self._queue: list[tuple[int, int]] = []     # places and ids of those who wait
        self._takes: list[int] = []                 # what they would take, least first
        self._away: list[tuple[int, int]] = []      # what the idle ones lack, and ids, least first
        self._news: dict[str, set[int]] = {}
        self._accounts: dict[str, Account] = {}
        self._pinning: dict[str, Account] = {}      # of these, those that are about to pin
        self._margins = 0
        self._spans: list[tuple[int, int]] = []     # of those that have any, least first
        self._asking: dict[str, dict[int, int]] = {}    # by account: since when, longest first

    def settle(self) -> None:
        """What has changed is in the sums of all domains."""
        if self.touched:
            self._count()

    def group(self, name: str) -> list[ScheduledClient]:
        """Those in it, in the order of their joining."""
        if self.touched:
            self._count()
        members = self._groups[name]
        if len(members) < 2:
            return list(members.values())
        if name not in self._sorted:
            self._sorted[name] = [members[id] for id in sorted(members)]
        return self._sorted[name].copy()

    def size(self, name: str) -> int:
        """How many are in it."""
        if self.touched:
            self._count()
        return len(self._groups[name])

    def total(self, name: str) -> int:
        """One of the sums."""
        if self.touched:
            self._count()
        return self._sums[POSITIONS[name]]

    def account(self, name: str) -> Account:
        """What the clients of an account have together."""
        if self.touched:
            self._count()
        return self._accounts.get(name) or Account()

    def pinning(self) -> Mapping[str, Account]:
        """Those of the accounts whose clients are about to pin."""
        if self.touched:
            self._count()
        return self._pinning

    def margins(self) -> int:
        """For how many clients a margin of host memory is kept."""
        if self.touched:
            self._count()
        return self._margins

    def spanning(self, size: int) -> list[ScheduledClient]:
        """Those that were promised more than this beside what they have pinned."""
        if self.touched:
            self._count()
        found = self._spans[bisect_right(self._spans, (size, maxsize)):]
        return [self._clients[id] for id in sorted(id for _, id in found)]

    def askers(self) -> list[str]:
        """The accounts whose clients have asked something, who waits longest first."""
        if self.touched:
            self._count()
        first = {account: next(iter(asking.values())) for account, asking in self._asking.items()}
        return sorted(first, key=lambda account: first[account])

    def first_asker(self, account: str) -> ScheduledClient | None:
        """Of this account's clients the one that asked first."""
        if self.touched:
            self._count()
        asking = self._asking.get(account)
        return self._clients[next(iter(asking))] if asking else None

    def queue(self) -> Iterator[ScheduledClient]:
        """Those who wait, by their places, as it is now."""
        if self.touched:
            self._count()
        return (self._clients[id] for _, id in self._queue.copy())

    def heads(self, priority: Priority) -> list[Head]:
        """Of each line in which somebody waits: virtual time and place of the first, in order."""
        if self.touched:
            self._count()
        return self.lines[priority].heads(lambda id: self._clients[id].share)

    def heads_in(self, share: Share) -> list[Head]:
        """The same within a tenant."""
        if self.touched:
            self._count()
        return share.lines.heads(lambda id: self._clients[id].inner)

    def active(self, share: Share) -> int:
        """How many of a tenant's clients hold the card or wait for it."""
        if self.touched:
            self._count()
        return self._active[share]

    def least_take(self) -> int:
        """The least that one of those who wait would take; 0 if nobody waits."""
        if self.touched:
            self._count()
        return self._takes[0] if self._takes else 0

    def most_away(self) -> tuple[int, int]:
        """The most that one of those who are idle has away from the card, and its id; or zeros."""
        if self.touched:
            self._count()
        return self._away[-1] if self._away else (0, 0)

    def news(self, reader: str) -> list[ScheduledClient]:
        """Those that have changed since this reader asked last, in the order of their joining."""
        self._count()
        changed = self._news.get(reader, self._clients.keys())
        self._news[reader] = set()
        return [self._clients[id] for id in sorted(changed) if id in self._clients]

    def _count(self) -> None:
        while self.touched:
            id = self.touched.pop()
            for changed in self._news.values():
                changed.add(id)
            before, now = self._counted.pop(id, NOTHING), NOTHING
            if (client := self._clients.get(id)) is not None:
                now = self._counted[id] = counted(client)
                self._enter(client, now.groups, before.groups)
            self._leave(id, before.groups, now.groups)
            if now.sums != before.sums:
                for position, figure in enumerate(now.sums):
                    self._sums[position] += figure - before.sums[position]
            if (now.account, now.parts) != (before.account, before.parts):
                self._book(before, -1)
                self._book(now, 1)
            if (now.place, now.takes) != (before.place, before.takes):
                self._queue_up(before, now)
            if (now.place, now.lines) != (before.place, before.lines):
                for one in (before, now):
                    if one.place is not None:
                        for line in one.lines:
                            line.stand(one.place, leaves=one is before)
            if now.active != before.active:
                for one, sign in ((before, -1), (now, 1)):
                    for share in one.active:
                        self._active[share] += sign
                        share.count(active=self._active[share] > 0)
                        if not self._active[share]:
                            del self._active[share]
            if now.span != before.span:
                if before.span is not None:
                    del self._spans[bisect_left(self._spans, before.span)]
                if now.span is not None:
                    insort(self._spans, now.span)
            if now.asks != before.asks:
                self._line_up(id, before, now)
            if now.away != before.away:
                if before.away is not None:
                    del self._away[bisect_left(self._away, before.away)]
                if now.away is not None:
                    insort(self._away, now.away)
            for domains, stake, old, held in (
                (now.domains, now.stake, before.domains, before.stake),
                (now.tenancies, now.promise, before.tenancies, before.promise),
            ):
                if (domains, stake) != (old, held):
                    for domain in old:
                        domain.count(id, None)
                    for domain in domains:
                        domain.count(id, stake)

    def _book(self, counted: Counted, sign: int) -> None:
        name = counted.account
        sums = self._accounts.setdefault(name, Account())
        before = sums.heads
        sums.add(counted.parts, sign)
        self._margins += _margins(name, sums.heads) - _margins(name, before)
        if sums.pinning:
            self._pinning[name] = sums
        else:
            self._pinning.pop(name, None)
        if sums == Account():
            del self._accounts[name]

    def _line_up(self, id: int, before: Counted, now: Counted) -> None:
        if before.asks is not None:
            del self._asking[before.account][id]
            if not self._asking[before.account]:
                del self._asking[before.account]
        if now.asks is not None:
            self._asking.setdefault(now.account, {})[id] = now.asks[0]

    def _enter(
        self, client: ScheduledClient, groups: tuple[str, ...], before: tuple[str, ...]
    ) -> None:
        for name in groups:
            if name not in before:
                self._groups[name][client.id] = client
                self._sorted.pop(name, None)

    def _leave(self, id: int, groups: tuple[str, ...], now: tuple[str, ...]) -> None:
        for name in groups:
            if name not in now:
                del self._groups[name][id]
                self._sorted.pop(name, None)

    def _queue_up(self, before: Counted, now: Counted) -> None:
        if before.place is not None:
            del self._queue[bisect_left(self._queue, before.place)]
            del self._takes[bisect_left(self._takes, before.takes)]
        if now.place is not None:
            insort(self._queue, now.place)
            insort(self._takes, now.takes)
