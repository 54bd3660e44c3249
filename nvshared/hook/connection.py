# SPDX-License-Identifier: Apache-2.0
"""The clients' connections: accepts, admits and serves them, each with its socket and a pidfd.

Users are served in rotation. No packet may carry descriptors: a sender can make their close()
block. systemd keeps copies of the sockets. docs/internals/connections.md explains all of it."""

import asyncio
import errno
import logging
import os
import re
import socket
import struct
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from threading import Thread

from nvshared import caller
from nvshared.containers import names
from nvshared.errors import ProtocolError
from nvshared.hook import packets
from nvshared.hook.listening import BACKLOG
from nvshared.hook.protocol import VERSION, OrderRecord, Refusal, Type
from nvshared.hook.session import Session
from nvshared.lanes import Lanes
from nvshared.machine import host, peer, subordinate
from nvshared.machine.peer import Peer
from nvshared.machine.tenant import Kind
from nvshared.names import COMM_LONGEST
from nvshared.report.systemd import Notifier
from nvshared.settings.config import Config
from nvshared.sharing.manager import Manager
from nvshared.units import MILLISECOND, SECOND

logger = logging.getLogger(__name__)

ACCEPTING_AT_A_TIME = 0.005             # seconds of accepting in one pass of the event loop
ACCEPT_PAUSE = 1.0                      # seconds without accepting after descriptors ran out
WORK_SLICE = 0.001                      # seconds of queued work before other events are handled
HELLO_WITHIN = 10 * SECOND              # us from a connection to its first record
NAME_PATIENCE = 200 * MILLISECOND       # us to read a program's name: the program can block this
CONTAINER_PATIENCE = 5 * SECOND         # us to ask for a container's name: a runtime can hang
UNKNOWN_MOST = 64                       # most kinds of unknown cgroup paths that are logged
ROOT = ""                               # the account of the host's root
FOR_ROOT = 16                           # 1/16 of all connections is reserved for root
FOR_OTHERS = 4                          # 1/4 is reserved for users with few connections,
MANY_PART = 256                         # less than 1/256 of all connections
UNSERVED_MOST = 4096                    # connections of all users that are not served yet
DESCRIPTORS_UNSERVED = 2                # of an unserved connection: its socket and a pidfd
DESCRIPTORS_EACH = 4                    # of a client: socket, pidfd, inflight page, disk file
DESCRIPTORS_OWN = 64                    # for the bus, NVML, files, metrics
PACKETS_AT_A_TIME = 4                   # packets read from a connection before it waits its turn
QUEUE_LONGEST = 256                     # unsent packets of one client, besides its socket's buffer
TOO_MANY = packets.encode_order(OrderRecord(Type.REFUSED, refusal=Refusal.TOO_MANY_CLIENTS))
SO_PASSRIGHTS = 83                      # Linux 6.16, asm-generic/socket.h
CREDENTIALS_SPACE = socket.CMSG_LEN(struct.calcsize("3i"))


class Rotation:
    """Divides the event loop's time among users. Work is queued by account (machine/peer.py) and
    done round-robin, for at most WORK_SLICE before the loop handles its other events. While there
    is less work than that, as nearly always, each piece is done at once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        # Queued work by account; the first account is served next.
        self._waiting: dict[Hashable, deque[Callable[[], None]]] = {}
        self._used = 0.0                # seconds of work done at once, less the time since then
        self._ended = 0.0               # loop time of the last update of `_used`
        self._serving: asyncio.Handle | None = None

    def offer(self, account: Hashable, work: Callable[[], None]) -> bool:
        """Does work at once (True), or queues it behind the account's other work (False)."""
        now = self._loop.time()
        self._used = max(0.0, self._used - (now - self._ended))
        self._ended = now
        if self._serving is not None or self._used >= WORK_SLICE:
            self._waiting.setdefault(account, deque()).append(work)
            if self._serving is None:
                self._serving = self._loop.call_soon(self._serve)
            return False
        try:
            work()
        finally:
            self._ended = self._loop.time()
            self._used += self._ended - now
        return True

    def close(self) -> None:
        """Drops waiting work."""
        if self._serving is not None:
            self._serving.cancel()
            self._serving = None
        self._waiting.clear()

    def _serve(self) -> None:
        end = self._loop.time() + WORK_SLICE
        try:
            while self._waiting and self._loop.time() < end:
                account = next(iter(self._waiting))
                queue = self._waiting.pop(account)
                work = queue.popleft()
                if queue:
                    self._waiting[account] = queue  # back into the dict, behind other accounts
                work()
        finally:
            self._serving = self._loop.call_soon(self._serve) if self._waiting else None


def may_connect(account: str, connected: Counter[str], most: int, most_of_a_user: int) -> bool:
    """Whether a user may have one more connection; `connected`: number of connections by account
    (machine/peer.py). The more a user (or pod, or container) has, the more must stay free."""
    has, left = connected[account], most - connected.total()
    if account == ROOT:
        return left > 0
    many = max(1, most // MANY_PART)
    for_others = most // FOR_OTHERS * min(has, many) // many
    return left > most // FOR_ROOT + for_others and has < most_of_a_user


class HookConnection:
    """One client's socket: the Wire of its session (session.py)."""

    def __init__(
        self, server: "Server", connected: socket.socket, pidfd: int | None, identity: Peer,
        name: str | None,
    ) -> None:
        """`name`: systemd's name for a connection of an earlier daemon; None: a new connection."""
        self.peer, self.account = identity, identity.account
        self.name = name or server.keeper.new_name()
        self._server, self._socket = server, connected
        self._complain = partial(server.complain, identity)     # takes a fault's kind and text
        self._queue: deque[tuple[bytes, int | None]] = deque()
        self._version = VERSION         # of the last packet, and so of the client's library
        self._ended = False
        self._listens = True            # False: the last packet waits for Rotation or cgroup limits
        self._loop = asyncio.get_running_loop()
        self._pidfd = pidfd
        self.session = Session(server.manager, identity, self)
        self._timeout: asyncio.TimerHandle | None = None
        self._loop.add_reader(connected, self._readable)
        if self._pidfd is not None:
            self._loop.add_reader(self._pidfd, self._process_ended)
        if name is not None:            # the client may drain for long before its HELLO: no timeout
            self.session.take_over()
        else:
            timeout = HELLO_WITHIN / SECOND
            self._timeout = self._loop.call_later(timeout, self._hello_overdue)
            if not server.keeper.keep(self.name, connected.fileno()):
                self._complain("unstored", "systemd has no room for the name of its connection, so "
                               "a restart of nvshared ends the connection")

    def send(self, order: OrderRecord, descriptor: int | None = None) -> None:
        if self._ended:
            _close(descriptor)
            return
        for packet in packets.encode(order, self._version):
            if not self._queue and self._try_send(packet, descriptor):
                continue
            self._queue.append((packet, descriptor))
            if len(self._queue) == 1:
                self._loop.add_writer(self._socket, self._writable)
            if len(self._queue) > QUEUE_LONGEST:
                self._complain("unread", "it does not read what it is sent")
                # Deferred: the caller may be in the middle of changing the client's state.
                self._loop.call_soon(self.end, "it did not read")

    def drop(self, reason: str) -> None:
        self._complain("malformed", f"dropped: {reason}")
        self._loop.call_soon(self.end, reason)

    def end(self, reason: str) -> None:
        """Closes the socket and its copy in systemd. No-op when repeated."""
        if self._ended:
            return
        self._stop(reason)
        self.session.ended()
        # Breaks the reference cycle: a garbage collection after many ended connections would hold
        # up the event loop for too long.
        del self.session
        self._server.shut_down(self._socket, self.name, partial(self._server.forget, self))

    def leave(self) -> None:
        """Ends the traffic, as the daemon ends and the client goes on.

        The scheduler keeps the client: it would plan for the others anew, once for each client."""
        if not self._ended:
            self._stop("the daemon stops")
            self._socket.detach()

    def _stop(self, reason: str) -> None:
        self._ended = True
        logger.debug("%s: connection closed: %s", self.peer, reason)
        if self._timeout is not None:
            self._timeout.cancel()
        for _, descriptor in self._queue:
            _close(descriptor)
        self._loop.remove_writer(self._socket)
        self._loop.remove_reader(self._socket)
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)

    def _readable(self) -> None:
        if not self._server.rotation.offer(self.account, self._read):
            self._listen(on=False)

    def _process_ended(self) -> None:
        assert self._pidfd is not None
        self._loop.remove_reader(self._pidfd)
        self._server.rotation.offer(self.account, partial(self.end, "its process ended"))

    def resume(self, work: Callable[[], None]) -> None:
        self._server.rotation.offer(self.account, partial(self._read, work))

    def _listen(self, *, on: bool) -> None:
        if on and not self._listens:
            self._loop.add_reader(self._socket, self._readable)
        elif self._listens and not on:
            self._loop.remove_reader(self._socket)
        self._listens = on

    def _read(self, work: Callable[[], None] | None = None) -> None:
        """Does `work`, left by a packet that waited for cgroup limits, then handles packets."""
        for _ in range(PACKETS_AT_A_TIME):
            if self._ended or self.session.looking_up:
                break
            try:
                work = work or self._next_packet()
                if work is None:
                    break
                work()
            except ProtocolError as error:
                self._complain("malformed", f"dropped: {error}")
                self.end(error.message)
            work = None
        if self._ended:
            return
        if self.session.finished:       # packets behind the refused HELLO have been checked, too
            self.end("it was refused")
        else:
            self._listen(on=not self.session.looking_up)

    def _next_packet(self) -> Callable[[], None] | None:
        """Reads a packet. Returns the work that handles it; None: no packet, or the end."""
        try:
            packet = receive(self._socket, packets.LONGEST + 1)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as error:
            self.end(error.strerror or str(error))
            return None
        if packet is None:
            self.end("closed by the other side")
            return None
        record = packets.decode_report(packet)
        if record.version in packets.LAYOUTS:
            self._version = record.version
        return partial(self.session.received, record)

    def _writable(self) -> None:
        while self._queue and not self._ended:
            if not self._try_send(*self._queue[0]):
                return
            self._queue.popleft()
        if not self._ended:
            self._loop.remove_writer(self._socket)

    def _try_send(self, packet: bytes, descriptor: int | None) -> bool:
        """Sends a packet. False: the socket's buffer is full. Also True if the socket is broken:
        its connection ends in the next pass of the event loop."""
        try:
            if descriptor is None:
                self._socket.send(packet)
            else:
                socket.send_fds(self._socket, [packet], [descriptor])
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            if descriptor is not None and error.errno == errno.ETOOMANYREFS:
                kind = packets.message(packet)
                self._complain("crowded", "too many descriptors are queued in sockets: " + (
                    "its memory does not go to the disk yet" if kind is Type.STORE else "background"
                    " clients do not yield to it, or it does not yield to others"))
                self._loop.call_soon(self._descriptor_lost, kind)
            else:
                self._loop.call_soon(self.end, error.strerror or str(error))
        _close(descriptor)
        return True

    def _descriptor_lost(self, kind: Type) -> None:
        if not self._ended:
            self.session.descriptor_lost(kind)

    def _hello_overdue(self) -> None:
        if self.session.client is None and not self.session.looking_up:
            self._complain("silent", "it connected and sent no HELLO")
            self.end("it sent no HELLO")


def descriptors(clients: int) -> int:
    """The number of descriptors that are needed to serve this number of clients."""
    return DESCRIPTORS_OWN + DESCRIPTORS_EACH * clients + DESCRIPTORS_UNSERVED * UNSERVED_MOST


def most_clients(open_files: int) -> int:
    """The number of clients that can be served with this number of descriptors."""
    left = open_files - DESCRIPTORS_OWN - DESCRIPTORS_UNSERVED * _most_unserved(open_files)
    return max(1, left // DESCRIPTORS_EACH)


def _most_unserved(open_files: int) -> int:
    return min(UNSERVED_MOST, open_files // 4 // DESCRIPTORS_UNSERVED)


@dataclass(slots=True, eq=False)
class _Unserved:
    """A connection that waits until its process is identified."""

    socket: socket.socket
    name: str | None                    # name of systemd's copy; None: a new connection
    # The user by process credentials alone (see subordinate.lender()), and these credentials.
    owners: tuple[Hashable, Hashable]
    pidfd: int | None


class Server:
    """Accepts connections on a listening socket until it is closed."""

    def __init__(
        self, manager: Manager, listening: socket.socket, config: Config, open_files: int,
        complain: Callable[[Peer, str, str], None], keeper: Notifier,
        kept: Mapping[str, socket.socket], lanes: Lanes, programs: Lanes, users: Lanes,
        containers: names.Names,
    ) -> None:
        """Must be called in a running event loop. `open_files`: the daemon's limit of descriptors;
        `complain`: logs a client's fault, its kind and a description; `kept`: connections of an
        earlier daemon, by their names in `keeper`; `lanes`: for reads that always end; `programs`:
        for reads that a program can block for ever; `users`: for calls that may hang, such as
        those of container runtimes; `containers`: names, as far as known for `kept`."""
        self.manager, self.keeper, self.config = manager, keeper, config
        self.complain = complain
        self._listening = listening
        self._most = min(config.max_clients, most_clients(open_files))
        self._connections: set[HookConnection] = set()
        self.unserved: set[_Unserved] = set()
        # Number of connections without a session, by user and by process.
        self._unserved_of: Counter[Hashable] = Counter()
        self._unserved_most = _most_unserved(open_files)
        self._lanes, self._programs, self._users = lanes, programs, users
        self._containers = containers
        self._unknown_cgroups: set[str] = set()         # kinds of paths that have been logged
        self._loop = asyncio.get_running_loop()
        self.rotation = Rotation(self._loop)
        self._pause: asyncio.TimerHandle | None = None
        self._warned = False
        self._look: asyncio.TimerHandle | None = None   # for the needs of a client, since _lack()
        self._few_descriptors = manager.faults.detail("few-descriptors")    # since the start
        listening.setblocking(False)
        refuse_descriptors(listening)
        self._loop.add_reader(listening, self._accept_queued)
        for name, connected in kept.items():
            self._queue_connection(connected, name)

    def close(self) -> None:
        """Stops accepting, reading and sending; clients run on.

        Sockets stay open until the process ends: only then does the kernel close TCP sockets that
        a client has queued in them without waiting (SO_LINGER)."""
        for timer in filter(None, (self._pause, self._look)):
            timer.cancel()
        self._loop.remove_reader(self._listening)
        self.rotation.close()
        for one in self.unserved:
            one.socket.detach()
        self.unserved.clear()
        for connection in self._connections:
            connection.leave()

    def shut_down(
        self, connected: socket.socket, name: str | None,
        emptied: Callable[[], None] = lambda: None,
    ) -> None:
        """Ends a connection and its copy in systemd. `name`: of that copy; None: no copy."""
        def finish() -> None:
            if name is not None:
                self.keeper.forget(name)
            emptied()

        shut_down(connected, self._loop, finish)

    def forget(self, connection: HookConnection) -> None:
        """Removes a connection that has ended."""
        self._connections.discard(connection)

    def _accept_queued(self) -> None:
        """Accepts the connections in the kernel's queue, for at most ACCEPTING_AT_A_TIME."""
        end = self._loop.time() + ACCEPTING_AT_A_TIME
        for _ in range(BACKLOG):
            try:
                connected, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in peer.OUT_OF_RESOURCES:
                    raise
                self._lack(error)
                self._loop.remove_reader(self._listening)
                self._pause = self._loop.call_later(
                    ACCEPT_PAUSE, self._loop.add_reader, self._listening, self._accept_queued)
                return
            self._queue_connection(connected)
            if self._loop.time() >= end:
                return

    def _lack(self, error: OSError) -> None:
        """Notes that a client could not be served for a lack of descriptors or memory."""
        if not self._warned:
            logger.warning("no new client can be accepted for now: %s; raise LimitNOFILE= if this "
                           "lasts", error.strerror)
        self._warned = True
        self.manager.faults.set(
            "few-descriptors", f"no new client can be accepted for now: {error.strerror}")
        if self._look is None:
            self._look = self._loop.call_later(ACCEPT_PAUSE, self._look_for_descriptors)

    def _look_for_descriptors(self) -> None:
        """Ends the fault once a further client could be served: none may come for hours."""
        found: list[int] = []
        try:
            while len(found) < DESCRIPTORS_EACH:
                found.append(os.dup(self._listening.fileno()))
        except OSError:
            self._look = self._loop.call_later(ACCEPT_PAUSE, self._look_for_descriptors)
        else:
            self._look = None
            self.manager.faults.set("few-descriptors", self._few_descriptors)
        finally:
            for one in found:
                os.close(one)

    def _queue_connection(self, connected: socket.socket, name: str | None = None) -> None:
        """Queues a connection until its process is identified; refuses it if too many wait."""
        pid, uid = caller.credentials(connected)
        owners = subordinate.lender(uid), (pid, uid)
        waiting = sum(self._unserved_of[one] for one in owners)
        if name is None and waiting >= self._unserved_most - len(self.unserved):
            self.complain(
                Peer.unknown(pid, uid), "unserved", "refused: too many are not served yet")
            turn_away(connected, self._loop)
            return
        prepare(connected)
        try:
            pidfd = peer.watch(connected, pid)
        except ProcessLookupError:
            self.shut_down(connected, name)
            return
        except OSError as error:        # of peer.OUT_OF_RESOURCES
            self._lack(error)
            if name is None:
                turn_away(connected, self._loop)
                return
            pidfd = None                # an earlier daemon's client, which cannot go elsewhere
        one = _Unserved(connected, name, owners, pidfd)
        self.unserved.add(one)
        self._unserved_of.update(owners)
        identify = partial(self._identify, one, pid, uid)
        if name is None and not self.manager.budget.shared.gathering:
            self.manager.tenancy.prepare(uid, identify)
        else:                           # no decision may be made before its HELLO
            identify()

    def _identify(self, one: _Unserved, pid: int, uid: int) -> None:
        number = self.manager.tenancy.directory.number
        self._lanes.run(one.owners[0], partial(peer.identify, pid, uid, number),
                        partial(self._identified, one))

    def _take(self, one: _Unserved) -> None:
        self.unserved.remove(one)
        self._unserved_of -= Counter(one.owners)    # Counter's -= removes counts of zero

    def _identified(self, one: _Unserved, identity: Peer | None) -> None:
        if one not in self.unserved:
            return                      # the daemon stops
        if identity is None:            # lanes.py has logged an exception of peer.identify()
            self._take(one)
            _close(one.pidfd)
            self.shut_down(one.socket, one.name)
            return
        for path in identity.unknown_paths:
            kind = re.sub(r"[0-9a-f]*[0-9][0-9a-f]*", "0", path)    # without numbers
            if kind not in self._unknown_cgroups and len(self._unknown_cgroups) < UNKNOWN_MOST:
                self._unknown_cgroups.add(kind)
                logger.warning(
                    "%s is in the control group %s, which identifies no pod, job, container or "
                    "unit: it counts as its user's, %s",
                    identity, peer.printable(path), self.manager.tenancy.shown(
                        str(identity.tenants[0])).partition(":")[2])

        tenant = identity.tenant
        if tenant.kind is not Kind.CONTAINER or not names.ID.fullmatch(tenant.name):
            self._name(one, identity)
        elif one.name is not None:      # no decision may be made before its HELLO
            self._name_container(one, identity, self._containers.known(tenant.name))
        else:
            # Rules and limits are for the name, so all that follows has to have it.
            self._users.run(names.KIND, partial(self._containers.of, tenant.name),
                            partial(self._name_container, one, identity), CONTAINER_PATIENCE)

    def _name_container(self, one: _Unserved, identity: Peer, name: str | None) -> None:
        """Gives the system's container that a process is in its name, if a runtime has told one."""
        *outer, tenant = identity.tenants
        if not name:
            self.complain(identity, "unnamed", f"no runtime tells the name of {tenant}, so rules "
                          "and limits of its name do not hold")
        else:
            identity = replace(identity, tenants=(
                *outer, replace(tenant, name=name, container=tenant.name)))
        self._name(one, identity)

    def _name(self, one: _Unserved, identity: Peer) -> None:
        """Reads the whole name of a program, and serves it."""
        def name_read(name: str | None) -> None:        # None: it could not be read
            named = replace(identity, name=name or identity.name)
            self.rotation.offer(named.account, partial(self._serve, one, named))

        if len(identity.name) < COMM_LONGEST:
            name_read(identity.name)
        else:
            self._programs.run(
                identity.account, partial(peer.whole_name, identity.pid, identity.name), name_read,
                NAME_PATIENCE)

    def _serve(self, one: _Unserved, identity: Peer) -> None:
        """Serves a connection, when Rotation reaches the user."""
        if one not in self.unserved:
            return                      # the daemon stops
        self._take(one)
        # A file that others still have takes a descriptor as a connection does.
        connected = Counter(each.account for each in self._connections) + self.manager.disk.left
        if has_ended := one.pidfd is not None and caller.has_ended(one.pidfd):
            logger.debug("%s: died before it was served", identity)
        elif may_connect(
                identity.account, connected, self._most, self.config.max_clients_per_user):
            self._connections.add(HookConnection(self, one.socket, one.pidfd, identity, one.name))
            return
        else:
            self.complain(identity, "too many", "refused: there are too many connections already")
        _close(one.pidfd)
        if has_ended or one.name is not None:
            self.shut_down(one.socket, one.name)
        else:
            turn_away(one.socket, self._loop)


def container_of(kept: Iterable[socket.socket]) -> str:
    """The id of one container that has processes of an earlier daemon's connections; "": none."""
    groups = (host.process(caller.credentials(one)[0], "cgroup") for one in kept)
    return next((found[0] for group in groups if (found := names.ID.search(group))), "")


def _close(descriptor: int | None) -> None:
    if descriptor is not None:
        os.close(descriptor)


def refuse_descriptors(listening: socket.socket) -> None:
    """Makes the kernel refuse descriptors on connections accepted from now on, if it can."""
    with suppress(OSError):
        listening.setsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS, 0)


def prepare(connected: socket.socket) -> None:
    """Makes a socket non-blocking, and enables the detection of descriptors."""
    connected.setblocking(False)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)


def receive(connected: socket.socket, size: int) -> bytes | None:
    """Reads a packet, up to `size` bytes of it; None at the end of the connection.

    Raises OSError, and ProtocolError if the packet carries descriptors."""
    packet, control, flags, _ = connected.recvmsg(size, CREDENTIALS_SPACE, socket.MSG_PEEK)
    if not control:
        return None
    if flags & socket.MSG_CTRUNC:
        raise ProtocolError("it sent descriptors")
    connected.recv(1)
    return packet


def shut_down(
    connected: socket.socket, loop: asyncio.AbstractEventLoop, emptied: Callable[[], None]
) -> None:
    """Shuts a socket down, empties its queue, calls `emptied`, and closes the socket."""
    with suppress(OSError):             # the client may have disconnected already
        connected.shutdown(socket.SHUT_RDWR)

    def finish() -> None:
        emptied()
        connected.close()

    def empty() -> None:
        with suppress(OSError):
            while connected.recvmsg(1, CREDENTIALS_SPACE, socket.MSG_PEEK)[1]:
                connected.recv(1)
        with suppress(RuntimeError):    # the loop has ended
            loop.call_soon_threadsafe(finish)

    if _drop_harmless(connected):
        finish()
    else:
        Thread(target=empty, name="emptying", daemon=True).start()


def turn_away(connected: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
    """Sends a refusal on a socket that has been accepted, and closes it."""
    prepare(connected)
    with suppress(OSError):
        connected.send(TOO_MANY)
    # Reads unread packets first: with these, close() would discard the refusal.
    shut_down(connected, loop, lambda: None)


def _drop_harmless(connected: socket.socket) -> bool:
    """Reads queued packets up to the first one with descriptors. False: there is such a packet."""
    with suppress(OSError):
        try:
            while receive(connected, 1) is not None:
                continue
        except ProtocolError:
            return False
    return True
