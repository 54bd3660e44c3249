# SPDX-License-Identifier: Apache-2.0
"""The socket that programs connect to.

No connection can hurt the others. Who it is, threads find out (nvshared/lanes.py); before that it
counts as nobody's. Users take turns at being read, a few packets at a time. A client that does not
read what it is sent, or says nothing, is dropped. Too many are refused; places.py says who finds a
place. When the machine is out of descriptors, new ones wait in the kernel's queue.
"""

import asyncio
import errno
import logging
import re
import socket
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from functools import partial

from nvshared.hook import packets
from nvshared.hook.connection import HookConnection, Keeper
from nvshared.hook.places import Places
from nvshared.hook.protocol import Refusal
from nvshared.hook.rotation import Rotation
from nvshared.lanes import Lanes
from nvshared.machine import peer, subordinate
from nvshared.machine.peer import Peer
from nvshared.settings.config import Config
from nvshared.sharing.manager import Manager
from nvshared.units import MILLISECOND

logger = logging.getLogger(__name__)

ACCEPTS_AT_A_TIME = 256                 # connections in one pass of the event loop, and
ACCEPTING_AT_A_TIME = 0.005             # seconds
PATIENCE = 200 * MILLISECOND            # with a program that keeps us from reading its name
REFUSED_AT_MOST = 64                    # connections over the limit that are still told so
STRANGE_MOST = 64                       # kinds of paths that people are told of
ACCEPT_PAUSE = 1.0                      # seconds, when descriptors have run out
DESCRIPTORS_EACH = 3                    # a socket, a pidfd and its word's page
DESCRIPTORS_OWN = 64                    # bus, NVML, files, metrics

OUT_OF_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


def descriptors(clients: int) -> int:
    """How many descriptors it takes to serve so many clients."""
    return DESCRIPTORS_OWN + DESCRIPTORS_EACH * (clients + REFUSED_AT_MOST)


def most_clients(open_files: int) -> int:
    """How many clients can be served with so many descriptors."""
    return max(1, (open_files - DESCRIPTORS_OWN) // DESCRIPTORS_EACH - REFUSED_AT_MOST)


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
        self._accepted: set[socket.socket] = set()  # that are no connections yet
        self._unknown: Counter[Hashable] = Counter()    # those of them not identified, by user
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
        for name, connected in kept.items():
            self._take(connected, name)

    def close(self) -> None:
        """Accepts no more and lets go of all connections; the clients go on and come back."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listening)
        self.rotation.close()
        for accepted in self._accepted:
            packets.leave(accepted)
        self._accepted.clear()
        for connection in tuple(self._connections):
            connection.end("the daemon stops", for_good=False)

    def forget(self, connection: HookConnection) -> None:
        """A connection has ended."""
        self._connections.discard(connection)
        self._release(connection.peer.account, admitted=connection.admitted)

    def _acceptable(self) -> None:
        """Empties the kernel's queue, in which users have no turns, as far as a moment allows."""
        end = self._loop.time() + ACCEPTING_AT_A_TIME
        for _ in range(ACCEPTS_AT_A_TIME):
            if self._loop.time() >= end:
                return
            try:
                connected, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in OUT_OF_RESOURCES:
                    raise
                self._hold_off(error)
                return
            self._take(connected)

    def _take(self, connected: socket.socket, name: str | None = None) -> None:
        """Has it found out who that is, before anything else."""
        packets.prepare(connected)      # for leave(), if the daemon stops before that is known
        credentials = peer.credentials(connected)
        lender = subordinate.lender(credentials.uid)
        if name is None and self._unknown[lender] >= self.config.max_clients_per_user:
            self._decline(connected, name)
            return
        self._unknown[lender] += 1
        self._accepted.add(connected)
        self._lanes.run(
            lender,
            partial(peer.identify, *credentials, grouped=self.manager.tenancy.has_group_rules),
            partial(self._identified, connected, name, lender))

    def _identified(
        self, connected: socket.socket, name: str | None, lender: Hashable, who: Peer | None,
    ) -> None:
        """Decides whether it may stay. The rest is done in its user's time."""
        self._unknown[lender] -= 1
        if not self._unknown[lender]:
            del self._unknown[lender]
        if connected not in self._accepted:     # the daemon stops
            return
        if who is None:                 # a fault of ours, which is in the journal
            self._accepted.discard(connected)
            self._decline(connected, name)
            return
        refusal = None if self._places.take(who.account) else Refusal.TOO_MANY_CLIENTS
        if refusal is not None:
            self.complain(who, "too many", "refused: there are too many connections already")
            if self._refused >= REFUSED_AT_MOST:    # not even the refusal can be afforded
                self._accepted.discard(connected)
                self._decline(connected, name)
                return
            self._refused += 1
        for path in who.strange:
            self._puzzles(path, who)
        if len(who.name) < peer.COMM_LONGEST or refusal is not None:
            self._called(connected, refusal, name, who, who.name)
        else:
            self._programs.run(
                who.account, partial(peer.whole_name, who.pid, who.name),
                partial(self._called, connected, refusal, name, who), PATIENCE)

    def _called(
        self, connected: socket.socket, refusal: Refusal | None, name: str | None, who: Peer,
        called: str | None,
    ) -> None:
        """`called`: its whole name, if its program lets us see that."""
        if called is not None:
            who = replace(who, name=called)
        self.rotation.offer(who.account, partial(self._begin, connected, who, refusal, name))

    def _begin(
        self, connected: socket.socket, who: Peer, refusal: Refusal | None, name: str | None,
    ) -> None:
        if connected not in self._accepted:
            return
        self._accepted.discard(connected)
        try:
            connection = HookConnection(self, connected, who, refusal, name)
        except ProcessLookupError:
            logger.debug("%s: died before it was accepted", who)
            self._decline(
                connected, name, partial(self._release, who.account, admitted=refusal is None))
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
