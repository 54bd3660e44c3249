# SPDX-License-Identifier: Apache-2.0
"""The scripted hook of tests/integration/fakehook.py, connected to a session without a socket."""

import os
from collections import deque
from collections.abc import Callable

from nvshared.hook.packets import decode_report, encode
from nvshared.hook.protocol import OrderRecord
from nvshared.hook.session import Session
from nvshared.machine.peer import Peer
from nvshared.scheduler.events import Memory
from nvshared.sharing.gpu import GPU
from nvshared.sharing.manager import Manager
from tests.integration.fakehook import Hook
from tests.records import decode_order


class Wire:
    """Packets that the daemon sent and the client has not read."""

    def __init__(self, longest: int | None = None) -> None:
        self.packets: deque[bytes] = deque(maxlen=longest)

    @property
    def orders(self) -> list[OrderRecord]:
        return [decode_order(packet) for packet in self.packets]

    name = "client-1"

    def send(self, order: OrderRecord, descriptor: int | None = None) -> None:
        self.packets += encode(order)
        if descriptor is not None:
            os.close(descriptor)

    def drop(self, reason: str) -> None:
        """As Wire.drop: the connection stays."""

    def resume(self, work: Callable[[], None]) -> None:
        work()


class SessionHook(Hook):
    """A client that obeys all orders; its packets reach the session at once."""

    def __init__(self, manager: Manager, gpu: GPU, process: Peer,
                 memory: Memory | None = None) -> None:
        self.wire = Wire()
        self.session = Session(manager, process, self.wire)
        super().__init__("", gpu.facts.uuid_bytes, memory or Memory())

    def __repr__(self) -> str:
        return f"SessionHook({self.session.peer.pid})"

    def connect(self) -> None:
        """No-op: packets reach the session without a socket."""

    def send(self, packet: bytes) -> None:
        self.session.received(decode_report(packet))

    def hear(self) -> OrderRecord:
        """The oldest order not yet read."""
        return decode_order(self.wire.packets.popleft())
