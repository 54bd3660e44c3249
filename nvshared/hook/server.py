# SPDX-License-Identifier: Apache-2.0
"""The socket that programs connect to.

No connection can hurt the others. Users take turns at being read, a few packets at a time. A
client that does not read what it is sent, or says nothing, is dropped. Too many are refused;
places.py says who finds a place. When the machine is out of descriptors, new ones wait in the
kernel's queue.
"""

import asyncio
import errno
import logging
import re
import socket
from collections.abc import Callable, Mapping
from functools import partial

from nvshared.hook import packets
from nvshared.hook.connection import HookConnection, Keeper
from nvshared.hook.places import Places
from nvshared.hook.protocol import Refusal
from nvshared.hook.rotation import Rotation
from nvshared.machine import peer
from nvshared.machine.peer import Peer
from nvshared.settings.config import Config
from nvshared.sharing.manager import Manager

logger = logging.getLogger(__name__)

ACCEPTS_AT_A_TIME = 16
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
        complain: Callable[[str, str, Callable[[], Peer], str], None], keeper: Keeper,
        kept: Mapping[str, socket.socket],
    ) -> None:
        """`open_files`: how many this process may have; `complain`: tells the journal whose
        fault it is, of what kind, who it was, and what it did; `kept`: connections of a daemon
        before us, by the names `keeper` has them under. Must be made in a running event loop."""
        self.manager = manager
        self.keeper = keeper
        self.config = config
        self.complain = complain
        self._listening = listening
        self._places = Places(
            min(config.max_clients, most_clients(open_files)), config.max_clients_per_user)
        self._connections: set[HookConnection] = set()
        self._accepted: set[socket.socket] = set()  # that are no connections yet
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
        for connection in tuple(self._connections):
            connection.end("the daemon stops", for_good=False)

    def forget(self, connection: HookConnection) -> None:
        """A connection has ended."""
        self._connections.discard(connection)
        self._release(connection.peer.account, admitted=connection.admitted)

    def _acceptable(self) -> None:
        for _ in range(ACCEPTS_AT_A_TIME):
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
        """Decides at once and cheaply whether it may stay. The rest is done in its user's time."""
        credentials = peer.credentials(connected)
        identity = peer.identify(*credentials)
        describe = partial(peer.describe, *credentials, identity)
        refusal = None if self._places.take(identity.account) else Refusal.TOO_MANY_CLIENTS
        if refusal is not None:
            self.complain(
                identity.account, "too many", describe,
                "refused: there are too many connections already")
            if self._refused >= REFUSED_AT_MOST:
                self._decline(connected, name, lambda: None)  # not even the refusal can be afforded
                return
            self._refused += 1
        for path in identity.strange:
            self._puzzles(path, describe)
        self._accepted.add(connected)
        self.rotation.offer(
            identity.account, partial(self._begin, connected, describe, refusal, name))

    def _begin(
        self, connected: socket.socket, describe: Callable[[], Peer], refusal: Refusal | None,
        name: str | None,
    ) -> None:
        self._accepted.discard(connected)
        who = describe()
        try:
            connection = HookConnection(self, connected, who, refusal, name)
        except ProcessLookupError:
            logger.debug("%s: died before it was accepted", who)
            self._decline(
                connected, name, partial(self._release, who.account, admitted=refusal is None))
            return
        self._connections.add(connection)

    def _puzzles(self, path: str, describe: Callable[[], Peer]) -> None:
        """Says once of each kind of path that it is not understood; numbers are no other kind."""
        kind = re.sub(r"[0-9a-f]*[0-9][0-9a-f]*", "0", path)
        if kind in self._strange or len(self._strange) >= STRANGE_MOST:
            return
        self._strange.add(kind)
        who = describe()
        logger.warning(
            "%s is in the control group %s, which tells no pod, job, container or unit: it counts "
            "as its user's, %s", who, peer.printable(path), who.user)

    def _release(self, account: str, *, admitted: bool) -> None:
        if admitted:
            self._places.give(account)
        else:
            self._refused -= 1

    def _decline(
        self, connected: socket.socket, name: str | None, closed: Callable[[], None]
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
