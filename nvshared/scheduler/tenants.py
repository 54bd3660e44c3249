# SPDX-License-Identifier: Apache-2.0
"""The tenants of a card: a tree, and the ledger of each of its nodes.

Each priority has a root. Its children are the outermost tenants (users, units), their children the
inner tenants (jobs of a user, users of a unit; "": none). Children of these are the clients.
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from nvshared.scheduler.events import Accounting, Memory, Priority, TenantTerms
from nvshared.terms import DEFAULT_WEIGHT, UNLIMITED
from nvshared.tiers import TIERS
from nvshared.units import MIB, SECOND

MIB_SECOND = MIB * SECOND               # one mebibyte times second, in byte-microseconds
LEAST_PART = 10                         # with 1/10 of a window left a turn may begin, for any grain
MOST_REQUESTED = 99.0                   # most percent of the time for all requests together
NO_TERMS = TenantTerms()


@dataclass(frozen=True, slots=True)
class Quota:
    """The account of a compute limit in the current window. Microseconds.

    Overuse is owed: a part of it (Accounting.carryover) is subtracted from each later window.
    Unused time expires, but for a client that was queued, or had too little time left for a turn.
    """

    percent: int                        # 1 to 99
    window: int                         # length of the window
    start: int                          # when the window began
    billed: int                         # total billed time at `start`
    allowance: int                      # time that may be used in the window
    claim: int = 0                      # the part of the allowance from earlier windows
    owed: int = 0                       # to be subtracted from later windows

    def left(self, billed: int) -> int:
        """Microseconds left in the window, given the total billed time; negative: overused."""
        return self.allowance - (billed - self.billed)

    @property
    def share(self) -> int:
        """Microseconds of the window that the limit allows."""
        return self.window * self.percent // 100

    @property
    def ends(self) -> int:
        """When the window ends."""
        return self.start + self.window

    def least(self, accounting: Accounting) -> int:
        """Microseconds that must be left for the gate to open in this window."""
        return min(accounting.grain, self.share, self.window // LEAST_PART)

    def renewed(self, accounting: Accounting, billed: int) -> int:
        """The time at which a turn is possible again, if windows keep their length."""
        if accounting.carryover < 100 or not self.share:
            return self.ends
        missing = self.owed + self.least(accounting) - self.left(billed)
        return self.ends + self.window * max(0, -(-missing // self.share) - 1)

    def roll(
        self, accounting: Accounting, now: int, billed: int, *, waits: bool, holds: bool,
        short: bool, turns: bool,
    ) -> "Quota":
        """The account as of `now`, in the window that it falls into.

        From the last roll of the account on, `waits`: a client was queued; `holds`: a client had a
        turn; `short`: too little time was left for a turn. `billed`: total billed time until now.
        `turns`: whether clients take turns.
        """
        quota, window = self, accounting.length(turns=turns)
        while now >= quota.ends:
            used = min(billed - quota.billed, quota.window)
            following = Quota(quota.percent, window, quota.ends, quota.billed + used, 0)
            if not (waits or holds or short or used or quota.owed):
                start = now - (now - following.start) % window
                return replace(following, start=start, allowance=following.share)
            left = quota.left(following.billed)
            most = left if waits else quota.claim if holds else (
                quota.least(accounting) if short else 0)
            claim = max(0, min(left, most))
            owed = quota.owed + max(0, -left) if accounting.carryover else 0
            paid = min(following.share, -(-owed * accounting.carryover // 100))
            quota = replace(following, allowance=following.share - paid + claim, claim=claim,
                            owed=owed - paid)
        return quota


@dataclass(eq=False, slots=True)
class Node:
    """A node of the tree: a priority, a tenant or a client; microseconds."""

    name: str = ""                      # the tenant's name
    priority: Priority = Priority.NORMAL        # of all clients, if this is a root; else unused
    parent: "Node | None" = None
    children: "dict[Hashable, Node]" = field(default_factory=dict)  # by name or client id
    members: set[int] = field(default_factory=set)  # ids of the clients below the node
    running: int = 0                    # number of its clients that run
    draining: int = 0                   # number of its clients that drain
    turns: int = 0                      # turns begun since all gates of its clients were last shut
    billed_until: int = 0               # time up to which `held` and `virtual` are updated
    held: int = 0                       # total time in which at least one client's gate was open
    drained: int = 0                    # the part of `held` in which all open clients drained
    unused: int = 0                     # the part of `held` without work on the card
    quota: Quota | None = None          # account of its compute limit; None: no limit
    weight: int = DEFAULT_WEIGHT
    request: int = 0                    # compute request, percent
    rate: float = DEFAULT_WEIGHT        # weight in force: raised if the request needs it
    line: Hashable = None               # key of the line in which its clients wait; see queue.py
    virtual: float = 0                  # virtual time: time used, divided by the rate
    ahead: float = 0                    # virtual time that current turns will probably add
    divided: bool = False               # its children are in several lines
    present: float = 0                  # virtual time of a child that wakes while none is active

    @property
    def open(self) -> bool:
        """Whether a client of the node has its gate open."""
        return bool(self.running or self.draining)

    @property
    def after(self) -> float:
        """The virtual time at the expected end of current turns."""
        return self.virtual + self.ahead

    def bill(self, now: int) -> None:
        """Adds the time held since the last call, at the current rate."""
        passed, self.billed_until = now - self.billed_until, now
        if passed and self.open:
            self.held += passed
            self.virtual += passed * DEFAULT_WEIGHT / self.rate
            if self.draining and not self.running:
                self.drained += passed

    def billed(self, now: int, accounting: Accounting) -> int:
        """Total microseconds that count against the compute limit."""
        self.bill(now)
        return self.held - self.unused - self.drained * (100 - accounting.tail) // 100

    def turn(self, now: int, running: int, draining: int) -> None:
        """Changes the numbers of running and draining clients by these differences."""
        self.bill(now)
        if running + draining > 0:
            self.turns = self.turns + 1 if self.open else 1
        self.running += running
        self.draining += draining

    def credit(self, unused: int) -> None:
        """Takes unused time off the bill, unless another client had a turn meanwhile."""
        if not self.open and self.turns == 1:
            self.unused += unused
            self.virtual = max(0, self.virtual - unused * DEFAULT_WEIGHT / self.rate)

    def weigh(self, now: int, weight: int, request: int = 0) -> None:
        """Sets the weight and the compute request. Clients of one weight share a line."""
        self.bill(now)
        self.weight = self.rate = self.line = weight
        self.request = request

    def raise_to(self, virtual: float) -> None:
        self.virtual = max(self.virtual, virtual)

    def raise_present(self, virtual: float) -> None:
        """Raises the virtual time of children that wake while none is active."""
        self.present = max(self.present, virtual)

    def renew(self, quota: Quota | None) -> None:
        self.quota = quota

    def divide(self, now: int) -> None:
        """Updates `divided`. When a second line of children appears, virtual times start at 0."""
        children = self.children.values()
        before, self.divided = self.divided, len({child.line for child in children}) > 1
        for child in children if self.divided and not before else ():
            self.present = 0
            child.bill(now)
            child.virtual = 0


Path = tuple[Node, Node, Node, Node]    # nodes of a client: root, outer, inner, the client's


@dataclass(slots=True)
class Tenants:
    """The tree of one card, and the terms of its tenants."""

    roots: dict[Priority, Node] = field(default_factory=lambda: {
        priority: Node(priority=priority) for priority in sorted(Priority, reverse=True)})
    terms: dict[str, TenantTerms] = field(default_factory=dict)
    accounts: dict[str, Node] = field(default_factory=dict)     # with the Quota, by tenant name
    limited: dict[Node, None] = field(default_factory=dict)     # nodes with a compute limit
    requesting: dict[Node, None] = field(default_factory=dict)  # nodes with a compute request
    expecting: list[Node] = field(default_factory=list) # nodes with Node.ahead above 0

    def expect(self, node: Node, more: float) -> None:
        """Adds virtual time that a current turn will probably add to a node."""
        node.ahead += more
        self.expecting.append(node)

    def expect_none(self) -> None:
        for node in self.expecting:
            node.ahead = 0
        self.expecting.clear()

    def set_terms(self, tenant: str, terms: TenantTerms) -> None:
        self.terms[tenant] = terms
        if terms == NO_TERMS:
            del self.terms[tenant]

    def limit(
        self, node: Node, percent: int, now: int, accounting: Accounting, *, turns: bool
    ) -> bool:
        """Sets a node's compute limit. The time used in the current window still counts. False:
        that is its limit already."""
        old = node.quota
        if percent == (UNLIMITED if old is None else old.percent):
            return False
        if percent == UNLIMITED:
            node.quota = None
            del self.limited[node]
        elif old is not None:
            new = replace(old, percent=percent)
            node.quota = replace(new, allowance=old.allowance + new.share - old.share)
        else:
            window = accounting.length(turns=turns)
            node.quota = Quota(
                percent, window, now, node.billed(now, accounting), window * percent // 100)
            self.limited[node] = None
        return True

    def account(self, tenant: str) -> Node:
        """The node with the compute limit of a tenant."""
        return self.accounts.setdefault(tenant, Node(tenant))

    def enter(self, client: int, *nodes: Node) -> None:
        for node in nodes:
            node.members.add(client)

    def move(self, client: int, old: Path, new: Path, now: int, runs: int, drains: int) -> None:
        """Moves a client to another path. `runs`, `drains`: whether it does."""
        for node in old[:-1]:
            node.turn(now, -runs, -drains)
            node.members.remove(client)
        del old[2].children[client]
        for node in new[:-1]:
            node.turn(now, runs, drains)
        self.enter(client, *new[:-1])
        new[2].children[client] = new[3]

    def leave(self, client: int, path: Path, limits: Iterable[Node]) -> None:
        """Removes a client."""
        *nodes, inner, own = path
        del inner.children[client]
        self.limited.pop(own, None)
        for node in (*nodes, inner, *limits):
            node.members.discard(client)

    def drop(self, node: Node, name: Hashable) -> None:
        """Removes a tenant below a node."""
        child = node.children.pop(name)
        for one in (child, *child.children.values()):
            self.requesting.pop(one, None)

    def drop_accounts(self, names: Iterable[str]) -> None:
        """Removes accounts without clients. Those with a compute limit stay: the window's use still
        counts."""
        for name in names:
            if not self.accounts[name].members and self.accounts[name].quota is None:
                del self.accounts[name]

    def terms_for(self, tenant: str) -> TenantTerms:
        """The terms of a tenant."""
        return self.terms.get(tenant, NO_TERMS)

    def path(self, tenants: tuple[str, ...], own: Node, most: Priority) -> Path:
        """The path of a client of these tenants (outermost first), at its current priority, which
        is `most` at most."""
        outer, inner, *_ = (*tenants, "", "")
        set_for = [self.terms_for(tenant).priority for tenant in tenants] or [Priority.NORMAL]
        background = Priority.BACKGROUND in set_for
        root = self.roots[Priority.BACKGROUND if background else min(max(set_for), most)]
        whole = root.children.setdefault(outer, Node(outer, parent=root))
        return root, whole, whole.children.setdefault(inner, Node(inner, parent=whole)), own

    def join(self, client: int, tenants: tuple[str, ...], most: Priority) -> Path:
        """The path of a new client of these tenants."""
        own = Node()
        path = self.path(tenants, own, most)
        path[2].children[client] = own
        return path

    def weigh(self, now: int, *nodes: Node) -> None:
        """Updates tenants after a client has joined or left, or their terms have changed."""
        for node in nodes:
            terms = self.terms_for(node.name)
            node.weigh(now, terms.weight, terms.compute_request)
            if node.request and node.members:
                self.requesting[node] = None
            else:
                self.requesting.pop(node, None)
        for node in reversed(nodes):
            node.line = node
            if node.parent in self.roots.values():
                alone = len(node.members) < 2 and not node.request
                if alone and not any(one.request for one in node.children.values()):
                    node.line = node.weight
            node.divide(now)
        for root in self.roots.values():
            root.divide(now)

    def meet(self, now: int, active: Iterable[Node]) -> None:
        """Sets the rates of tenants with compute requests. `active`: nodes that want the card."""
        requested: dict[Node, float] = {}
        inside: dict[Node, dict[Node, float]] = {}
        for node in self.requesting:
            assert node.parent is not None
            outer = node if node.parent in self.roots.values() else node.parent
            wanted: float = node.request if node in active else 0
            if node in active and node is not outer:
                inside.setdefault(outer, {})[node] = wanted
                wanted = sum(inside[outer].values())
            requested[outer] = max(requested.get(outer, 0), wanted)
        weights: dict[Node | None, float] = {}
        for node in active:
            weights[node.parent] = weights.get(node.parent, 0) + node.weight
        for root in self.roots.values():
            of_root = {outer: one for outer, one in requested.items() if outer.parent is root}
            whole = _set_rates(now, of_root, weights.get(root, 0))
            for outer in of_root:
                if outer in inside:
                    part = outer.rate / whole       # part of the time that `outer` gets
                    requests = {node: one / part for node, one in inside[outer].items()}
                    _set_rates(now, requests, weights.get(outer, 0))


def _set_rates(now: int, requested: Mapping[Node, float], weight: float) -> float:
    """Sets the rates of siblings with requests (percent by node). Returns the new sum of rates and
    weights. `weight`: sum of the weights of all siblings that want the card."""
    needing = sorted(filter(requested.get, requested), key=lambda n: n.weight / requested[n])
    others = weight - sum(node.weight for node in needing)
    percent: dict[Node, float] = {}
    while needing:
        part = min(1, MOST_REQUESTED / sum(requested[node] for node in needing))
        percent = {node: requested[node] * part for node in needing}
        if needing[-1].weight * (100 - sum(percent.values())) < percent[needing[-1]] * others:
            break
        others += needing.pop().weight  # the weight alone gives the node its request
    left = 100 - sum(percent[node] for node in needing)
    for node in requested:
        node.bill(now)
        node.rate = percent[node] * others / left if node in needing else node.weight
    return others + sum(node.rate for node in needing)


class Usage(NamedTuple):
    """A client's totals since it joined; microseconds, bytes, and mebibytes times seconds."""

    gpu: int = 0                        # part of the card's time, see Division
    held: int = 0                       # time with the gate open
    waited: int = 0                     # time of waiting for the gate to open
    turns: int = 0
    handovers: int = 0                  # hand-overs to the client
    handover: int = 0                   # total time of these hand-overs
    bytes_in: int = 0
    bytes_out: int = 0
    card_memory: int = 0
    host_memory: int = 0                # host memory for swapped blocks
    neighbour_memory: int = 0           # memory borrowed of other cards
    disk_memory: int = 0                # file space on the disk


@dataclass(slots=True)
class Division:
    """Divides the card's time equally among the clients that use it at each time, as the card does
    itself. So the sum over all clients is the time in which any client used the card."""

    holders: int = 0
    since: int = 0
    per_holder: float = 0               # us of card time for a client with an open gate all along

    def at(self, now: int) -> float:
        """The us of the card that a client would have until `now` if its gate was always open."""
        passed = (now - self.since) / self.holders if self.holders else 0
        return self.per_holder + passed

    def turn(self, now: int, more: int) -> float:
        """Changes the number of holders by `more`. Returns `per_holder` at the time `now`."""
        self.per_holder, self.since = self.at(now), now
        self.holders += more
        return self.per_holder


@dataclass(slots=True)
class Counters:
    """Totals of one client since it joined, or of all clients of a card, former ones included."""

    turns: int = 0
    bytes_in: int = 0                   # bytes loaded
    bytes_out: int = 0                  # bytes evicted
    reopened: int = 0                   # drains that did not end, so that the turn continued
    failures: int = 0                   # orders that failed for want of memory or a driver error
    stuck: int = 0                      # orders that were reported as unanswered
    gave_way: int = 0                   # times sent back to the queue, for want of room
    handovers: int = 0
    handover: int = 0                   # us: sum over `handovers` of the time from choice to RUN


@dataclass(slots=True, kw_only=True)
class ClientTotals(Counters):
    """A client's totals since it joined; microseconds and bytes."""

    division: Division
    since: int                          # time of the last call of `fill`
    taken_over: int = 0                 # the part of `turns` that an earlier daemon began
    waited: int = 0                     # time of waiting for turns, before the current phase
    gpu: float = 0                      # us of the card's time that it got before `began`
    began: float | None = None          # Division.per_holder when it began to use the card, or None
    card: int = 0                       # byte-microseconds of memory on the card
    tiers: dict[str, int] = field(default_factory=lambda: {tier.name: 0 for tier in TIERS})

    def hold(self, now: int, *, uses: bool) -> None:
        """Records whether the client uses the card from now on: the gate is open, and the client
        is not known to be idle."""
        if uses is (self.began is not None):
            return
        per_holder = self.division.turn(now, 1 if uses else -1)
        if self.began is not None:
            self.gpu += per_holder - self.began
        self.began = per_holder if uses else None

    def take_over(self) -> None:
        """An earlier daemon began the client's turn."""
        self.taken_over = 1

    def wait(self, waited: int) -> None:
        """Records the us of waiting for turns."""
        self.waited = waited

    def fill(self, memory: Memory, now: int) -> None:
        """Adds the memory held since the last call."""
        passed, self.since = now - self.since, now
        self.card += passed * (memory.resident + memory.pinned)
        for tier in TIERS:
            self.tiers[tier.name] += passed * tier.held(memory)

    def usage(self, memory: Memory, now: int, held: int, waited: int) -> Usage:
        """All totals until now, while the client holds `memory`."""
        self.fill(memory, now)
        running = 0 if self.began is None else self.division.at(now) - self.began
        # Tiers without a field of Usage, which are the columns of the history's file, are left out.
        kept = {f"{name}_memory": held // MIB_SECOND for name, held in self.tiers.items()}
        return Usage(
            int(self.gpu + running), held, waited, self.turns - self.taken_over,
            self.handovers, self.handover, self.bytes_in, self.bytes_out, self.card // MIB_SECOND,
            **{name: kept[name] for name in Usage._fields if name in kept})
