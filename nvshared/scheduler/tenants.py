# SPDX-License-Identifier: Apache-2.0
"""The tenants of a card: one tree, and the ledger of each of its nodes.

Below a root for each priority are the outermost tenants (users, units), in each the tenants within
it (the jobs of a user, the users of a unit), in those the clients. A client is the innermost
tenant. Clients that are in no inner tenant are in one of no name.

**Ledger.** A node holds the card while at least one of its clients has its gate open, however many
have. When a turn is over, its hook says how long the card had work in it; the rest was a message's
way, or idling, and is not billed, if no other client of the node had a turn meanwhile.

**Virtual time** is what a node has used, divided by its weight. queue.py goes by it.

**Requests.** A tenant with a compute request of P percent gets at least so much of the card's time
whenever it wants it, if its weight does not give it more. So among those that want the card now,
its rate is the weight that makes P percent of all their weights. It changes as others come and
idle, and virtual times go on at the new rate from then on. In the background it is a request of
the time that others leave. A request of an inner tenant is of the card, too: the outer one gets
what all in it ask for. The daemon refuses requests of more than all of the time. Where they come
to that nevertheless, they are met in part, in proportion.

**Limits.** A compute limit of P percent gives P percent of each window, to be used at any moment of
it. It holds for all clients of a tenant together, wherever they are in the tree: a tenant has an
account besides its nodes, to which their time is billed, once where they run together. `Quota` has
the rules of windows; terms.py enforces them.
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from nvshared.scheduler.events import Memory
from nvshared.scheduler.settings import (
    DEFAULT_WEIGHT,
    UNLIMITED,
    Accounting,
    Priority,
    TenantTerms,
)
from nvshared.units import MIB, SECOND

MIB_SECOND = MIB * SECOND               # as byte-microseconds
LEAST_PART = 10                         # of a window, and no turn is shorter for its grain
MOST_REQUESTED = 99.0                   # percent of the time that all requests together get
NO_TERMS = TenantTerms()


@dataclass(frozen=True, slots=True)
class Quota:
    """The account of a compute limit in the present window. Microseconds.

    **Overuse.** Work in flight cannot be interrupted, so more may be used than was left. That is
    owed, and a part of it (Accounting.carryover) is taken off each later window.

    **Claims.** What is not used of a window is gone at its end, as the limit holds for every
    window. But a client that stood in the queue keeps it, or one that waits thirty seconds would
    have a turn of one window's time. So does a client for which too little was left to open its
    gate. A client that may run earns no claims, and an idle one loses those it has.
    """

    percent: int                        # 1 to 99
    window: int                         # its length
    start: int                          # when it began
    billed: int                         # in all, until then
    allowance: int                      # to be used in it
    claim: int = 0                      # the part of it that is from earlier windows
    owed: int = 0                       # to be taken off later windows

    def left(self, billed: int) -> int:
        """Microseconds left, if `billed` was billed in all; negative: overused."""
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
        """With less than this left, the gate stays shut until the next window."""
        return min(accounting.grain, self.share, self.window // LEAST_PART)

    def renewed(self, accounting: Accounting, billed: int) -> int:
        """When the least is left again, if windows stay as long as this one."""
        if accounting.carryover < 100 or not self.share:
            return self.ends
        missing = self.owed + self.least(accounting) - self.left(billed)
        return self.ends + self.window * max(0, -(-missing // self.share) - 1)

    def changed(self, percent: int) -> "Quota":
        """The same window under another limit."""
        changed = replace(self, percent=percent)
        return replace(changed, allowance=self.allowance + changed.share - self.share)

    def roll(
        self, accounting: Accounting, now: int, billed: int, *, waits: bool, holds: bool,
        short: bool, turns: bool,
    ) -> "Quota":
        """The account as of `now`, in the window that it falls into.

        Since it was rolled last, `waits`: a client stood in the queue; `holds`: one had a turn;
        `short`: too little was left for one. `billed`: in all until now. `turns`: clients take
        turns.
        """
        quota = self
        while now >= quota.ends:
            used = min(billed - quota.billed, quota.window)
            window = accounting.length(turns=turns)
            following = Quota(quota.percent, window, quota.ends, quota.billed + used, 0)
            if not (waits or holds or short or used or quota.owed):
                behind = (now - following.start) // window
                return replace(following, start=following.start + behind * window,
                               allowance=following.share)
            left = quota.left(following.billed)
            claim = 0
            if waits:
                claim = max(0, left)
            elif holds:
                claim = min(max(0, left), quota.claim)
            elif short:
                claim = min(max(0, left), quota.least(accounting))
            owed = quota.owed + max(0, -left) if accounting.carryover else 0
            paid = min(following.share, -(-owed * accounting.carryover // 100))
            quota = replace(following, allowance=following.share - paid + claim, claim=claim,
                            owed=owed - paid)
        return quota


@dataclass(eq=False, slots=True)
class Node:
    """A tenant, or a client, at one place of the tree; microseconds."""

    name: str = ""                      # of the tenant
    priority: Priority = Priority.NORMAL        # of a root
    parent: "Node | None" = None
    children: "dict[Hashable, Node]" = field(default_factory=dict)  # by name, or client
    members: dict[int, int] = field(default_factory=dict)   # weights of the clients in it, by id

    running: int = 0                    # how many of its clients run
    draining: int = 0
    turns: int = 0                      # of its clients, since all gates were shut
    billed_until: int = 0
    held: int = 0                       # time with a gate open,
    drained: int = 0                    # the part of it in which all clients drained,
    unused: int = 0                     # and the part without work on the card
    quota: Quota | None = None          # where terms limit its time

    weight: int = DEFAULT_WEIGHT
    request: int = 0                    # compute request, percent,
    rate: float = DEFAULT_WEIGHT        # and the weight that meets it now
    line: Hashable = None               # of the queue, in which its clients wait; see queue.py
    virtual: float = 0                  # time used, divided by its weight,
    ahead: float = 0                    # and the rest of its present turns, as foreseen
    divided: bool = False               # its children stand in several lines
    present: float = 0                  # virtual time of its children while none wants the card

    @property
    def open(self) -> bool:
        """A client of the node has its gate open."""
        return bool(self.running or self.draining)

    @property
    def after(self) -> float:
        """The virtual time at the foreseen end of present turns."""
        return self.virtual + self.ahead

    def bill(self, now: int) -> None:
        """Adds the time held until now, at the present rate."""
        passed, self.billed_until = now - self.billed_until, now
        if passed and self.open:
            self.held += passed
            self.virtual += passed * DEFAULT_WEIGHT / self.rate
            if self.draining and not self.running:
                self.drained += passed

    def held_at(self, now: int) -> int:
        """Microseconds with a gate open, in all."""
        return self.held + (now - self.billed_until if self.open else 0)

    def billed(self, now: int, accounting: Accounting) -> int:
        """Microseconds that count against the compute limit, in all."""
        self.bill(now)
        return self.held - self.unused - self.drained * (100 - accounting.tail) // 100

    def turn(self, now: int, running: int, draining: int) -> None:
        """Counts clients that begin or end to run and drain."""
        self.bill(now)
        if running + draining > 0:
            self.turns = self.turns + 1 if self.open else 1
        self.running += running
        self.draining += draining

    def credit(self, unused: int) -> None:
        """Takes unused time of a turn that is over off the bill, unless another client of the node
        had a turn meanwhile."""
        if not self.open and self.turns == 1:
            self.unused += unused
            self.virtual = max(0, self.virtual - unused * DEFAULT_WEIGHT / self.rate)

    def weigh(self, now: int, weight: int, request: int = 0) -> None:
        """Changes weight and request."""
        self.bill(now)
        self.weight = self.rate = weight
        self.request = request

    def divide(self, now: int) -> None:
        """Updates `divided` after a change of children. Their virtual times count from the moment
        at which there is more than one line."""
        before, self.divided = self.divided, len({one.line for one in self.children.values()}) > 1
        if self.divided and not before:
            self.present = 0
            for child in self.children.values():
                child.bill(now)
                child.virtual = 0


Path = tuple[Node, Node, Node, Node]    # of a client: root, outer, inner, and its own


@dataclass(slots=True)
class Tenants:
    """The tree of one card, and the terms of its tenants."""

    roots: dict[Priority, Node] = field(default_factory=lambda: {
        priority: Node(priority=priority) for priority in sorted(Priority, reverse=True)})
    terms: dict[str, TenantTerms] = field(default_factory=dict)
    accounts: dict[str, Node] = field(default_factory=dict)     # by tenant
    limited: dict[Node, None] = field(default_factory=dict)     # nodes with a compute limit,
    requesting: dict[Node, None] = field(default_factory=dict)  # and with a compute request

    def terms_for(self, tenant: str) -> TenantTerms:
        """The terms of a tenant."""
        return self.terms.get(tenant, NO_TERMS)

    def path(self, tenants: tuple[str, ...], own: Node) -> Path:
        """The path of a client of these tenants (the outermost first), at its present priority."""
        outer, inner, *_ = (*tenants, "", "")
        set_for = [self.terms_for(tenant).priority for tenant in tenants] or [Priority.NORMAL]
        lowest = min(set_for)
        root = self.roots[lowest if lowest is Priority.BACKGROUND else max(set_for)]
        whole = root.children.setdefault(outer, Node(outer, parent=root))
        return root, whole, whole.children.setdefault(inner, Node(inner, parent=whole)), own

    def weigh(self, now: int, *nodes: Node) -> None:
        """Updates tenants that have a client more or less, or other terms."""
        for node in nodes:
            terms = self.terms_for(node.name)
            node.weigh(now, terms.weight, terms.compute_request)
            _note(self.requesting, node, node.request and node.members)
        for node in reversed(nodes):
            node.line = node
            if node.parent in self.roots.values():
                alone = len(node.members) < 2 and not node.request
                if alone and not any(one.request for one in node.children.values()):
                    node.line = node.weight
            node.divide(now)
        for root in self.roots.values():
            root.divide(now)

    def limit(self, node: Node, percent: int, now: int, accounting: Accounting, *, turns: bool
              ) -> bool:
        """Sets a compute limit. A first limit counts from now on. At another limit the account
        goes on, or lowering and raising it would give new time. False: no change."""
        old = node.quota
        if percent == (UNLIMITED if old is None else old.percent):
            return False
        if percent == UNLIMITED:
            node.quota = None
        elif old is not None:
            node.quota = old.changed(percent)
        else:
            window = accounting.length(turns=turns)
            node.quota = Quota(
                percent, window, now, node.billed(now, accounting), window * percent // 100)
        _note(self.limited, node, node.quota)
        return True

    def meet(self, now: int, active: Iterable[Node]) -> None:
        """Sets the rates of tenants with requests, given the nodes that want the card now."""
        asked: dict[Node, float] = {}
        inside: dict[Node, dict[Node, float]] = {}
        for node in self.requesting:
            assert node.parent is not None
            outer = node if node.parent in self.roots.values() else node.parent
            asked.setdefault(outer, 0)
            if node not in active:
                continue
            if node is outer:
                asked[outer] = max(asked[outer], node.request)
            else:
                inside.setdefault(outer, {})[node] = node.request
                asked[outer] = max(asked[outer], sum(inside[outer].values()))
        weights: dict[Node | None, float] = {}
        for node in active:
            weights[node.parent] = weights.get(node.parent, 0) + node.weight
        for root in self.roots.values():
            mine = {outer: one for outer, one in asked.items() if outer.parent is root}
            whole = _set_rates(now, mine, weights.get(root, 0))
            for outer in mine:
                if outer in inside:
                    part = outer.rate / whole       # of the time, that it gets
                    requests = {node: one / part for node, one in inside[outer].items()}
                    _set_rates(now, requests, weights.get(outer, 0))


def _note(nodes: dict[Node, None], node: Node, belongs: object) -> None:
    if belongs:
        nodes[node] = None
    else:
        nodes.pop(node, None)


def _set_rates(now: int, asked: Mapping[Node, float], weight: float) -> float:
    """Sets rates, given how many percent each asks for, and the sum of the weights of all that want
    the card among them; returns that sum as it is then."""
    needing = [node for node in asked if asked[node]]
    needing.sort(key=lambda node: node.weight / asked[node])
    others = weight - sum(node.weight for node in needing)
    percent: dict[Node, float] = {}
    while needing:
        part = min(1, MOST_REQUESTED / sum(asked[node] for node in needing))
        percent = {node: asked[node] * part for node in needing}
        if needing[-1].weight * (100 - sum(percent.values())) < percent[needing[-1]] * others:
            break
        others += needing.pop().weight  # its weight gives it enough
    left = 100 - sum(percent[node] for node in needing)
    for node in asked:
        node.bill(now)
        node.rate = percent[node] * others / left if node in needing else node.weight
    return others + sum(node.rate for node in needing)


class Usage(NamedTuple):
    """A client's totals since it joined; microseconds, bytes, and mebibytes times seconds."""

    gpu: int = 0                        # part of the card's time, see Division
    held: int = 0                       # time with the gate open,
    waited: int = 0                     # and time of waiting
    turns: int = 0
    handovers: int = 0                  # turns for which memory had to move,
    handover: int = 0                   # and how long those took
    bytes_in: int = 0
    bytes_out: int = 0
    card_memory: int = 0
    host_memory: int = 0                # for swapped blocks


@dataclass(slots=True)
class Division:
    """The card's time, divided among the clients whose gates are open, equally at each moment, as
    the card itself divides it. So the sum over all clients is the time in which any held it."""

    holders: int = 0
    since: int = 0
    each: float = 0                     # the part of a client that held the card all the time

    def at(self, now: int) -> float:
        """`each` at this moment."""
        return self.each + (now - self.since) / self.holders if self.holders else self.each

    def turn(self, now: int, more: int) -> float:
        """Counts holders that come or go. Returns `each` at this moment."""
        self.each, self.since = self.at(now), now
        self.holders += more
        return self.each


@dataclass(slots=True)
class History:
    """A client's totals since it joined; microseconds and bytes."""

    division: Division
    since: int                          # of its present figures of memory
    turns: int = 0
    taken_over: int = 0                 # the part of them that an earlier daemon began
    waited: int = 0                     # for turns, until its present phase
    handovers: int = 0
    handover: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    reopened: int = 0
    failures: int = 0
    gpu: float = 0                      # until its gate opened,
    began: float | None = None          # and `each` then; None: it is shut
    card: int = 0                       # byte-microseconds
    host: int = 0

    def hold(self, now: int, more: int) -> None:
        """Notes that the gate opens (1) or shuts (-1)."""
        each = self.division.turn(now, more)
        if self.began is not None:
            self.gpu += each - self.began
        self.began = each if more > 0 else None

    def fill(self, memory: Memory, now: int) -> None:
        """Adds the memory held until now."""
        passed, self.since = now - self.since, now
        self.card += passed * (memory.resident + memory.pinned)
        self.host += passed * memory.host

    def usage(self, memory: Memory, now: int, held: int, waited: int) -> Usage:
        """All totals until now, while the client holds `memory`."""
        self.fill(memory, now)
        running = 0 if self.began is None else self.division.at(now) - self.began
        return Usage(
            int(self.gpu + running), held, waited, self.turns - self.taken_over,
            self.handovers, self.handover, self.bytes_in, self.bytes_out,
            self.card // MIB_SECOND, self.host // MIB_SECOND)
