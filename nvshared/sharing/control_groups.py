# SPDX-License-Identifier: Apache-2.0
"""Bounds promises to programs in control groups by the memory that the groups' limits leave.

What a program has swapped out counts against the limits of its own control groups (a container,
a pod, a unit, a user), and the kernel kills it, or others in there, where one is exceeded. So
each group that has a limit is a domain for the schedulers (scheduler/domains.py). Its capacity is
what the limit leaves, with what our programs in it have taken already; they are believed as far
as machine/host.py says. A part stays free for what the programs take themselves meanwhile.

Limits that we are under ourselves, as when all is in one container, are limits of the host's
budget already (machine/host.py). Promises keep to that, which counts what stays on the cards; only
what is taken keeps to the limit as well.

Limits change, and so does what else is used. Those of a process are looked up anew before a
question of it for memory is answered, and all of them soon after anything else has happened on a
card, unless that was a moment ago. While programs hold host memory in a group with a limit, it is
done every second besides, so that it can be given back in time. The kernel is asked in threads: a
user can make its answers slow, by groups of its own and by what they hold.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from functools import partial
from itertools import chain

from nvshared.clock import Clock, Timer
from nvshared.lanes import Run
from nvshared.machine import cgroup, host
from nvshared.machine.cgroup import Group, Limit
from nvshared.machine.peer import Peer, printable
from nvshared.quantity import sized
from nvshared.scheduler.events import Event, Joined, Memory, Tick
from nvshared.sharing.gpu import GPU, Client
from nvshared.sharing.manager import Manager
from nvshared.units import GIB, MILLISECOND, SECOND

PATIENCE = 200 * MILLISECOND            # of a question; then the figures before it count
EVERYTHING = "all control groups"       # key of the lane where these are looked at
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
HIDDEN = (
    "/proc is mounted with hidepid: names of other users' programs, and their units, jobs and pods "
    "are not known, and what is set for these does not hold; mount it with gid=GROUP too, and give "
    "nvshared.service that group: SupplementaryGroups=GROUP")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Process:
    """As of when we looked."""

    groups: tuple[Group, ...]
    private: int                        # bytes of memory of its own
    until: int                          # when that may be another


@dataclass(frozen=True, slots=True)
class _Figures:
    """The kernel's answer."""

    processes: dict[int, _Process]
    groups: Set[Group]                  # that they are in, and of these
    limits: dict[Group, Limit]          # those that have a limit
    took: int                           # microseconds


class ControlGroups:
    """The control groups of clients, and the memory that their limits leave."""

    def __init__(self, clock: Clock, timer: Timer, run: Run) -> None:
        """`run`: Lanes.run, where the kernel is asked."""
        self._clock = clock
        self._timer = timer
        self._run = run
        own = host.kernel_text(host.CGROUP)
        self._ours = frozenset(cgroup.chain(own))
        if cgroup.hides(own):
            # Whose processes we see we may get clients of.
            outside = "/.." in host.process(1, "cgroup")
            logger.log(logging.WARNING if outside else logging.INFO, BLIND)
        if not host.process(1, "cgroup"):
            logger.warning(HIDDEN)
        self._processes: dict[int, _Process] = {}
        self._coming: Counter[int] = Counter()  # host memory of clients that are yet to join
        self._limited: frozenset[Group] = frozenset()       # with a limit, when last looked
        self._placed: frozenset[Group] = frozenset()        # as it was when clients were placed
        self._looks = False             # at all of them, at present
        self._next = 0                  # not before that, again
        self._due = False

    def follow(self, manager: Manager) -> None:
        """Bounds all clients of all cards, which are yet to come."""
        manager.look = partial(self._look_at, manager)
        manager.gpu_new.connect(partial(self._add, manager))

    def _add(self, manager: Manager, gpu: GPU) -> None:
        gpu.client_joins.connect(self._joins)
        gpu.happens.connect(partial(self._happens, manager))

    def _joins(self, client: Client, _memory: Memory) -> None:
        process = self._processes.get(client.peer.pid)
        self._coming.pop(client.peer.pid, None)
        if process is not None:
            client.private = process.private
            self._place(client, process)

    def _happens(self, manager: Manager, now: int, event: Event) -> None:
        if now >= self._next and self._processes and not isinstance(event, Joined):
            self._look(manager)

    def _look_at(self, manager: Manager, who: Peer, more: int, then: Callable[[], None]) -> bool:
        """Manager.look: at what bounds one process, which may have been moved to other groups."""
        process = self._processes.get(who.pid)
        if process is not None and self._clock() < process.until:
            return False
        self._run(
            who.account, partial(_read, {who.pid: ()}, self._clock),
            partial(self._looked_at, manager, who.pid, more, then), PATIENCE)
        return True

    def _looked_at(
        self, manager: Manager, pid: int, more: int, then: Callable[[], None],
        found: _Figures | None,
    ) -> None:
        if found is None:               # the next look at all groups finds it
            self._processes.setdefault(pid, _Process((), 0, self._clock()))
        else:
            self._coming[pid] += more
            self._take(manager, found)
            for client in manager.clients_by_pid(pid):
                self._place(client, self._processes[pid])
        then()

    def _look(self, manager: Manager) -> None:
        """At everything."""
        if self._looks:
            return
        self._looks = True
        pids = {client.peer.pid for client in manager.clients}
        lately = self._clock() - SECOND     # later processes may be yet to say HELLO
        self._processes = {
            pid: one for pid, one in self._processes.items() if pid in pids or one.until > lately}
        for pid in self._coming.keys() - self._processes.keys():
            del self._coming[pid]
        groups = {pid: one.groups for pid, one in self._processes.items()}
        self._run(EVERYTHING, partial(_read, groups, self._clock), partial(self._looked, manager))

    def _looked(self, manager: Manager, found: _Figures | None) -> None:
        self._looks = False
        if found is None:               # a fault of ours, which is in the journal
            return
        changed = self._take(manager, found)
        if self._limited != self._placed:
            self._placed = self._limited
            for client in manager.clients:
                if (process := self._processes.get(client.peer.pid)) is not None:
                    self._place(client, process)
            manager.domains.forget({_name(group) for group in self._limited})
        self._next = self._clock() + max(RECENT, SELDOM * found.took)
        if changed:
            for gpu in manager.gpus:
                gpu.tell(Tick())

    def _take(self, manager: Manager, found: _Figures) -> bool:
        """Resizes the domains of these groups. True: a limit leaves another amount than before."""
        self._processes.update(found.processes)
        self._limited = (self._limited - found.groups) | found.limits.keys()
        said = Counter(self._coming)
        for client in manager.clients if found.limits else ():
            said[client.peer.pid] += client.memory.host + client.memory.beyond
        held: Counter[Group] = Counter()    # what of that is in each of these groups
        for pid, size in (+said).items():
            process = self._processes.get(pid)
            for group in found.limits.keys() & set(process.groups if process else ()):
                assert process is not None
                held[group] += min(size, process.private)
        if held and not self._due:
            self._due = True
            self._timer(max(self._next, self._clock() + EVERY), partial(self._again, manager))
        changed = False
        for group, limit in found.limits.items():
            ours = min(limit.used, held[group])
            reserve = min(limit.size // RESERVE_PART, RESERVE_MOST)
            capacity = max(0, limit.free + ours - reserve)
            changed |= manager.domains.resize(
                _name(group), capacity, _words(limit), whole=group in self._ours)
        return changed

    def _place(self, client: Client, process: _Process) -> None:
        names = tuple(_name(group) for group in process.groups if group in self._limited)
        if names != client.domains:
            client.domains = names
            client.gpu.scheduler.belongs(client.id, names)

    def _again(self, manager: Manager) -> None:
        self._due = False
        self._look(manager)


def _read(known: Mapping[int, tuple[Group, ...]], clock: Clock) -> _Figures:
    """Asks the kernel about processes, and about their groups if these are known. May block."""
    began = clock()
    places = {
        pid: groups or cgroup.chain(host.process(pid, "cgroup")) for pid, groups in known.items()}
    groups = frozenset(chain.from_iterable(places.values()))
    limits = {group: limit for group in groups if (limit := group.limit()) is not None}
    privates = {pid: host.private(pid) for pid in known}
    took = clock() - began
    # The path of a group deep within others keeps the kernel busy, and others from asking.
    until = clock() + max(FRESH, SELDOM * took)
    processes = {pid: _Process(places[pid], privates[pid], until) for pid in known}
    return _Figures(processes, groups, limits, took)


def _name(group: Group) -> str:
    return str(group.folder)


def _words(limit: Limit) -> str:
    return ("what leaves the card must fit into host memory, and "
            f"{printable(str(limit.file))} is {sized(limit.size)}")
