# SPDX-License-Identifier: Apache-2.0
"""The socket that programs connect to.

The kernel's queue of connections is the only one in which users have no turns, so it is short and
is emptied first. A process is identified in a thread (nvshared/lanes.py), once for all its
connections that are not served yet. Then users take turns: at being served, and at being read, a
few packets at a time. A client that does not read what it is sent, or says nothing, is dropped. Too
many clients are refused; places.py decides which. Connections beyond what waits to be served are
refused as well, those of the user and process first that have the most. Without free descriptors,
new connections wait in the kernel's queue.
"""

import asyncio
import errno
import logging
import os
import re
import socket
from collections import Counter, deque
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from nvshared.hook import packets, protocol
from nvshared.hook.connection import HookConnection, Keeper
from nvshared.hook.listening import BACKLOG
from nvshared.hook.places import Places
from nvshared.hook.protocol import OrderRecord, Refusal, Type
from nvshared.hook.rotation import Rotation
from nvshared.lanes import Lanes
from nvshared.machine import peer, subordinate
from nvshared.machine.peer import Credentials, Peer
from nvshared.settings.config import Config
from nvshared.sharing.manager import Manager
from nvshared.units import MILLISECOND

logger = logging.getLogger(__name__)

ACCEPTING_AT_A_TIME = 0.005             # seconds, in one pass of the event loop
PATIENCE = 200 * MILLISECOND            # with a program that keeps us from reading its name
REFUSED_AT_MOST = 64                    # connections over the limit that are still told so
STRANGE_MOST = 64                       # kinds of paths that people are told of
ACCEPT_PAUSE = 1.0                      # seconds, when descriptors have run out
UNSERVED_MOST = 4096                    # connections of all users that are not served yet
DESCRIPTORS_UNSERVED = 2                # a socket, and a pidfd of its process
DESCRIPTORS_EACH = 4                    # a socket, a pidfd, its word's page, its file on the disk
DESCRIPTORS_OWN = 64                    # bus, NVML, files, metrics
TOO_MANY = protocol.encode_order(OrderRecord(Type.REFUSED, flags=Refusal.TOO_MANY_CLIENTS))

OUT_OF_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


def descriptors(clients: int) -> int:
    """How many descriptors it takes to serve so many clients."""
    return (DESCRIPTORS_OWN + DESCRIPTORS_EACH * (clients + REFUSED_AT_MOST)
            + DESCRIPTORS_UNSERVED * UNSERVED_MOST)


def most_clients(open_files: int) -> int:
    """How many clients can be served with so many descriptors."""
    left = open_files - DESCRIPTORS_OWN - DESCRIPTORS_UNSERVED * _most_unserved(open_files)
    return max(1, left // DESCRIPTORS_EACH - REFUSED_AT_MOST)


def _most_unserved(open_files: int) -> int:
    return min(UNSERVED_MOST, open_files // 4 // DESCRIPTORS_UNSERVED)


@dataclass(slots=True, eq=False)
class _Process:
    """A process with connections that are not served yet."""

    key: Hashable
    user: Hashable                      # as far as its credentials tell
    pidfd: int | None
    unserved: deque[tuple[socket.socket, str | None]] = field(default_factory=deque)
    who: Peer | None = None             # None: not identified yet


class Server:
    """Accepts connections on a listening socket until it is closed."""

    def __init__(
        self, manager: Manager, listening: socket.socket, config: Config, open_files: int,
        complain: Callable[[Peer, str, str], None], keeper: Keeper,
        kept: Mapping[str, socket.socket], lanes: Lanes, programs: Lanes,
    ) -> None:
        """`open_files`: how many this process may have; `complain`: tells the journal whose
        fault it is, of what kind, and what it did; `kept`: connections of a daemon before us, by
        the names `keeper` has them under; `lanes`: for what is answered at last; `programs`: for
        what a program can withhold for ever. Must be made in a running event loop."""
        self.manager = manager
        self.keeper = keeper
        self.config = config
        self.complain = complain
        self._listening = listening
        self._places = Places(
            min(config.max_clients, most_clients(open_files)), config.max_clients_per_user)
        self._connections: set[HookConnection] = set()
        self._processes: dict[Hashable, _Process] = {}
        self._unserved: Counter[Hashable] = Counter()   # connections, by user
        self._room = _most_unserved(open_files)         # for more of these
        self._lanes = lanes
        self._programs = programs
        self._strange: set[str] = set() # kinds of paths that people have been told of
        self._refused = 0               # those that were when they came, and are still told so
        self._loop = asyncio.get_running_loop()
        self.rotation = Rotation(self._loop)
        self._pause: asyncio.TimerHandle | None = None
        self._warned = False
        listening.setblocking(False)
        packets.refuse_descriptors(listening)
        self._loop.add_reader(listening, self._acceptable)
        lender = subordinate.lenders()
        for name, connected in kept.items():
            self._take(connected, lender, name)

    @property
    def unserved(self) -> int:
        """The number of connections that are not served yet."""
        return self._unserved.total()

    def close(self) -> None:
        """Accepts no more and lets go of all connections; the clients go on and come back."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listening)
        self.rotation.close()
        for process in tuple(self._processes.values()):
            for connected, _ in self._take_unserved(process, len(process.unserved)):
                packets.leave(connected)
        for connection in tuple(self._connections):
            connection.end("the daemon stops", for_good=False)

    def forget(self, connection: HookConnection) -> None:
        """A connection has ended."""
        self._connections.discard(connection)
        self._release(connection.peer.account, admitted=connection.admitted)

    def _acceptable(self) -> None:
        """Empties the kernel's queue, as far as a moment allows."""
        end = self._loop.time() + ACCEPTING_AT_A_TIME
        lender = subordinate.lenders()
        for _ in range(BACKLOG):
            try:
                connected, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in OUT_OF_RESOURCES:
                    raise
                self._hold_off(error)
                return
            self._take(connected, lender)
            if self._loop.time() >= end:
                return

    def _take(
        self, connected: socket.socket, lender: Callable[[int], Hashable], name: str | None = None,
    ) -> None:
        """Has its process identified, before anything else."""
        credentials = peer.credentials(connected)
        process = self._processes.get(credentials)
        user = lender(credentials.uid) if process is None else process.user
        mine = self._unserved[user] + (0 if process is None else len(process.unserved))
        if name is None and mine >= self._room:
            self.complain(
                Peer.unknown(*credentials), "unserved", "refused: too many are not served yet")
            packets.turn_away(connected, TOO_MANY, self._loop)
            return
        packets.prepare(connected)
        if process is not None and peer.has_ended(process.pidfd):
            self._decline_all(process)  # Its number may be another's by now.
            process = None
        if process is None:
            try:
                process = self._add_process(credentials, user, connected)
            except ProcessLookupError:
                self._decline(connected, name)
                return
        process.unserved.append((connected, name))
        self._unserved[user] += 1
        self._room -= 1
        if process.who is not None:
            self._offer(process, process.who)

    def _add_process(
        self, credentials: Credentials, user: Hashable, connected: socket.socket
    ) -> _Process:
        """Raises ProcessLookupError."""
        pidfd = peer.watch(connected, credentials.pid)
        # Without a pidfd, another process may have the same number. Those in namespaces that are
        # not visible all have 0.
        known = pidfd is not None and credentials.pid
        process = _Process(credentials if known else object(), user, pidfd)
        self._processes[process.key] = process
        self._lanes.run(
            user,
            partial(peer.identify, *credentials, grouped=self.manager.tenancy.has_group_rules),
            partial(self._identified, process))
        return process

    def _take_unserved(
        self, process: _Process, number: int
    ) -> list[tuple[socket.socket, str | None]]:
        """Its next connections. With the last, the process is forgotten."""
        taken = [process.unserved.popleft() for _ in range(number)]
        self._room += number
        self._unserved[process.user] -= number
        if not self._unserved[process.user]:
            del self._unserved[process.user]
        if not process.unserved:
            del self._processes[process.key]
            if process.pidfd is not None:
                os.close(process.pidfd)
        return taken

    def _identified(self, process: _Process, who: Peer | None) -> None:
        if not process.unserved:
            return                      # it has ended, or the daemon stops
        if who is None:                 # a fault of ours, which is in the journal
            self._decline_all(process)
            return
        for path in who.strange:
            self._puzzles(path, who)
        called = partial(self._called, process, who)
        if len(who.name) < peer.COMM_LONGEST:
            called(who.name)
        else:
            self._programs.run(
                who.account, partial(peer.whole_name, who.pid, who.name), called, PATIENCE)

    def _called(self, process: _Process, who: Peer, called: str | None) -> None:
        """`called`: its whole name, if the program lets it be seen."""
        process.who = replace(who, name=called or who.name)
        for _ in range(len(process.unserved)):
            self._offer(process, process.who)

    def _offer(self, process: _Process, who: Peer) -> None:
        self.rotation.offer(who.account, partial(self._serve, process, who))

    def _serve(self, process: _Process, who: Peer) -> None:
        """Serves the next connection of a process, in its user's turn."""
        if not process.unserved:
            return                      # it has ended, or the daemon stops
        (connected, name), = self._take_unserved(process, 1)
        admitted = self._places.take(who.account)
        if not admitted:
            self.complain(who, "too many", "refused: there are too many connections already")
            if self._refused >= REFUSED_AT_MOST:    # too many are still told so
                self._decline(connected, name)
                return
            self._refused += 1
        refusal = None if admitted else Refusal.TOO_MANY_CLIENTS
        try:
            connection = HookConnection(self, connected, who, refusal, name)
        except ProcessLookupError:
            logger.debug("%s: died before it was served", who)
            self._decline(
                connected, name, partial(self._release, who.account, admitted=admitted))
            return
        self._connections.add(connection)

    def _puzzles(self, path: str, who: Peer) -> None:
        """Says once of each kind of path that it is not understood; numbers are no other kind."""
        kind = re.sub(r"[0-9a-f]*[0-9][0-9a-f]*", "0", path)
        if kind in self._strange or len(self._strange) >= STRANGE_MOST:
            return
        self._strange.add(kind)
        logger.warning(
            "%s is in the control group %s, which tells no pod, job, container or unit: it counts "
            "as its user's, %s", who, peer.printable(path), who.user)

    def _release(self, account: str, *, admitted: bool) -> None:
        if admitted:
            self._places.give(account)
        else:
            self._refused -= 1

    def _decline_all(self, process: _Process) -> None:
        for connected, name in self._take_unserved(process, len(process.unserved)):
            self._decline(connected, name)

    def _decline(
        self, connected: socket.socket, name: str | None,
        closed: Callable[[], None] = lambda: None,
    ) -> None:
        def emptied() -> None:
            if name is not None:
                self.keeper.forget(name)
            closed()

        packets.close(connected, self._loop, emptied)

    def _hold_off(self, error: OSError) -> None:
        """New clients wait in the kernel's queue for a moment."""
        if not self._warned:
            logger.warning(
                "no new client can be accepted for now: %s; raise LimitNOFILE= if this lasts",
                error.strerror,
            )
            self._warned = True
        self._loop.remove_reader(self._listening)
        self._pause = self._loop.call_later(ACCEPT_PAUSE, self._resume)

    def _resume(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listening, self._acceptable)
