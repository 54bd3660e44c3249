# SPDX-License-Identifier: Apache-2.0
"""Bounds promises to programs in control groups by the memory limits of these groups.

Swapped bytes count against these limits, and the kernel kills a process of a group that exceeds
its limit. Groups are read in threads: the kernel can be slow with nested groups."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Set
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

PATIENCE = 200 * MILLISECOND            # longest wait for a read of one process's groups
EVERYTHING = "all control groups"       # key of the lane in which all groups are read
FRESH = 10 * MILLISECOND                # minimum age before one process's groups are read again
RECENT = 100 * MILLISECOND              # minimum interval between reads of all groups
EVERY = SECOND                          # us between reads while clients' groups have limits
SELDOM = 20                             # a read that took t is repeated after 20 t at the earliest
RESERVE_PART = 16                       # 1/16 of a limit stays free for other use in the group
RESERVE_MOST = GIB                      # most bytes of a limit that stay free for other use

BLIND = (
    "this is a control group namespace of its own: limits of memory of groups outside, and whose "
    "they are, cannot be seen; mount the host's /sys/fs/cgroup in here too, read-only, for "
    "instance at /host/sys/fs/cgroup")
HIDDEN = (
    "/proc is mounted with hidepid: names of other users' programs, and their units, jobs and pods "
    "are not known, and what is set for these does not hold; mount it with gid=GROUP too, and give "
    "nvshared.service that group: SupplementaryGroups=GROUP")

BLIND_BRIEFLY, HIDDEN_BRIEFLY = "control groups outside are hidden", "/proc hides processes"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Process:
    groups: tuple[Group, ...]
    private: int                        # bytes of the process's private memory
    until: int                          # us: the figures need no new read before this time


@dataclass(frozen=True, slots=True)
class _Figures:
    processes: dict[int, _Process]
    groups: Set[Group]                  # all groups of these processes
    limits: dict[Group, Limit]          # limits by group, for groups that have a limit
    took: int                           # duration of the read in microseconds


class ControlGroups:
    def __init__(self, manager: Manager, clock: Clock, timer: Timer, run: Run) -> None:
        """Bounds all clients of the cards that the manager adds. `run`: Lanes.run."""
        self._manager = manager
        self._clock, self._timer, self._run = clock, timer, run
        own = host.kernel_text(host.CGROUP)
        self._own_groups = frozenset(cgroup.chain(own))
        if cgroup.has_hidden_ancestors(own):
            # Warn if a process may become a client with groups that the daemon cannot read.
            outside = "/.." in host.process(1, "cgroup")
            logger.log(logging.WARNING if outside else logging.INFO, BLIND)
            manager.faults.set("tenants-hidden", BLIND_BRIEFLY if outside else "")
        if not host.process(1, "cgroup"):
            logger.warning(HIDDEN)
            manager.faults.set("tenants-hidden", HIDDEN_BRIEFLY)
        self._processes: dict[int, _Process] = {}
        self._joining: Counter[int] = Counter() # by pid: host bytes of clients about to join
        self._limited: frozenset[Group] = frozenset()       # groups with a limit, as last read
        self._reading = False           # a read of all groups is in progress
        self._next = 0                  # us: earliest time of the next read of all groups
        self._due = False               # _read_again() is scheduled
        manager.use_limits(self._read_process)
        manager.gpu_new.connect(self._add)

    def _add(self, gpu: GPU) -> None:
        gpu.client_joins.connect(self._joins)
        gpu.happens.connect(self._happens)

    def _joins(self, client: Client, _memory: Memory) -> None:
        process = self._processes.get(client.peer.pid)
        self._joining.pop(client.peer.pid, None)
        if process is not None:
            client.note_private(process.private)
            self._set_domains([client])

    def _happens(self, now: int, event: Event) -> None:
        if now >= self._next and self._processes and not isinstance(event, Joined):
            self._read_all()

    def _read_process(self, peer: Peer, more: int, then: Callable[[], None]) -> bool:
        """Manager.read_limits: reads a process's groups, calls `then`; False: read recently."""
        process = self._processes.get(peer.pid)
        if process is not None and self._clock() < process.until:
            return False

        def store(found: _Figures | None) -> None:
            if found is None:           # failed or late: the read of all groups adds the process
                self._processes.setdefault(peer.pid, _Process((), 0, self._clock()))
            else:
                self._joining[peer.pid] += more
                self._apply(found)
                self._set_domains(self._manager.clients_by_pid(peer.pid))
            then()

        self._run(peer.account, partial(_read, {peer.pid: ()}, self._clock), store, PATIENCE)
        return True

    def _read_all(self) -> None:
        if self._reading:
            return
        self._reading = True
        pids = {client.peer.pid for client in self._manager.clients}
        lately = self._clock() - SECOND     # processes read after this may yet send HELLO
        self._processes = {
            pid: one for pid, one in self._processes.items() if pid in pids or one.until > lately}
        for pid in self._joining.keys() - self._processes.keys():
            del self._joining[pid]
        groups = {pid: one.groups for pid, one in self._processes.items()}
        self._run(EVERYTHING, partial(_read, groups, self._clock), self._all_read)

    def _all_read(self, found: _Figures | None) -> None:
        self._reading = False
        if found is None:               # the read raised an exception, which has been logged
            return
        changed = self._apply(found)
        # Without groups of ended processes: each container has groups of its own.
        self._limited &= {group for one in self._processes.values() for group in one.groups}
        self._set_domains(self._manager.clients)
        self._manager.domains.forget({_name(group) for group in self._limited})
        self._next = self._clock() + max(RECENT, SELDOM * found.took)
        if changed:
            for gpu in self._manager.gpus:
                gpu.tell(Tick())

    def _apply(self, found: _Figures) -> bool:
        self._processes.update(found.processes)
        self._limited = (self._limited - found.groups) | found.limits.keys()
        claimed = Counter(self._joining)
        for client in self._manager.clients if found.limits else ():
            claimed[client.peer.pid] += client.memory.host + client.memory.beyond
        held: Counter[Group] = Counter()    # host bytes of clients, by group with a limit
        for pid, size in (+claimed).items():
            process = self._processes.get(pid)
            for group in found.limits.keys() & set(process.groups if process else ()):
                assert process is not None
                held[group] += min(size, process.private)
        if held and not self._due:
            self._due = True
            self._timer(max(self._next, self._clock() + EVERY), self._read_again)
        changed = False
        for group, limit in found.limits.items():
            held_here = min(limit.used, held[group])
            reserve = min(limit.size // RESERVE_PART, RESERVE_MOST)
            reason = ("what leaves the card must fit into host memory, and "
                      f"{printable(str(limit.file))} is {sized(limit.size)}")
            changed |= self._manager.domains.set_limit(
                _name(group), max(0, limit.free + held_here - reserve), reason,
                whole=group in self._own_groups)
        return changed

    def _set_domains(self, clients: Iterable[Client]) -> None:
        for client in clients:
            if (process := self._processes.get(client.peer.pid)) is None:
                continue
            names = tuple(_name(group) for group in process.groups if group in self._limited)
            if names != client.domains:
                client.bind(names)
                client.gpu.scheduler.belongs(client.id, names)

    def _read_again(self) -> None:
        self._due = False
        self._read_all()


def _read(known: Mapping[int, tuple[Group, ...]], clock: Clock) -> _Figures:
    """Reads the figures of the processes in `known`: groups by pid, read if empty. May block."""
    began = clock()
    groups_of = {
        pid: groups or cgroup.chain(host.process(pid, "cgroup")) for pid, groups in known.items()}
    groups = frozenset(chain.from_iterable(groups_of.values()))
    limits = {group: limit for group in groups if (limit := group.limit()) is not None}
    privates = {pid: host.private(pid) for pid in known}
    took = clock() - began
    # A slow read delays other readers in the kernel, so slow reads are rarer.
    until = clock() + max(FRESH, SELDOM * took)
    processes = {pid: _Process(groups_of[pid], privates[pid], until) for pid in known}
    return _Figures(processes, groups, limits, took)


def _name(group: Group) -> str:
    return str(group.folder)
