# SPDX-License-Identifier: Apache-2.0
"""A framework is asked to give back what it has cached, and asked at no wrong moment.

PyTorch itself does not run on a simulated card. What stands in for it here is a caching allocator
in Python over the driver's functions, under the names that the library looks for; the real ones
are in tests/gpu. Daemon is played by the test, so that each order comes when it is meant to.
"""

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nvshared.protocol import Flag, Limits, Record, Type, decode, encode
from tests.integration.conftest import MIB, Site
from tests.integration.fakehook import PATIENCE
from tests.integration.test_own_memory import Program

ROOM = 900 * MIB
FOR_EVER = 3600 * 10**6                 # microseconds without work until a program counts as idle
WANTED = {"NVSHARE_TRIM_CACHES": "1"}

STAND_IN = '''
import types
class Caching:
    """Blocks that are freed are kept, for the next that want just as much."""
    def __init__(self):
        self.sizes, self.kept = {}, []
        self.asked = self.emptied = 0
    def take(self, size, value):
        for address in self.kept:
            if self.sizes[address] == size:
                self.kept.remove(address)
                break
        else:
            memory = c_uint64()
            call("cuMemAlloc_v2", byref(memory), size)
            address = memory.value
            self.sizes[address] = size
        call("cuMemsetD8_v2", address, value, size)
        return address
    def give(self, address):
        self.kept.append(address)
    def figures(self, device):
        assert device == 0
        self.asked += 1
        bytes = {"reserved_bytes": sum(self.sizes.values()),
                 "active_bytes": sum(self.sizes.values()) - sum(map(self.sizes.get, self.kept)),
                 "inactive_split_bytes": 0}
        return {name: {"all": {"current": value}} for name, value in bytes.items()}
    def empty(self):
        self.emptied += 1
        while self.kept:
            address = self.kept.pop()
            call("cuMemFree_v2", address)
            del self.sizes[address]
caching = Caching()
def module(name, **content):
    sys.modules[name] = types.ModuleType(name)
    vars(sys.modules[name]).update(content)
module("torch")
module("torch.cuda", _initialized=True)
module("torch._C", _cuda_memoryStats=lambda device: caching.figures(device),
       _cuda_emptyCache=lambda: caching.empty())
def report():
    "Once the test says so, and Python has come to what it was asked."
    sys.stdin.readline()
    for _ in range(1000):
        pass
    print(json.dumps([caching.asked, caching.emptied]), flush=True)
kept, cached = caching.take(100 * MIB, 3), caching.take(400 * MIB, 4)
caching.give(cached)
'''


class Daemon:
    """What a daemon says to its one program."""

    def __init__(self, site: Site) -> None:
        site.socket.parent.mkdir()
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(str(site.socket))
        self.listener.listen()
        self.listener.settimeout(PATIENCE)
        self.connection: socket.socket | None = None
        self.number = 0

    def close(self) -> None:
        """Whatever has come of it."""
        self.listener.close()
        if self.connection is not None:
            self.connection.close()

    def order(self, kind: Type, **what: Any) -> None:
        assert self.connection is not None
        self.connection.send(encode(Record(kind, **what)))

    def hear(self, kind: Type, number: int = 0) -> Record:
        """The next of this kind; what is said besides needs no answer."""
        assert self.connection is not None
        while True:
            said = decode(self.connection.recv(4096))
            if said.type is kind and said.number == number:
                return said

    def welcome(self) -> None:
        """Lets the program have the card for itself."""
        self.connection, _ = self.listener.accept()
        self.connection.settimeout(PATIENCE)
        self.hear(Type.HELLO)
        self.order(Type.WELCOME, limits=Limits(ROOM, ROOM, ROOM, 32 * MIB))
        self.load()
        self.run()

    def run(self, contended: bool = False, idle_window: int = FOR_EVER) -> None:
        """And returns when it knows."""
        flags = Flag.CONTENDED if contended else Flag(0)
        self.order(Type.RUN, flags=flags, microseconds=idle_window)
        self.settle()

    def settle(self) -> None:
        """Until everything that was ordered has had its effect."""
        self.number += 1
        self.order(Type.INTRODUCE, number=self.number)
        self.hear(Type.HELLO, self.number)

    def stop(self) -> None:
        self.order(Type.STOP)
        self.hear(Type.STOPPED)

    def evict(self, room: int = 0) -> int:
        """How many bytes were copied."""
        self.number += 1
        self.order(Type.EVICT, number=self.number, bytes=room, host=ROOM)
        return self.hear(Type.EVICTED, self.number).bytes

    def load(self) -> int:
        """How many bytes have come in."""
        self.number += 1
        self.order(Type.LOAD, number=self.number, bytes=ROOM, host=ROOM)
        return self.hear(Type.LOADED, self.number).bytes


@pytest.fixture
def daemon(site: Site) -> Iterator[Daemon]:
    site.environment = {**site.environment, **WANTED}
    made = Daemon(site)
    yield made
    made.close()


Start = Callable[..., Program]


@pytest.fixture
def start(site: Site, daemon: Daemon) -> Start:
    """A program whose framework has 400 MiB cached, and 100 in use."""

    def begin(body: str) -> Program:
        program = Program(site, STAND_IN + body)
        daemon.welcome()
        return program

    return begin


def counted(program: Program) -> Any:
    """How often it was asked what it could give back, and to do so."""
    program.go_on()
    return program.hears()


FOUR_REPORTS = "for _ in range(4): report()"


def test_it_gives_back_once_others_wait_and_not_before(start: Start, daemon: Daemon) -> None:
    program = start(FOUR_REPORTS + "\nassert get(kept, 100 * MIB) == bytes([3]) * (100 * MIB)")
    assert counted(program) == [0, 0]
    daemon.run(contended=True)
    assert counted(program) == [1, 1]
    daemon.settle()
    assert counted(program) == [1, 1]
    daemon.run()
    daemon.run(contended=True)          # there is nothing left
    assert counted(program) == [2, 1]
    program.ends_well()


def test_nothing_is_asked_without_the_variable(
        site: Site, start: Start, daemon: Daemon) -> None:
    del site.environment["NVSHARE_TRIM_CACHES"]
    program = start(FOUR_REPORTS)
    for _ in range(4):
        daemon.run(contended=True)
        assert counted(program) == [0, 0]
        daemon.run()
    program.ends_well()
