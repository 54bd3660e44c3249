# SPDX-License-Identifier: Apache-2.0
"""How much moves at a time: more of a large allocation on a large card."""

import socket

import pytest

from nvshared.hook.protocol import Limits, Record, Type, decode, encode
from nvshared.units import GIB, MIB
from tests.integration.conftest import Site
from tests.integration.fakehook import PATIENCE
from tests.integration.test_own_memory import Program

SIZE = 256 * MIB
HELD = '''
size = 256 * MIB
address = c_uint64()
call("cuMemAlloc_v2", byref(address), size)
data = os.urandom(size)
put(address.value, data)
away()
assert get(address.value, size) == data
'''


class Daemon:
    """Lets one program run, until it is told to take something from it."""

    def __init__(self, listener: socket.socket, total: int) -> None:
        self.limits = Limits(commit=2 * SIZE, most=2 * SIZE, total=total)
        self.connection, _ = listener.accept()
        self.connection.settimeout(PATIENCE)
        self.hears(Type.HELLO)
        self.say(Record(Type.WELCOME, limits=self.limits))
        self.run()

    def say(self, record: Record) -> None:
        self.connection.send(encode(record))

    def hears(self, what: Type) -> Record:
        """The next record of this type."""
        while True:
            said = decode(self.connection.recv(4096))
            if said.type is what:
                return said
            if said.type is Type.COMMIT:
                self.say(Record(Type.LIMITS, number=said.number, limits=self.limits))

    def run(self) -> None:
        self.say(Record(Type.LOAD, number=1, bytes=2 * SIZE, host=2 * SIZE))
        self.hears(Type.LOADED)
        self.say(Record(Type.RUN))

    def evict(self, room: int) -> int:
        """Leaves it so much of the card; bytes that were copied out for that."""
        self.say(Record(Type.STOP))
        self.hears(Type.STOPPED)
        self.say(Record(Type.EVICT, number=2, bytes=room, host=2 * SIZE))
        return self.hears(Type.EVICTED).bytes


@pytest.mark.parametrize(("total", "block"), [(16 * GIB, 64 * MIB), (4 * GIB, 32 * MIB)])
def test_one_block_leaves(site: Site, total: int, block: int) -> None:
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
