# SPDX-License-Identifier: Apache-2.0
"""The server of the socket that clients connect to.

The kernel's queue of connections is not fair among users, so it is short and is emptied first. A
process is identified in a thread (nvshared/lanes.py), once for all its unserved connections. From
then on users take turns: connections are served, and packets read, a few at a time per user. A
client that does not read its packets or does not send HELLO is dropped. If there are too many
clients, further ones are refused; quota.py decides which. The number of unserved connections is
bounded, too: beyond it, the users and processes with the most are refused first. Without free
descriptors, new connections wait in the kernel's queue.
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

from nvshared.hook import protocol
from nvshared.hook.connection import (
    HookConnection,
    Rotation,
    close_copy,
    prepare,
    refuse_descriptors,
    shut_down,
    turn_away,
)
from nvshared.hook.listening import BACKLOG
from nvshared.hook.protocol import OrderRecord, Refusal, Type
from nvshared.hook.quota import ConnectionQuota
from nvshared.lanes import Lanes
from nvshared.machine import peer, subordinate
from nvshared.machine.peer import Credentials, Peer
from nvshared.report.systemd import Notifier
from nvshared.settings.config import Config
from nvshared.sharing.manager import Manager
from nvshared.units import MILLISECOND

logger = logging.getLogger(__name__)

ACCEPTING_AT_A_TIME = 0.005             # seconds, in one pass of the event loop
PATIENCE = 200 * MILLISECOND            # to read a program's name, which the program can block
REFUSED_AT_MOST = 64                    # refused connections that stay open to send the refusal
STRANGE_MOST = 64                       # kinds of unknown cgroup paths that are logged
ACCEPT_PAUSE = 1.0                      # seconds, when descriptors have run out
UNSERVED_MOST = 4096                    # connections of all users that are not served yet
DESCRIPTORS_UNSERVED = 2                # a socket, and a pidfd of its process
DESCRIPTORS_EACH = 4                    # a socket, a pidfd, an inflight page, a file of the disk
DESCRIPTORS_OWN = 64                    # bus, NVML, files, metrics
TOO_MANY = protocol.encode_order(OrderRecord(Type.REFUSED, flags=Refusal.TOO_MANY_CLIENTS))

OUT_OF_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


def descriptors(clients: int) -> int:
    """Returns the number of descriptors that are needed to serve this number of clients."""
    return (DESCRIPTORS_OWN + DESCRIPTORS_EACH * (clients + REFUSED_AT_MOST)
            + DESCRIPTORS_UNSERVED * UNSERVED_MOST)


def most_clients(open_files: int) -> int:
    """Returns the number of clients that can be served with this number of descriptors."""
    left = open_files - DESCRIPTORS_OWN - DESCRIPTORS_UNSERVED * _most_unserved(open_files)
    return max(1, left // DESCRIPTORS_EACH - REFUSED_AT_MOST)


def _most_unserved(open_files: int) -> int:
    return min(UNSERVED_MOST, open_files // 4 // DESCRIPTORS_UNSERVED)


@dataclass(slots=True, eq=False)
class _Process:
    """A process with connections that are not served yet."""

    key: Hashable
    user: Hashable                      # by its credentials alone; see subordinate.lenders()
    pidfd: int | None
    unserved: deque[tuple[socket.socket, str | None]] = field(default_factory=deque)
    identity: Peer | None = None        # None: not identified yet


class Server:
    """Accepts connections on a listening socket until it is closed."""

    def __init__(
        self, manager: Manager, listening: socket.socket, config: Config, open_files: int,
        complain: Callable[[Peer, str, str], None], keeper: Notifier,
        kept: Mapping[str, socket.socket], lanes: Lanes, programs: Lanes,
    ) -> None:
        """Must be called in a running event loop.

        `open_files`: the daemon's limit of descriptors; `complain`: logs a client's fault, its kind
        and a description; `kept`: connections of an earlier daemon, by their names in `keeper`;
        `lanes`: for reads that always end; `programs`: for reads that a program can block for ever.
        """
        self.manager = manager
        self.keeper = keeper
        self.config = config
        self.complain = complain
        self._listening = listening
        self._quota = ConnectionQuota(
            min(config.max_clients, most_clients(open_files)), config.max_clients_per_user)
        self._connections: set[HookConnection] = set()
        self._processes: dict[Hashable, _Process] = {}
        self._unserved: Counter[Hashable] = Counter()   # connections, by user
        self._room = _most_unserved(open_files)         # further unserved connections allowed
        self._lanes = lanes
        self._programs = programs
        self._strange: set[str] = set() # kinds of unknown cgroup paths that have been logged
        self._refused = 0               # refused connections that are still open
        self._loop = asyncio.get_running_loop()
        self.rotation = Rotation(self._loop)
        self._pause: asyncio.TimerHandle | None = None
        self._warned = False
        listening.setblocking(False)
        refuse_descriptors(listening)
        self._loop.add_reader(listening, self._acceptable)
        lender = subordinate.lenders()
        for name, connected in kept.items():
            self._take(connected, lender, name)

    @property
    def unserved(self) -> int:
        """The number of connections that are not served yet."""
        return self._unserved.total()

    def close(self) -> None:
        """Stops accepting and drops all connections; clients run on, the keeper's copies stay."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listening)
        self.rotation.close()
        for process in tuple(self._processes.values()):
            for connected, _ in self._take_unserved(process, len(process.unserved)):
                close_copy(connected)
        for connection in tuple(self._connections):
            connection.end("the daemon stops", for_good=False)

    def forget(self, connection: HookConnection) -> None:
        """Removes a connection that has ended."""
        self._connections.discard(connection)
        self._release(connection.peer.account, connection.admitted)

    def _release(self, account: str, admitted: bool) -> None:
        if admitted:
            self._quota.give(account)
        else:
            self._refused -= 1

    def _acceptable(self) -> None:
        """Empties the kernel's queue, for at most ACCEPTING_AT_A_TIME."""
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
        """Queues a connection until its process is identified, or declines it."""
        credentials = peer.credentials(connected)
        process = self._processes.get(credentials)
        user = lender(credentials.uid) if process is None else process.user
        mine = self._unserved[user] + (0 if process is None else len(process.unserved))
        if name is None and mine >= self._room:
            self.complain(
                Peer.unknown(*credentials), "unserved", "refused: too many are not served yet")
            turn_away(connected, TOO_MANY, self._loop)
            return
        prepare(connected)
        if process is not None and peer.has_ended(process.pidfd):
            self._decline_all(process)  # its pid may belong to a new process by now
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
        if process.identity is not None:
            self._offer(process)

    def _add_process(
        self, credentials: Credentials, user: Hashable, connected: socket.socket
    ) -> _Process:
        """Raises ProcessLookupError."""
        pidfd = peer.watch(connected, credentials.pid)
        # Without a pidfd, a new process may get the same pid. Processes in pid namespaces that are
        # not visible from here all have pid 0. Both are identified once per connection.
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
        """Removes and returns the next unserved connections; with the last one, the process."""
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

    def _identified(self, process: _Process, identity: Peer | None) -> None:
        if not process.unserved:
            return                      # the process has ended, or the daemon stops
        if identity is None:            # identify() raised an exception, which has been logged
            self._decline_all(process)
            return
        for path in identity.strange:
            self._log_strange(path, identity)
        called = partial(self._name_read, process, identity)
        if len(identity.name) < peer.COMM_LONGEST:
            called(identity.name)
        else:
            self._programs.run(
                identity.account, partial(peer.whole_name, identity.pid, identity.name), called,
                PATIENCE)

    def _name_read(self, process: _Process, identity: Peer, called: str | None) -> None:
        """Serves the process's connections. `called`: its full name; None: it could not be read."""
        process.identity = replace(identity, name=called or identity.name)
        for _ in range(len(process.unserved)):
            self._offer(process)

    def _offer(self, process: _Process) -> None:
        identity = process.identity
        assert identity is not None
        self.rotation.offer(identity.account, partial(self._serve, process, identity))

    def _serve(self, process: _Process, identity: Peer) -> None:
        """Serves the next connection of a process, in its user's turn."""
        if not process.unserved:
            return                      # the process has ended, or the daemon stops
        (connected, name), = self._take_unserved(process, 1)
        admitted = self._quota.take(identity.account)
        if not admitted:
            self.complain(identity, "too many", "refused: there are too many connections already")
            if self._refused >= REFUSED_AT_MOST:    # close without sending the refusal
                self._decline(connected, name)
                return
            self._refused += 1
        refusal = None if admitted else Refusal.TOO_MANY_CLIENTS
        try:
            connection = HookConnection(self, connected, identity, refusal, name)
        except ProcessLookupError:
            logger.debug("%s: died before it was served", identity)
            self._decline(connected, name, partial(self._release, identity.account, admitted))
            return
        self._connections.add(connection)

    def _log_strange(self, path: str, identity: Peer) -> None:
        """Logs an unknown cgroup path once per kind; paths that differ in numbers are one kind."""
        kind = re.sub(r"[0-9a-f]*[0-9][0-9a-f]*", "0", path)
        if kind in self._strange or len(self._strange) >= STRANGE_MOST:
            return
        self._strange.add(kind)
        logger.warning(
            "%s is in the control group %s, which tells no pod, job, container or unit: it counts "
            "as its user's, %s", identity, peer.printable(path), identity.user)

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

        shut_down(connected, self._loop, emptied)

    def _hold_off(self, error: OSError) -> None:
        """Stops accepting for ACCEPT_PAUSE; new connections wait in the kernel's queue."""
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
