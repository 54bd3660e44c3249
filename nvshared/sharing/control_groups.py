# SPDX-License-Identifier: Apache-2.0
"""Bounds what programs in control groups are promised by what the groups' limits leave.

What a program has swapped out counts against the limits of its own control groups (a container,
a pod, a unit, a user), and the kernel kills it, or others in there, where one is exceeded. So
each group that has a limit is a domain for the schedulers (scheduler/domains.py). Its capacity is
what the limit leaves, with what our programs in it have taken already; they are believed as far
as machine/host.py says. A part stays free for what the programs take themselves meanwhile.

Limits that we are under ourselves, as when all is in one container, are limits of the host's
budget already (machine/host.py). Promises keep to that, which counts what stays on the cards; only
what is taken keeps to the limit as well.

Limits change, and so does what else is used. They are looked up anew before a question for
memory is answered, and before anything else happens on a card, unless that was a moment ago.
While programs hold host memory in a group with a limit, it is done every second besides, so that
it can be given back in time.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Set
from dataclasses import dataclass
from functools import partial
from itertools import chain

from nvshared.clock import Clock, Timer
from nvshared.machine import cgroup, host
from nvshared.machine.cgroup import Group, Limit
from nvshared.machine.peer import printable
from nvshared.quantity import sized
from nvshared.scheduler.events import CommitAsked, Event, Joined, Memory, Tick
from nvshared.sharing.gpu import GPU, Client
from nvshared.sharing.manager import Manager
from nvshared.units import GIB, MILLISECOND, SECOND

FRESH = 10 * MILLISECOND                # for a question,
RECENT = 100 * MILLISECOND              # and for anything else
EVERY = SECOND
SELDOM = 20                             # times as long as a look takes, before the next
RESERVE_PART = 16                       # of a limit, left to what is in there besides,
RESERVE_MOST = GIB                      # at most


BLIND = (
    "this is a control group namespace of its own: limits of memory of groups outside, and whose "
    "they are, cannot be seen; mount the host's /sys/fs/cgroup in here too, read-only, for "
    "instance at /host/sys/fs/cgroup")

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Process:
    """Where a process is, as of when we looked."""

    groups: tuple[Group, ...]
    when: int


class ControlGroups:
    """Which client is in which groups, and what their limits leave."""

    def __init__(self, clock: Clock, timer: Timer) -> None:
        self._clock = clock
        self._timer = timer
        own = host.kernel_text(host.CGROUP)
        self._ours = frozenset(cgroup.chain(own))
        if cgroup.hides(own):
            # Whose processes we see we may get clients of.
            outside = "/.." in host.process(1, "cgroup")
            logger.log(logging.WARNING if outside else logging.INFO, BLIND)
        self._processes: dict[int, _Process] = {}
        self._groups: frozenset[Group] = frozenset()        # of all of them, and
        self._limited: frozenset[Group] = frozenset()       # those with a limit, when last looked
        self._placed: frozenset[Group] = frozenset()        # as it was when clients were placed
        self._rest = 0                  # not to look at all of them before that,
        self._next = 0                  # nor before this, unless it matters
        self._due = False

    def follow(self, manager: Manager) -> None:
        """Bounds all clients of all cards, which are yet to come."""
        manager.gpu_new.connect(partial(self._add, manager))

    def _add(self, manager: Manager, gpu: GPU) -> None:
        gpu.client_joins.connect(partial(self._joins, manager))
        gpu.client_removed.connect(partial(self._left, manager))
        gpu.happens.connect(partial(self._happens, manager, gpu))

    def _joins(self, manager: Manager, client: Client, memory: Memory) -> None:
        self._look_at(manager, client, memory.host + memory.beyond)

    def _left(self, manager: Manager, client: Client) -> None:
        if all(one.peer.pid != client.peer.pid for one in manager.clients):
            self._processes.pop(client.peer.pid, None)
            self._groups = frozenset()

    def _happens(self, manager: Manager, gpu: GPU, now: int, event: Event) -> None:
        if isinstance(event, CommitAsked) and (client := gpu.clients.get(event.client)) is not None:
            self._look_at(manager, client)
            # What cannot leave, of anybody, is no room for this one.
            if now >= self._rest and self._limited:
                self._refresh(manager, gpu)
        elif now >= self._next and self._processes and not isinstance(event, Joined):
            self._refresh(manager, gpu)

    def _look_at(self, manager: Manager, client: Client, more: int = 0) -> None:
        """At what bounds one client, which may have been moved to other groups.

        `more`: bytes of the host's memory that it has, and nobody here knows of yet.
        """
        now, pid = self._clock(), client.peer.pid
        process = self._processes.get(pid)
        if process is None or now >= process.when + FRESH:
            groups = cgroup.chain(host.process(pid, "cgroup"))
            if process is None or process.groups != groups:
                self._groups = frozenset()
            process = self._processes[pid] = _Process(groups, now)
            limited, _ = self._measure(manager, groups, Counter({pid: more}))
            self._limited = self._limited.difference(groups) | limited
        self._place(client, process)

    def _refresh(self, manager: Manager, happening: GPU | None = None) -> None:
        """Looks at everything. Cards decide anew after a change, but for one at an event already.
        """
        if self._look(manager):
            for gpu in manager.gpus:
                if gpu is not happening:
                    gpu.tell(Tick())

    def _look(self, manager: Manager) -> bool:
        """At everything. True: some limit leaves another amount than before."""
        began = self._clock()
        if not self._groups:
            chains = (process.groups for process in self._processes.values())
            self._groups = frozenset(chain.from_iterable(chains))
        self._limited, changed = self._measure(manager, self._groups, Counter())
        if self._limited != self._placed:
            self._placed = self._limited
            for client in manager.clients:
                self._place(client, self._processes[client.peer.pid])
            manager.domains.forget({_name(group) for group in self._limited})
        now = self._clock()
        self._rest = now + max(FRESH, SELDOM * (now - began))
        self._next = max(self._rest, now + RECENT)
        return changed

    def _measure(
        self, manager: Manager, groups: Iterable[Group], said: Counter[int]
    ) -> tuple[frozenset[Group], bool]:
        """Those that have a limit, and whether one leaves another amount than before.

        `said`: host memory of processes, besides what is known of their clients.
        """
        limits = {group: limit for group in groups if (limit := group.limit()) is not None}
        for client in manager.clients if limits else ():
            said[client.peer.pid] += client.memory.host + client.memory.beyond
        held = self._held(+said, limits.keys())
        if held and not self._due:
            self._due = True
            self._timer(max(self._next, self._clock() + EVERY), partial(self._again, manager))
        changed = False
        for group, limit in limits.items():
            ours = min(limit.used, held[group])
            reserve = min(limit.size // RESERVE_PART, RESERVE_MOST)
            capacity = max(0, limit.free + ours - reserve)
            changed |= manager.domains.resize(
                _name(group), capacity, _words(limit), whole=group in self._ours)
        return frozenset(limits), changed

    def _held(self, said: Counter[int], limited: Set[Group]) -> Counter[Group]:
        """What of the host memory that processes say they have is in each of these; bytes."""
        held: Counter[Group] = Counter()
        for pid, size in said.items():
            process = self._processes.get(pid)
            inside = limited & set(process.groups) if process else set()
            believed = min(size, host.private(pid)) if inside else 0
            for group in inside:
                held[group] += believed
        return held

    def _place(self, client: Client, process: _Process) -> None:
        names = tuple(_name(group) for group in process.groups if group in self._limited)
        if names != client.domains:
            client.domains = names
            client.gpu.scheduler.belongs(client.id, names)

    def _again(self, manager: Manager) -> None:
        self._due = False
        self._refresh(manager)


def _name(group: Group) -> str:
    return str(group.folder)


def _words(limit: Limit) -> str:
    return ("what leaves the card must fit into host memory, and "
            f"{printable(str(limit.file))} is {sized(limit.size)}")
