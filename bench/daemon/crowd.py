# SPDX-License-Identifier: Apache-2.0
"""Many clients in one process: they speak libnvshare.so's protocol, but have no memory and only
report figures, so that the measured cost is the daemon's.
"""

import select
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

from nvshared.hook.protocol import SIZE, VERSION, Flag, Type

# Head | memory figures | UUID (HELLO) | bytes owned, requested or moved, by the type
REPORT = struct.Struct("<HHIQ7Q16s2Q")
# Head | room, host, written_back
ORDER = struct.Struct("<HHIQ3Q64x")
NOTHING_HEARD = bytes(16)               # `answered` and `to_pin`
PATIENCE = 60.0                         # seconds without a record until the benchmark fails

SEND_PATIENCE = struct.pack("ll", int(PATIENCE), 0)     # struct timeval


class Client:
    """The connection of one imitated program; figures in bytes."""

    __slots__ = ("allocated", "granted", "host", "resident", "room", "socket", "stopped", "uuid")

    def __init__(self, path: Path, uuid: bytes, allocated: int) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # As in the library, connect() waits while the daemon's queue of connections is full.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, SEND_PATIENCE)
        self.socket.connect(str(path))
        self.socket.settimeout(PATIENCE)
        self.uuid = uuid
        self.allocated = allocated
        self.resident = self.room = 0
        self.host = allocated           # at first all its memory is in host memory
        self.granted = False            # RUN came, and no STOP after it
        self.stopped = 0                # STOPs obeyed

    def say(self, kind: int, number: int = 0, size: int = 0, flags: int = 0) -> None:
        """Send one record. `size`: bytes requested, held or moved, depending on the type."""
        self.socket.send(REPORT.pack(kind, VERSION, flags, number, self.allocated, self.resident, 0,
                                     0, self.room, self.host, 0,
                                     self.uuid if kind == Type.HELLO else NOTHING_HEARD, size, 0))

    def want(self) -> None:
        self.say(Type.MEMORY, flags=Flag.WANTS)

    def hear(self) -> int:
        """Receive one record, obey it, and return its type."""
        packet = self.socket.recv(SIZE + 1)
        if not packet:
            raise ConnectionError("the daemon ended a connection")
        kind, _, flags, number, room, host, written_back = ORDER.unpack(packet)
        match kind:
            case Type.RUN:
                self.granted = True
            case Type.STOP:
                self.granted = False
                self.stopped += 1
                self.say(Type.STOPPED)
            case Type.EVICT if flags & Flag.KEEP:
                self.host = max(self.host, self.allocated - self.resident + written_back)
                self.say(Type.MOVED, number, written_back)
            case Type.EVICT:
                self.resident = min(self.resident, room)
                self.host = max(self.host, self.allocated - self.resident)
                self.room = room
                self.say(Type.MOVED, number)
            case Type.LOAD:
                self.resident = min(self.allocated, room)
                self.host = max(self.allocated - self.resident, min(self.host, host))
                self.room = room
                self.say(Type.MOVED, number)
            case Type.REFUSED:
                raise ConnectionError(f"the daemon refused a client: {flags}")
        return int(kind)


class Crowd:
    """The connected clients of one card; a context manager."""

    def __init__(self, path: Path, uuid: bytes, number: int, allocated: int) -> None:
        """`allocated`: bytes of each program."""
        self.clients = []
        self._poll = select.epoll()
        self._by_descriptor: dict[int, Client] = {}
        for _ in range(number):
            client = Client(path, uuid, allocated)
            client.say(Type.HELLO, size=allocated)
            self.clients.append(client)
            self._by_descriptor[client.socket.fileno()] = client
            self._poll.register(client.socket, select.EPOLLIN)
        welcomed: set[Client] = set()

        def heard(client: Client, kind: int) -> bool:
            if kind == Type.LIMITS:
                welcomed.add(client)
            return len(welcomed) == number

        self.until(heard)

    def __enter__(self) -> "Crowd":
        return self

    def __exit__(self, *_: object) -> None:
        for client in self.clients:
            client.socket.close()
        self._poll.close()

    def until(self, heard: Callable[[Client, int], bool]) -> None:
        """Obeys all orders until `heard`, called with each client and record type, returns True."""
        while True:
            for client, kind in self._records(PATIENCE):
                if heard(client, kind):
                    return

    def ask(self, client: Client) -> None:
        """Sends one client's request and waits for the answer; obeys all orders meanwhile."""
        client.say(Type.COMMIT, number=1, size=client.allocated)
        self.until(lambda one, kind: one is client and kind == Type.LIMITS)

    def settle(self, quiet: float) -> None:
        """Obeys all orders until no record has come for `quiet` seconds."""
        while any(True for _ in self._records(quiet, patient=False)):
            continue

    def _records(self, seconds: float, *, patient: bool = True) -> Iterator[tuple[Client, int]]:
        ready = self._poll.poll(seconds)
        if not ready and patient:
            raise TimeoutError(f"the daemon said nothing for {seconds:.0f} seconds")
        for descriptor, _ in ready:
            client = self._by_descriptor[descriptor]
            yield client, client.hear()
