# SPDX-License-Identifier: Apache-2.0
"""How much moves at a time: more of a large allocation on a large card."""

import socket
from dataclasses import replace

import pytest

from nvshared.hook.protocol import OrderRecord, ReportRecord, Type, decode_report, encode_order
from nvshared.units import GIB, MIB
from tests.integration.conftest import Site
from tests.integration.fakehook import PATIENCE
from tests.integration.test_own_memory import Program

SIZE = 256 * MIB
HELD = '''
size = 256 * MIB
address = allocate(size)
data = noise(size)
put(address, data)
away()
assert get(address, size) == data
'''


class Daemon:
    """Lets one program run, until it is told to take something from it."""

    def __init__(self, listener: socket.socket, total: int) -> None:
        self.limits = OrderRecord(Type.LIMITS, commit=2 * SIZE, most=2 * SIZE, total=total)
        self.connection, _ = listener.accept()
        self.connection.settimeout(PATIENCE)
        self.hears(Type.HELLO)
        self.say(self.limits)
        self.run()

    def say(self, record: OrderRecord) -> None:
        self.connection.send(encode_order(record))

    def hears(self, what: Type) -> ReportRecord:
        """The next record of this type."""
        while True:
            said = decode_report(self.connection.recv(4096))
            if said.type is what:
                return said
            if said.type is Type.COMMIT:
                self.say(replace(self.limits, number=said.number))

    def run(self) -> None:
        self.say(OrderRecord(Type.LOAD, number=1, room=2 * SIZE, host=2 * SIZE))
        self.hears(Type.MOVED)
        self.say(OrderRecord(Type.RUN))

    def evict(self, room: int) -> int:
        """Leaves it so much of the card; bytes that were copied out for that."""
        self.say(OrderRecord(Type.STOP))
        self.hears(Type.STOPPED)
        self.say(OrderRecord(Type.EVICT, number=2, room=room, host=2 * SIZE))
        return self.hears(Type.MOVED).moved


@pytest.mark.parametrize(("total", "block"), [(16 * GIB, 64 * MIB), (4 * GIB, 32 * MIB)])
def test_eviction_of_a_megabyte_moves_one_block_of_the_cards_size(
    site: Site, total: int, block: int
) -> None:
    site.socket.parent.mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(site.socket))
        listener.listen()
        listener.settimeout(PATIENCE)
        program = Program(site, HELD)
        daemon = Daemon(listener, total)
    with daemon.connection:
        assert program.hears() == "away"
        assert daemon.evict(SIZE - 1 * MIB) == block
        daemon.run()
        program.go_on()
        program.ends_well()
