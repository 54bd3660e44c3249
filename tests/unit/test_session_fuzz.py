# SPDX-License-Identifier: Apache-2.0
"""Sessions with arbitrary bytes, records and figures against the real scheduler: the daemon keeps
running, and two clients that follow the protocol get their turns and never too much memory.
"""


import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from nvshared.errors import ProtocolError
from nvshared.hook import packets, protocol
from nvshared.hook.packets import BEGIN
from nvshared.hook.protocol import Flag, ReportRecord, Type
from nvshared.hook.session import MOST_BYTES, Session
from nvshared.machine.nvml import Sample
from nvshared.scheduler.events import Memory
from nvshared.sharing.manager import Manager
from nvshared.units import GIB, SECOND
from tests.records import encode_report
from tests.unit.scripted import DEFAULTS, FACTS, OTHER, Time, peer
from tests.unit.sessionhook import SessionHook, Wire

CARD = FACTS.memory_total
LARGE = 40 * GIB                        # bytes of a client; two such clients do not fit
ORDERS = 30                             # about the number of orders of a hand-over

sizes = st.one_of(
    st.integers(0, CARD),
    st.sampled_from([0, 1, 4096, GIB, CARD // 2, CARD, CARD + 1, MOST_BYTES, MOST_BYTES + 1,
                     (1 << 64) - 1]),
)
possible = st.one_of(st.just(Memory()), st.builds(
    lambda allocated, resident, pinned, pending, host: Memory(
        allocated, resident % (CARD // 2), pinned % (CARD // 2), pending, resident + pinned, host
    ), *[st.integers(0, 2 * CARD)] * 5,
))
figures = st.one_of(possible, possible, possible, st.builds(Memory, *[sizes] * 9))
PATIENCE = 3600                         # seconds of the daemon's time


def _flags_of(version: int, said: int) -> int:
    """The flags for which messages of the version have bits: 16 before version 3."""
    return said if version == protocol.VERSION else said & 0xffff


flags = st.integers(0, (1 << 16) - 1) | st.builds(int, st.sampled_from(Flag))
kinds = st.sampled_from([kind for kind in Type if kind > Type.HELLO])


@settings(max_examples=300)
@given(packet=st.binary(max_size=2 * packets.SIZE) | st.binary(
    min_size=packets.SIZE, max_size=packets.SIZE
) | st.builds(
    lambda kind, head, rest: BEGIN.pack(kind, protocol.VERSION) + head + struct.pack(
        "<I", packets.HEAD + len(rest)) + bytes(4) + rest,
    st.integers(0, 80), st.binary(min_size=12, max_size=12),
    st.binary(max_size=packets.LONGEST - packets.HEAD),
) | st.builds(
    lambda kind, version, rest: bytes([kind, 0, version, 0]) + rest,
    st.integers(0, 80), st.integers(0, 3),
    st.binary(min_size=packets.SIZE - 4, max_size=packets.SIZE - 4),
))
def test_packet_of_any_bytes_is_decoded_or_refused(packet: bytes) -> None:
    try:
        report = packets.decode_report(packet)
    except ProtocolError:
        return
    assert packets.decode_report(encode_report(report)) == report


class Liar:
    def __init__(self, manager: Manager, pid: int) -> None:
        self.wire = Wire(100)           # the client reads nothing
        self.session = Session(manager, peer(pid), self.wire)
        self.ended = False

    def say(self, packet: bytes) -> None:
        if self.ended:
            return
        try:
            self.session.received(packets.decode_report(packet))
        except ProtocolError:
            self.end()

    def end(self) -> None:
        self.ended = True
        for _ in range(2):              # as when both its process and its socket end
            self.session.ended()

    def numbers(self) -> list[int]:
        """Numbers of the orders sent to this client, and three more numbers."""
        return [order.number for order in self.wire.orders] + [0, 1, (1 << 64) - 1]


class Honest(SessionHook):
    """A client that obeys all orders, and yields to waiting clients."""

    @property
    def promised(self) -> int:
        """Bytes of the client's room, its open LOAD orders included."""
        loads = [order.room for order in self.wire.orders if order.type is Type.LOAD]
        return max([self.memory.room, *loads])

    def do(self) -> None:
        if self.wire.packets:
            order = self.hear()
            self.obey(order)
            if order.type is Type.RUN and self.running and self.paced:
                self.say(Type.IDLE)


class Liars(RuleBasedStateMachine):
    liars: "Bundle[Liar]" = Bundle("liars")

    @initialize()
    def begin(self) -> None:
        self.time = Time()
        self.manager = Manager(lambda: DEFAULTS, self.time.clock, self.time.timer)
        # A liar may claim to be parked. No event loop runs here, and no process could be restored.
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr("nvshared.sharing.moving.start_task", lambda _tasks, work: work.close())
        self.gpu = self.manager.add(FACTS, Sample(memory_used=0), gather=False)
        self.manager.add(OTHER, Sample(memory_used=0), gather=False)
        self.all: list[Liar] = []
        self.honest = [Honest(self.manager, self.gpu, peer(pid)) for pid in (1, 2)]
        for hook in self.honest:
            assert hook.hello() is not None
            assert hook.allocate(LARGE)
            hook.want()
        self.settle()

    def settle(self) -> None:
        for _ in range(ORDERS):         # the honest clients take turns
            for hook in self.honest:
                hook.do()
            self.time.pass_by(SECOND // 1000)

    @rule(target=liars)
    def connect(self) -> Liar:
        self.all.append(Liar(self.manager, 100 + len(self.all)))
        return self.all[-1]

    @rule(liar=liars, memory=figures, said=flags, commit=sizes, other=st.booleans(),
          version=st.sampled_from([protocol.VERSION, protocol.OLDEST] * 2 + [1]))
    def hello(self, liar: Liar, memory: Memory, said: int, commit: int, other: bool,
              version: int) -> None:
        uuid = OTHER.uuid_bytes if other else FACTS.uuid_bytes
        said = _flags_of(version, said)
        liar.say(encode_report(ReportRecord(Type.HELLO, said, memory=memory, uuid=uuid,
                                            commit=commit, version=version)))

    @rule(liar=liars, kind=kinds, memory=figures, said=flags, size=sizes,
          number=st.integers(0, 1 << 16), times=st.integers(1, 3),
          version=st.sampled_from([protocol.VERSION, protocol.OLDEST]))
    def say(self, liar: Liar, kind: Type, memory: Memory, said: int, size: int, number: int,
            times: int, version: int) -> None:
        known, said = liar.numbers(), _flags_of(version, said)
        for _ in range(times):
            liar.say(encode_report(ReportRecord(kind, said, known[number % len(known)], memory,
                                                wanted=size, pins=size, moved=size, took=size,
                                                dirty=size, error=size, park=size, used=size,
                                                version=version)))

    @rule(liar=liars, packet=st.binary(max_size=2 * packets.SIZE))
    def noise(self, liar: Liar, packet: bytes) -> None:
        liar.say(packet)

    @rule(liar=liars)
    def leave(self, liar: Liar) -> None:
        liar.end()

    @rule(milliseconds=st.integers(1, 100_000))
    def wait(self, milliseconds: int) -> None:
        self.time.pass_by(milliseconds * 1000)

    @rule()
    def play(self) -> None:
        self.settle()

    @invariant()
    def all_is_well(self) -> None:
        for gpu in self.manager.gpus:
            assert not gpu.lost
            assert gpu.decides()
            snapshot = gpu.snapshot()
            assert set(snapshot.clients) == set(gpu.clients)
            assert set(snapshot.holders) <= set(gpu.clients)
            assert set(snapshot.waits) <= set(gpu.clients)
        for hook in self.honest:
            assert hook.session.client in self.gpu.clients.values()
            assert hook.memory.resident <= hook.memory.room
        assert sum(hook.promised for hook in self.honest) <= CARD
        for liar in self.all:
            known = any(one is liar.session.client for one in self.manager.clients)
            assert known is (not liar.ended and liar.session.client is not None)

    def teardown(self) -> None:
        """Check that both honest clients get turns when all others have disconnected.

        A client that has used more time waits until the other has used as much.
        """
        for liar in self.all:
            liar.end()
        self.patch.undo()
        self.time.pass_by(SECOND)
        had_turns: set[int] = set()
        for _ in range(PATIENCE * 10):
            for number, hook in enumerate(self.honest):
                hook.do()
                if hook.running:
                    had_turns.add(number)
            if len(had_turns) == len(self.honest):
                return
            self.time.pass_by(SECOND // 10)
        raise AssertionError(f"only {had_turns} ever had a turn again")


TestLiars = pytest.mark.long(Liars.TestCase)
TestLiars.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
