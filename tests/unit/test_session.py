# SPDX-License-Identifier: Apache-2.0
"""What a hook may say, what becomes of it, and what it is told."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nvshared.errors import ProtocolError
from nvshared.hook import protocol
from nvshared.hook.protocol import Flag, Limits, Memory, Record, Refusal, Type
from nvshared.hook.session import MOST_BYTES, Session
from nvshared.machine.nvml import Sample
from nvshared.scheduler import events
from nvshared.scheduler.actions import Evict, Load, Run, Save, Stop, Yield
from nvshared.scheduler.actions import Limits as LimitsOrder
from nvshared.sharing.manager import Manager
from nvshared.units import GIB
from tests.unit.scripted import DEFAULTS, FACTS, Scripted, Time, peer, script

HELLO = Record(Type.HELLO, uuid=FACTS.uuid_bytes)
FIGURES = Memory(6, 5, 4, 3, 2, 1)
SAME = events.Memory(6, 5, 4, 3, 2, 1)


class Wire:
    """A connection that keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[Record] = []
        self.finished = False

    def send(self, packet: bytes) -> None:
        self.sent.append(protocol.decode(packet))

    def finish(self) -> None:
        self.finished = True


class Hook:
    """The other side."""

    def __init__(self, manager: Manager, refusal: Refusal | None = None) -> None:
        self.wire = Wire()
        self.session = Session(manager, peer(), self.wire, refusal)

    def says(self, record: Record) -> None:
        self.session.received(protocol.encode(record))


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> Manager:
    script(monkeypatch)
    time = Time()
    made = Manager(lambda: DEFAULTS, time.clock, time.timer)
    made.add(FACTS, Sample(memory_used=0), gather=False)
    return made


@pytest.fixture
def hook(manager: Manager) -> Hook:
    made = Hook(manager)
    made.says(HELLO)
    made.wire.sent.clear()
    Scripted.latest.events.clear()
    return made


def test_hello_is_welcomed_before_anything_else(manager: Manager) -> None:
    hook = Hook(manager)
    Scripted.latest.decide = lambda _: [Load(1, 1, GIB, 0), Run(1, 5, False)]
    flags = Flag.RUNNING | Flag.WANTS
    hook.says(replace(HELLO, flags=flags, bytes=77, memory=FIGURES))
    assert Scripted.latest.events == [events.Joined(1, SAME, True, True, 77)]
    assert [record.type for record in hook.wire.sent] == [Type.WELCOME, Type.LOAD, Type.RUN]
    limits = hook.wire.sent[0].limits
    assert limits == Limits(GIB, 2 * GIB, FACTS.memory_total, 128 << 20)


def test_orders_become_records(hook: Hook) -> None:
    for order in (
        Run(1, 9, True, 6), Run(1, 0, False), Stop(1), Evict(1, 3, GIB, 4), Load(1, 5, GIB, 6),
        LimitsOrder(1, 7, 1, 2, GIB, 3), Run(1, 9, True, 6, watched=True),
        Evict(1, 8, GIB, 4, ahead=True), Load(1, 9, GIB, 6, ahead=True), Yield(1, 9),
        Save(1, 10, GIB, 6), Run(1, 0, False, 7, watched=True, coveted=True),
    ):
        hook.session.order(order)
    assert hook.wire.sent == [
        Record(Type.RUN, flags=Flag.CONTENDED, bytes=9, microseconds=6),
        Record(Type.RUN),
        Record(Type.STOP),
        Record(Type.EVICT, number=3, bytes=GIB, host=4),
        Record(Type.LOAD, number=5, bytes=GIB, host=6),
        Record(Type.LIMITS, number=7, limits=Limits(1, 2, GIB, 16 << 20, 3)),
        Record(Type.RUN, flags=Flag.CONTENDED | Flag.WATCHED, bytes=9, microseconds=6),
        Record(Type.EVICT, flags=Flag.AHEAD, number=8, bytes=GIB, host=4),
        Record(Type.LOAD, flags=Flag.AHEAD, number=9, bytes=GIB, host=6),
        Record(Type.YIELD, number=9),
        Record(Type.SAVE, flags=Flag.AHEAD, number=10, bytes=GIB, host=6),
        Record(Type.RUN, flags=Flag.WATCHED | Flag.COVETED, microseconds=7),
    ]


@pytest.mark.parametrize(("record", "event"), [
    (Record(Type.WANT), events.Wanted(1, SAME)),
    (Record(Type.IDLE), events.WentIdle(1, SAME)),
    (Record(Type.MEMORY), events.MemoryChanged(1, SAME, False)),
    (Record(Type.MEMORY, flags=Flag.WANTS), events.MemoryChanged(1, SAME, True)),
    (Record(Type.ROOM, bytes=8), events.RoomNeeded(1, SAME, 8)),
    (Record(Type.COMMIT, number=2, bytes=8), events.CommitAsked(1, SAME, 2, 8)),
    (Record(Type.COMMIT, number=2, bytes=8, host=3), events.CommitAsked(1, SAME, 2, 8, 3)),
    (Record(Type.BEYOND, number=2, host=9), events.BeyondAsked(1, replace(SAME, beyond=9), 2)),
    (Record(Type.MEMORY, host=9), events.MemoryChanged(1, replace(SAME, beyond=9), False)),
    (Record(Type.COPYING, flags=Flag.INWARD), events.Copying(1, SAME, True, False)),
    (Record(Type.COPYING, flags=Flag.OUTWARD), events.Copying(1, SAME, False, True)),
    (Record(Type.COPYING), events.Copying(1, SAME, False, False)),
])
def test_records_become_events(hook: Hook, record: Record, event: events.Event) -> None:
    hook.says(replace(record, memory=FIGURES))
    assert Scripted.latest.events == [event]


def test_what_it_holds_beyond_the_card_is_known_when_it_asks_for_more(hook: Hook) -> None:
    hook.says(Record(Type.MEMORY, memory=FIGURES, host=9))
    hook.says(Record(Type.COMMIT, number=2, bytes=8, host=3, memory=FIGURES))
    assert Scripted.latest.events[-1] == events.CommitAsked(1, replace(SAME, beyond=9), 2, 8, 3)


@pytest.mark.parametrize(("order", "record", "event"), [
    (Stop(1), Record(Type.STOPPED, flags=Flag.WANTS, bytes=9), events.Stopped(1, SAME, True, 9)),
    (Stop(1), Record(Type.REOPENED), events.Reopened(1, SAME)),
    (Evict(1, 3, 0, 0), Record(Type.EVICTED, Flag.NO_HOST_MEMORY, 3, 8, 0, 7),
     events.Evicted(1, SAME, 3, 8, 7, True, False)),
    (Evict(1, 3, 0, 0), Record(Type.EVICTED, Flag.DRIVER_ERROR, 3, 8, 0, 7),
     events.Evicted(1, SAME, 3, 8, 7, False, True)),
    (Load(1, 3, 0, 0), Record(Type.LOADED, Flag.NO_DEVICE_MEMORY, 3, 8, 0, 7),
     events.Loaded(1, SAME, 3, 8, 7, True, False)),
    (Load(1, 3, 0, 0), Record(Type.LOADED, Flag.DRIVER_ERROR, 3, 8, 0, 7),
     events.Loaded(1, SAME, 3, 8, 7, False, True)),
    (Evict(1, 3, 0, 0, ahead=True), Record(Type.EVICTED, Flag.YIELDED, 3, 8, 0, 7),
     events.Evicted(1, SAME, 3, 8, 7, yielded=True)),
    (Load(1, 3, 0, 0, ahead=True), Record(Type.LOADED, Flag.YIELDED, 3, 8, 0, 7),
     events.Loaded(1, SAME, 3, 8, 7, yielded=True)),
    (Save(1, 3, 0, 0), Record(Type.SAVED, Flag.YIELDED, 3, 8, 0, 7),
     events.Saved(1, SAME, 3, 8, 7, yielded=True)),
    (Save(1, 3, 0, 0), Record(Type.SAVED, Flag.NO_HOST_MEMORY | Flag.DRIVER_ERROR, 3, 8, 0, 7),
     events.Saved(1, SAME, 3, 8, 7, True, True)),
])
def test_an_answer_is_taken_once_and_only_when_it_was_asked_for(
    hook: Hook, order: Stop | Evict | Load | Save, record: Record, event: events.Event
) -> None:
    answer = replace(record, memory=FIGURES)
    with pytest.raises(ProtocolError):
        hook.says(answer)
    hook.session.order(order)
    hook.says(answer)
    assert Scripted.latest.events == [event]
    with pytest.raises(ProtocolError):
        hook.says(answer)


@pytest.mark.parametrize(("record", "sentence"), [
    (HELLO, "a second HELLO came"),
    (Record(Type.RUN), "a RUN came, which only the daemon may send"),
    (Record(Type.STOPPED), "a STOPPED came, and no STOP was open"),
    (Record(Type.LOADED, number=4),
     "a LOADED with the number 4 came, which nobody asked for"),
    (Record(Type.WANT, memory=Memory(resident=64 * GIB, pinned=1)),
     "it claims to hold 68719476737 bytes of a card of 68719476736"),
    (Record(Type.WANT, memory=Memory(host=1 << 60)),
     "1152921504606846976 bytes is more than any machine has"),
    (Record(Type.WANT, host=1 << 60),
     "1152921504606846976 bytes is more than any machine has"),
])
def test_nonsense_gets_a_sentence_and_reaches_no_scheduler(
    hook: Hook, record: Record, sentence: str
) -> None:
    with pytest.raises(ProtocolError) as caught:
        hook.says(record)
    assert str(caught.value) == sentence
    assert Scripted.latest.events == []


def test_an_answer_says_nothing_that_no_machine_can_do(hook: Hook) -> None:
    hook.session.order(Evict(1, 3, 0, 0))
    with pytest.raises(ProtocolError, match="18446744073709551615 bytes is more than any machine"):
        hook.says(Record(Type.EVICTED, number=3, bytes=(1 << 64) - 1))


LIE = 1 << 56
CARD = FACTS.memory_total


@pytest.mark.parametrize(("said", "to_pin", "known"), [
    (Memory(allocated=LIE), 0, events.Memory(allocated=CARD)),
    (Memory(pending=LIE), 0, events.Memory(pending=CARD)),
    (Memory(), LIE, events.Memory(to_pin=CARD)),
    (Memory(LIE, GIB, GIB, LIE, LIE), LIE,
     events.Memory(CARD - GIB, GIB, GIB, 0, CARD, to_pin=CARD - GIB)),
    (Memory(GIB, GIB, GIB, LIE), LIE, events.Memory(GIB, GIB, GIB, CARD - 2 * GIB, to_pin=GIB)),
])
def test_what_nobody_can_have_is_not_believed(
    hook: Hook, said: Memory, to_pin: int, known: events.Memory
) -> None:
    hook.says(Record(Type.MEMORY, memory=said, to_pin=to_pin))
    assert Scripted.latest.events == [events.MemoryChanged(1, known)]


def test_nobody_was_promised_more_than_the_card(manager: Manager) -> None:
    hook = Hook(manager)
    hook.says(replace(HELLO, bytes=LIE))
    assert Scripted.latest.events == [events.Joined(1, events.Memory(), False, False, CARD)]


@pytest.mark.parametrize("absurd", [1 << 57, (1 << 64) - 1])
def test_a_program_may_ask_for_more_than_there_can_be(hook: Hook, absurd: int) -> None:
    hook.says(Record(Type.COMMIT, number=3, bytes=absurd, host=absurd, memory=FIGURES))
    hook.says(Record(Type.ROOM, bytes=absurd, memory=replace(FIGURES, pending=absurd)))
    asked, needed = Scripted.latest.events
    assert asked == events.CommitAsked(1, SAME, 3, MOST_BYTES, MOST_BYTES)
    assert needed == events.RoomNeeded(1, replace(SAME, pending=CARD - 10), CARD)


def test_a_connection_taken_over_counts_from_the_hello_that_was_asked_for(
    manager: Manager
) -> None:
    hook = Hook(manager)
    hook.session.take_over(7)
    assert hook.wire.sent == [Record(Type.INTRODUCE, number=7)]
    for old in (
        HELLO, replace(HELLO, number=6), Record(Type.STOPPED), Record(Type.EVICTED, number=3),
        Record(Type.COMMIT, number=4, bytes=GIB),
    ):
        hook.says(old)
    assert Scripted.latest.events == [events.Awaited(anybody=True)]
    hook.says(replace(HELLO, number=7, flags=Flag.RUNNING, bytes=5, memory=FIGURES))
    assert Scripted.latest.events[1:] == [
        events.Joined(1, SAME, True, False, 5), events.Awaited(anybody=False),
    ]
    assert hook.wire.sent[1].type is Type.WELCOME
    with pytest.raises(ProtocolError, match="a second HELLO came"):
        hook.says(replace(HELLO, number=7))


def test_nothing_comes_before_hello(manager: Manager) -> None:
    with pytest.raises(ProtocolError, match="a WANT came before HELLO"):
        Hook(manager).says(Record(Type.WANT))


@pytest.mark.parametrize(("record", "decided", "why"), [
    (replace(HELLO, version=2), None, Refusal.VERSION),
    (replace(HELLO, uuid=bytes(16)), None, Refusal.NO_SUCH_GPU),
    (HELLO, Refusal.TOO_MANY_CLIENTS, Refusal.TOO_MANY_CLIENTS),
])
def test_who_is_refused_is_told_why_and_not_listened_to(
    manager: Manager, record: Record, decided: Refusal | None, why: Refusal
) -> None:
    hook = Hook(manager, decided)
    hook.says(record)
    assert hook.wire.sent == [Record(Type.REFUSED, flags=why)]
    assert hook.wire.finished
    hook.says(Record(Type.WANT))
    hook.session.ended()
    assert Scripted.latest.events == []


def test_a_lost_card_is_no_card(manager: Manager) -> None:
    manager.gpus[0].lose("gone")
    hook = Hook(manager)
    hook.says(HELLO)
    assert hook.wire.sent == [Record(Type.REFUSED, flags=Refusal.NO_SUCH_GPU)]


def test_the_end_of_a_connection_is_told_once(hook: Hook, manager: Manager) -> None:
    hook.session.ended()
    hook.session.ended()
    assert Scripted.latest.events == [events.Left(1)]
    assert not list(manager.clients)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(packets=st.lists(st.one_of(
    st.binary(max_size=120),
    st.builds(
        lambda kind, flags, number, size: protocol.encode(
            Record(kind, flags=flags, number=number, bytes=size)
        ),
        st.sampled_from(Type), st.integers(0, 63), st.integers(0, 3), st.integers(0, 2**64 - 1),
    ),
)))
def test_whatever_comes_only_ends_that_connection(manager: Manager, packets: list[bytes]) -> None:
    hook = Hook(manager)
    hook.says(HELLO)
    for packet in packets:
        try:
            hook.session.received(packet)
        except ProtocolError:
            break
    hook.session.ended()
    assert isinstance(Scripted.latest.events[-1], events.Left)
    assert not list(manager.clients)
