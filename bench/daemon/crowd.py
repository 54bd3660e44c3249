# SPDX-License-Identifier: Apache-2.0
"""Many clients in one process: they speak libnvshare.so's protocol, but have no memory and only
report figures, so that the measured cost is the daemon's.
"""

import select
from collections.abc import Callable, Iterator
from pathlib import Path

from nvshared.hook.protocol import OrderRecord, Type
from nvshared.scheduler.events import Memory
from tests.integration.fakehook import Hook

PATIENCE = 60.0                         # seconds without a record until the benchmark fails
JOINING = 100                           # clients that say HELLO at once: the daemon refuses a user
                                        # with many connections that are not served yet


class Client(Hook):
    """The connection of one imitated program; at first all its memory is in host memory."""

    def __init__(self, path: Path, uuid: bytes, allocated: int) -> None:
        """`allocated`: bytes."""
        super().__init__(str(path), uuid, Memory(allocated=allocated, host=allocated))

    def listen(self) -> Type:
        """Receives one order, obeys it, and returns its type."""
        order = self.hear()
        if order is None:
            raise ConnectionError("the daemon ended a connection")
        self.obey(order)
        return order.type

    def obey(self, record: OrderRecord) -> None:
        match record.type:
            case Type.STOP:             # it wants no other turn until a benchmark says so
                self.granted = False
                self.say(Type.STOPPED)
            case Type.REFUSED:
                raise ConnectionError(f"the daemon refused a client: {record.refusal}")
            case _:
                super().obey(record)


class Crowd:
    """The connected clients of one card; a context manager."""

    def __init__(self, path: Path, uuid: bytes, number: int, allocated: int) -> None:
        """`allocated`: bytes of each program."""
        self.clients: list[Client] = []
        self._poll = select.epoll()
        self._by_descriptor: dict[int, Client] = {}
        welcomed: set[Client] = set()

        def heard(client: Client, kind: Type) -> bool:
            if kind is Type.LIMITS:
                welcomed.add(client)
            return len(welcomed) == len(self.clients)

        while len(self.clients) < number:
            for _ in range(min(JOINING, number - len(self.clients))):
                client = Client(path, uuid, allocated)
                client.say(Type.HELLO, commit=allocated)
                self.clients.append(client)
                self._by_descriptor[client.socket.fileno()] = client
                self._poll.register(client.socket, select.EPOLLIN)
            self.until(heard)

    def __enter__(self) -> "Crowd":
        return self

    def __exit__(self, *_: object) -> None:
        for client in self.clients:
            client.socket.close()
        self._poll.close()

    def until(self, heard: Callable[[Client, Type], bool]) -> None:
        """Obeys all orders until `heard`, called with each client and record type, returns True."""
        while True:
            for client, kind in self._records(PATIENCE):
                if heard(client, kind):
                    return

    def ask(self, client: Client) -> None:
        """Sends one client's request and waits for the answer; obeys all orders meanwhile."""
        client.say(Type.COMMIT, number=1, wanted=client.memory.allocated)
        self.until(lambda one, kind: one is client and kind is Type.LIMITS)

    def settle(self, quiet: float) -> None:
        """Obeys all orders until no record has come for `quiet` seconds."""
        while any(True for _ in self._records(quiet, patient=False)):
            continue

    def _records(self, seconds: float, *, patient: bool = True) -> Iterator[tuple[Client, Type]]:
        ready = self._poll.poll(seconds)
        if not ready and patient:
            raise TimeoutError(f"the daemon said nothing for {seconds:.0f} seconds")
        for descriptor, _ in ready:
            client = self._by_descriptor[descriptor]
            yield client, client.listen()
