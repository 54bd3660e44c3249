# SPDX-License-Identifier: Apache-2.0
"""Records that a hook may send, the events they become, and the orders it receives."""

import asyncio
import errno
import mmap
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nvshared.errors import NvshareError, ProtocolError
from nvshared.hook import session
from nvshared.hook.packets import decode_report
from nvshared.hook.protocol import (
    OLDEST,
    VERSION,
    Flag,
    OrderRecord,
    Park,
    Refusal,
    ReportRecord,
    Type,
    Wait,
)
from nvshared.hook.session import MOST_BYTES, ParkedHook, Session
from nvshared.machine.nvml import Sample
from nvshared.machine.peer import Peer
from nvshared.scheduler import actions, events
from nvshared.scheduler.actions import (
    ClientState,
    Evict,
    Limits,
    Load,
    MoveOrder,
    Order,
    Publish,
    Run,
    Stop,
    Watch,
    Writeback,
    Yield,
)
from nvshared.scheduler.card import HELLO_PATIENCE
from nvshared.scheduler.events import Memory, Priority, Terms
from nvshared.scheduler.snapshot import CardState, Forecast
from nvshared.sharing.gpu import Client
from nvshared.sharing.manager import Manager
from nvshared.terms import TERMS
from nvshared.units import GIB, MIB, SECOND
from tests.records import encode_report
from tests.unit.scripted import DEFAULTS, FACTS, Scripted, Time, Wire, joined, peer, script

HELLO = ReportRecord(Type.HELLO, uuid=FACTS.uuid_bytes)
OTHER = replace(FACTS, index=1, uuid=FACTS.uuid[:-1] + "e")
FIGURES = Memory(6, 5, 4, 3, 2, 1, 9, 8, 6)
FIRST = replace(FIGURES, answered=0, to_pin=0)  # HELLO has neither `answered` nor `to_pin`
TENANTS = ("user:0",)                 # tenants of the test's process


class Hook:
    """A hook at the other end of a session."""

    def __init__(self, manager: Manager) -> None:
        self.wire = Wire()
        self.session = Session(manager, peer(uid=0), self.wire)

    def is_told(self, order: Order) -> None:
        orders = [order]
        Scripted.latest.decide = lambda _: [orders.pop()] if orders else []
        assert self.session.client is not None
        self.session.client.gpu.tell(events.Tick())
        Scripted.latest.decide = lambda _: []
        Scripted.latest.events.clear()

    def says(self, record: ReportRecord) -> None:
        self.session.received(decode_report(encode_report(record)))


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch, time: Time) -> Manager:
    script(monkeypatch)
    made = Manager(lambda: DEFAULTS, time.clock, time.timer)
    made.add(FACTS, Sample(memory_used=0), gather=False)
    return made


@pytest.mark.parametrize(("given", "in_force"), [
    (dict(memory_limit=8 << 30), Terms(8 << 30)),
    (dict(compute_limit=40, weight=30, priority=1),
     Terms(compute_limit=40, weight=30, priority=Priority.BACKGROUND)),
    (dict(weight=1000, priority=3), Terms()),     # not more than the administrator gives
])
@pytest.mark.parametrize("restarted", [False, True])
def test_client_starts_with_the_terms_of_its_environment_unless_the_administrators_are_stricter(
        manager: Manager, given: dict[str, Any], in_force: Terms, restarted: bool) -> None:
    made = Hook(manager)
    if restarted:
        made.session.take_over()
    made.says(ReportRecord(Type.GANG, **given))
    made.says(replace(HELLO, number=made.wire.sent[0].number if restarted else 0))
    client = made.session.client
    assert client is not None
    assert client.terms.in_force == in_force
    (joined,) = [one for one in Scripted.latest.events if isinstance(one, events.Joined)]
    assert joined.own == in_force       # before the first LIMITS, by which programs size themselves
    manager.set_term(client.id, TERMS["memory-limit"], 4 << 30)
    assert client.terms.in_force == replace(in_force, memory_limit=4 << 30)
    with pytest.raises(ProtocolError, match="a GANG came after HELLO"):
        made.says(ReportRecord(Type.GANG, **given))


@pytest.mark.parametrize("wrong", [
    dict(compute_limit=101), dict(weight=1001), dict(priority=4)])
def test_client_that_gives_itself_impossible_terms_loses_its_connection(
        manager: Manager, wrong: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError, match="it gives itself impossible terms"):
        Hook(manager).says(ReportRecord(Type.GANG, **wrong))


@pytest.fixture
def hook(manager: Manager) -> Hook:
    made = Hook(manager)
    made.says(HELLO)
    made.wire.sent.clear()
    Scripted.latest.events.clear()
    return made


@pytest.mark.parametrize(("record", "found"), [
    (ReportRecord(Type.NAME, text=" tr\x1bain\u202e "), ("tr?ain?", "", 0)),
    (ReportRecord(Type.GANG, text="a1:4"), ("python", "a1", 4)),
    (ReportRecord(Type.GANG, text="a1:"), ("python", "a1", 0)),
    (ReportRecord(Type.GANG, text="ours"), ("python", "ours", 0)),
    (ReportRecord(Type.GANG, text="x:y:2"), ("python", "x:y", 2)),
    (ReportRecord(Type.GANG), ("python", "", 0)),
], ids=["name", "gang of 4", "empty size", "gang", "colon in the gang", "no gang"])
@pytest.mark.parametrize("restarted", [False, True])
def test_client_has_the_name_and_gang_that_the_library_sent_before_hello(
        manager: Manager, record: ReportRecord, found: tuple[str, str, int],
        restarted: bool) -> None:
    made = Hook(manager)
    with pytest.raises(ProtocolError, match="a MEMORY came before HELLO"):
        Hook(manager).says(ReportRecord(Type.MEMORY))
    if restarted:
        made.session.take_over()
    made.says(record)
    made.says(replace(HELLO, number=made.wire.sent[0].number if restarted else 0))
    client = made.session.client
    assert client is not None
    assert (client.name, client.peer.gang, client.peer.gang_size) == found
    assert str(client) == f"{found[0]}[{client.peer.pid}]"
    assert client.peer.name == "python"                 # the process name from the kernel stays
    with pytest.raises(ProtocolError, match=f"a {record.type.name} came after HELLO"):
        made.says(record)


def test_hello_is_answered_by_a_limits_order_before_other_orders(manager: Manager) -> None:
    hook = Hook(manager)
    Scripted.latest.decide = lambda _: [Load(1, 1, GIB, 0), Run(1)]
    flags = Flag.RUNNING | Flag.WANTS
    hook.says(replace(HELLO, flags=flags, commit=77, context=2, memory=FIGURES))
    assert Scripted.latest.events == [events.Joined(1, FIRST, True, True, 77, tenants=TENANTS)]
    assert [record.type for record in hook.wire.sent] == [Type.LIMITS, Type.LOAD, Type.RUN]
    assert hook.wire.sent[0] == OrderRecord(
        Type.LIMITS, commit=GIB, most=2 * GIB, total=FACTS.memory_total, host_slab=128 << 20)


def test_session_encodes_each_order_as_a_record(hook: Hook) -> None:
    for order in (
        Run(1, True, True, False, 6), Run(1), Stop(1), Evict(1, 3, GIB, 4), Load(1, 5, GIB, 6),
        Limits(1, 7, 1, 2, GIB, 3), Run(1, True, True, True, 6),
        Evict(1, 8, GIB, 4, ahead=True), Load(1, 9, GIB, 6, ahead=True), Yield(1, 9),
        Writeback(1, 10, 7, 6, True, size=GIB),
        Run(1, False, True, True, 7, report_busy=True, step=True, step_pause=9),
    ):
        hook.session.order(order)
    assert hook.wire.sent == [
        OrderRecord(Type.RUN, Flag.PACE | Flag.REPORT_IDLE, idle_window=6),
        OrderRecord(Type.RUN),
        OrderRecord(Type.STOP),
        OrderRecord(Type.EVICT, number=3, room=GIB, host=4),
        OrderRecord(Type.LOAD, number=5, room=GIB, host=6),
        OrderRecord(
            Type.LIMITS, number=7, commit=1, most=2, total=GIB, host_slab=16 << 20, beyond=3),
        OrderRecord(Type.RUN, Flag.PACE | Flag.REPORT_IDLE | Flag.REPORT_COPIES, idle_window=6),
        OrderRecord(Type.EVICT, Flag.AHEAD, number=8, room=GIB, host=4),
        OrderRecord(Type.LOAD, Flag.AHEAD, number=9, room=GIB, host=6),
        OrderRecord(Type.YIELD, number=9),
        OrderRecord(Type.EVICT, Flag.AHEAD | Flag.KEEP, number=10, room=7, host=6, writeback=GIB),
        OrderRecord(
            Type.RUN, Flag.REPORT_COPIES | Flag.REPORT_IDLE | Flag.REPORT_BUSY | Flag.STEP,
            step_pause=9, idle_window=7)]


@pytest.mark.parametrize(("version", "granted", "commit"), [
    (VERSION, False, 9), (VERSION, True, 9), (OLDEST, False, 7), (OLDEST, True, 9)])
def test_refusal_to_a_hook_of_version_2_lowers_a_larger_commit(
        hook: Hook, version: int, granted: bool, commit: int) -> None:
    """In version 2 each LIMITS with a commit of the requested size is a grant."""
    hook.says(ReportRecord(Type.COMMIT, number=2, wanted=8, pins=3, version=version))
    hook.is_told(Limits(1, 0, 9, 9, GIB))
    hook.is_told(Limits(1, 2, 9, 9, GIB, granted=granted))
    assert [(one.number, one.commit, one.flags) for one in hook.wire.sent] == [
        (0, 9, 0), (2, commit, Flag.GRANTED if granted else 0)]


@pytest.mark.parametrize(("record", "event"), [
    (ReportRecord(Type.IDLE), events.WentIdle(1, FIGURES)),
    (ReportRecord(Type.MEMORY), events.MemoryChanged(1, FIGURES, False)),
    (ReportRecord(Type.MEMORY, flags=Flag.WANTS), events.MemoryChanged(1, FIGURES, True)),
    (ReportRecord(Type.COMMIT, number=2, wanted=8), events.CommitAsked(1, FIGURES, 2, 8)),
    (ReportRecord(Type.COMMIT, number=2, wanted=8, pins=3),
     events.CommitAsked(1, FIGURES, 2, 8, 3)),
    (ReportRecord(Type.COPIES, flags=Flag.INWARD), events.Copies(1, FIGURES, True, False)),
    (ReportRecord(Type.COPIES, flags=Flag.OUTWARD), events.Copies(1, FIGURES, False, True)),
    (ReportRecord(Type.COPIES), events.Copies(1, FIGURES, False, False)),
    (ReportRecord(Type.BUSY), events.Busy(1, FIGURES, False)),
    (ReportRecord(Type.BUSY, flags=Flag.GAPS), events.Busy(1, FIGURES, True)),
])
def test_session_passes_each_record_of_the_library_to_the_scheduler_as_an_event(
        hook: Hook, record: ReportRecord, event: events.Event) -> None:
    hook.says(replace(record, memory=FIGURES))
    assert Scripted.latest.events == [event]


@pytest.mark.parametrize(("state", "position", "waits"), [
    (ClientState.WAITING, 2, (Wait.TURN, 2)), (ClientState.CROWDED, 1, (Wait.ROOM, 1)),
    (ClientState.LOADING, 0, (Wait.MOVES, 0)), (ClientState.LIMITED, 0, (Wait.SHARE, 0)),
    (ClientState.SUSPENDED, 0, (Wait.RESUME, 0)),
])
def test_waiting_report_is_answered_with_reason_and_queue_position(
        hook: Hook, state: ClientState, position: int, waits: tuple[Wait, int]) -> None:
    scheduler = Scripted.latest
    scheduler._clients[1] = replace(scheduler._clients[1], state=state)
    scheduler.waits = {1: Forecast(position, None)} if position else {}
    hook.says(ReportRecord(Type.WAITING, flags=Flag.WANTS, memory=FIGURES))
    assert scheduler.events == [events.MemoryChanged(1, FIGURES, True)]
    assert hook.wire.sent == [OrderRecord(Type.QUEUED, number=waits[1], waits_for=waits[0])]


def moved(flags: Flag) -> ReportRecord:
    return ReportRecord(Type.MOVED, flags, 3, moved=8, took=7)


@pytest.mark.parametrize(("order", "record", "event"), [
    (Stop(1), ReportRecord(Type.STOPPED, flags=Flag.WANTS, took=9),
     events.Stopped(1, FIGURES, True, 9)),
    (Stop(1), ReportRecord(Type.REOPENED), events.Reopened(1, FIGURES)),
    (Evict(1, 3, 0, 0), moved(Flag.NO_MEMORY), events.Evicted(1, FIGURES, 3, 8, 7, True, False)),
    (Evict(1, 3, 0, 0), moved(Flag.DRIVER_ERROR), events.Evicted(1, FIGURES, 3, 8, 7, False, True)),
    (Load(1, 3, 0, 0), moved(Flag.NO_MEMORY), events.Loaded(1, FIGURES, 3, 8, 7, True, False)),
    (Load(1, 3, 0, 0), moved(Flag.DRIVER_ERROR), events.Loaded(1, FIGURES, 3, 8, 7, False, True)),
    (Evict(1, 3, 0, 0, ahead=True), moved(Flag.YIELDED),
     events.Evicted(1, FIGURES, 3, 8, 7, yielded=True)),
    (Load(1, 3, 0, 0, ahead=True), moved(Flag.YIELDED),
     events.Loaded(1, FIGURES, 3, 8, 7, yielded=True)),
    (Writeback(1, 3, 0, 0), moved(Flag.YIELDED),
     events.WrittenBack(1, FIGURES, 3, 8, 7, yielded=True)),
    (Writeback(1, 3, 0, 0), moved(Flag.NO_MEMORY | Flag.DRIVER_ERROR),
     events.WrittenBack(1, FIGURES, 3, 8, 7, True, True)),
])
def test_reply_without_an_order_ends_the_connection(hook: Hook, order: Stop | MoveOrder,
                                               record: ReportRecord, event: events.Event) -> None:
    answer = replace(record, memory=FIGURES)
    with pytest.raises(ProtocolError):
        hook.says(answer)
    hook.is_told(order)
    hook.says(answer)
    assert Scripted.latest.events == [event]
    with pytest.raises(ProtocolError):
        hook.says(answer)


@pytest.mark.parametrize(("record", "sentence"), [
    (HELLO, "a second HELLO came"),
    (ReportRecord(Type.RUN), "a RUN came, which only the daemon may send"),
    (ReportRecord(Type.STOPPED), "a STOPPED came, and no STOP was open"),
    (ReportRecord(Type.MOVED, number=4),
     "a MOVED with the number 4 came, which answers no open order"),
    (ReportRecord(Type.MOVED, number=3, moved=(1 << 64) - 1),
     "18446744073709551615 bytes is more than any machine has"),
    (ReportRecord(Type.MEMORY, memory=Memory(resident=64 * GIB, pinned=1)),
     "it claims to hold 68719476737 bytes of a card of 68719476736"),
    (ReportRecord(Type.MEMORY, memory=Memory(host=1 << 60)),
     "1152921504606846976 bytes is more than any machine has"),
])
def test_malformed_record_is_not_passed_to_the_scheduler(hook: Hook, record: ReportRecord,
                                                         sentence: str) -> None:
    hook.is_told(Evict(1, 3, 0, 0))
    with pytest.raises(ProtocolError) as caught:
        hook.says(record)
    assert str(caught.value) == sentence
    assert Scripted.latest.events == []


STORE = actions.Store(1, 5, 8 * GIB)


def stored(size: int, number: int = 5, error: int = 0) -> ReportRecord:
    """A STORED report: `size` bytes are in the file on disk."""
    return ReportRecord(Type.STORED, number=number, moved=size, error=error)


@pytest.fixture
def disk(manager: Manager, tmp_path: Path) -> Path:
    """A directory that takes swapped memory."""
    manager.disk.use((tmp_path, GIB))
    assert not manager.disk.fault
    return tmp_path


def test_first_store_order_passes_a_descriptor_of_an_unnamed_private_file(
        hook: Hook, disk: Path) -> None:
    hook.is_told(STORE)
    hook.is_told(replace(STORE, number=6, size=0))
    assert [(one.type, one.number, one.file) for one in hook.wire.sent] == [
        (Type.STORE, 5, 8 * GIB), (Type.STORE, 6, 0)]
    (descriptor,) = hook.wire.descriptors
    found = os.fstat(descriptor)
    assert (found.st_mode & 0o7777, found.st_nlink) == (0o600, 0)
    assert os.get_inheritable(descriptor) is False
    assert not [*disk.iterdir()]
    os.close(descriptor)


def test_store_order_of_zero_bytes_is_not_sent_and_the_next_order_passes_the_file(
        hook: Hook, disk: Path) -> None:
    hook.is_told(replace(STORE, size=0))
    assert not hook.wire.sent
    hook.is_told(replace(STORE, number=6))
    (order,) = hook.wire.sent
    assert (order.number, len(hook.wire.descriptors)) == (6, 1)
    os.close(hook.wire.descriptors[0])


def test_store_order_whose_descriptor_was_lost_is_sent_again_with_the_last_size(
        hook: Hook, disk: Path, time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_descriptor: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    hook.is_told(STORE)
    os.close(hook.wire.descriptors.pop())
    hook.wire.sent.clear()
    hook.session.descriptor_lost(Type.WATCH)
    hook.session.descriptor_lost(Type.STORE)
    hook.is_told(replace(STORE, number=6, size=GIB))
    with monkeypatch.context() as patch:
        patch.setattr("nvshared.machine.disk.open_again", refuse)
        time.pass_by(SECOND)
    assert not hook.wire.sent
    time.pass_by(SECOND)
    (order,) = hook.wire.sent
    assert (order.number, order.file, len(hook.wire.descriptors)) == (6, GIB, 1)
    hook.session.ended()
    os.close(hook.wire.descriptors[0])


def test_store_order_without_a_disk_is_not_sent_and_counts_as_failed(hook: Hook) -> None:
    happened: list[events.Event] = []
    assert hook.session.client is not None
    hook.session.client.gpu.happened.connect(lambda _, event: happened.append(event))
    orders = [STORE]
    Scripted.latest.decide = lambda _: [orders.pop()] if orders else []
    hook.session.client.gpu.tell(events.Tick())
    assert not hook.wire.sent
    assert events.Stored(1, Memory(), 5, failed=True) in happened


def test_session_adds_reported_disk_and_borrowed_bytes_to_the_memory_of_later_events(
        hook: Hook, disk: Path) -> None:
    hook.is_told(STORE)
    hook.says(stored(3))
    hook.says(stored(7))
    hook.says(ReportRecord(Type.MEMORY, memory=Memory(host=8)))
    hook.says(stored(7, error=errno.EIO))
    assert Scripted.latest.events == [
        events.Stored(1, Memory(disk=3), 5),
        events.MemoryChanged(1, Memory(host=8, disk=7), wants=False),
        events.Stored(1, Memory(host=8, disk=7), 5, failed=True)]
    Scripted.latest.events.clear()
    hook.says(ReportRecord(Type.BORROWED, moved=5, uuid=OTHER.uuid_bytes))
    assert Scripted.latest.events == []
    hook.says(ReportRecord(Type.MEMORY, memory=Memory(host=8)))
    assert Scripted.latest.events == [
        events.MemoryChanged(1, Memory(host=8, disk=7, borrowed=5), wants=False)]
    with pytest.raises(ProtocolError, match="it claims to have borrowed 5 of 4 bytes"):
        hook.says(ReportRecord(Type.MEMORY, memory=Memory(host=4)))


@pytest.mark.parametrize("size", [8 * GIB + 1, (1 << 64) - 1])
def test_report_of_more_stored_bytes_than_ordered_ends_the_connection(
        hook: Hook, disk: Path, size: int) -> None:
    hook.is_told(STORE)
    hook.says(stored(8 * GIB, number=77, error=(1 << 64) - 1))
    with pytest.raises(ProtocolError, match="and may have 8589934592 there"):
        hook.says(stored(size))


def test_session_adds_disk_bytes_reported_before_hello_to_the_joined_event(
        manager: Manager, disk: Path) -> None:
    made = Hook(manager)
    made.says(stored(1 << 60))
    made.says(HELLO)
    (joined,) = [one for one in Scripted.latest.events if isinstance(one, events.Joined)]
    assert joined.memory.disk == FACTS.memory_total
    made.is_told(STORE)                 # the hook has a file already, so no descriptor is passed
    assert not made.wire.descriptors


def test_swap_file_that_exceeds_the_store_order_is_emptied_and_the_client_dropped(
        hook: Hook, disk: Path, time: Time) -> None:
    hook.is_told(replace(STORE, size=MIB))
    (descriptor,) = hook.wire.descriptors
    os.posix_fallocate(descriptor, 0, 64 * MIB)
    time.pass_by(SECOND)
    assert not hook.wire.dropped
    os.posix_fallocate(descriptor, 0, 80 * MIB)
    time.pass_by(SECOND)
    assert hook.wire.dropped.endswith("and may have 1048576 there")
    assert os.fstat(descriptor).st_blocks == 0
    hook.session.ended()
    os.close(descriptor)


def test_swap_file_size_is_enforced_from_disconnection_until_nobody_has_the_file(
        hook: Hook, disk: Path, time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    hook.session._manager.disk.client_failed.connect(lambda _, words: said.append(words))
    monkeypatch.setattr("nvshared.sharing.disk.SLACK", MIB)
    ended: list[bool] = [False]
    monkeypatch.setattr("nvshared.machine.host.has_ended", lambda pid, started: ended[0])
    hook.is_told(replace(STORE, size=MIB))
    (descriptor,) = hook.wire.descriptors
    hook.session.ended()
    os.posix_fallocate(descriptor, 0, 4 * MIB)
    time.pass_by(SECOND)
    assert os.fstat(descriptor).st_blocks == 0
    ended[0] = True
    time.pass_by(SECOND)
    for _ in range(2):
        os.posix_fallocate(descriptor, 0, MIB)      # no byte is the client's any more
        time.pass_by(SECOND)
        assert os.fstat(descriptor).st_blocks == 0
    assert len(said) == 1
    assert "it has ended, and another process has its file" in said[0]
    os.posix_fallocate(descriptor, 0, MIB)
    with mmap.mmap(descriptor, MIB):                # a mapping is enough to write
        os.close(descriptor)
        time.pass_by(SECOND)
        assert open_files(disk)
    time.pass_by(SECOND)
    assert not open_files(disk)


def open_files(folder: Path) -> list[Path]:
    """Files in a folder that this process has open."""
    found = []
    for one in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):           # of the iteration itself
            found.append(one.readlink())
    return [one for one in found if folder in one.parents]


@pytest.mark.parametrize(("state", "lender"), [
    (CardState.GATHERING, OTHER.uuid), (CardState.IDLE, "")])
def test_borrowed_memory_reported_before_hello_counts_on_the_lending_card_after_a_restart(
        manager: Manager, state: CardState, lender: str) -> None:
    manager.add(OTHER, Sample(memory_used=0), gather=False)
    scheduler = manager.gpus[0].scheduler
    assert isinstance(scheduler, Scripted)
    scheduler.state = state
    made = Hook(manager)
    made.says(ReportRecord(Type.BORROWED, moved=5, uuid=OTHER.uuid_bytes))
    made.says(replace(HELLO, memory=Memory(host=8)))
    (joined,) = [one for one in scheduler.events if isinstance(one, events.Joined)]
    assert (joined.lender, joined.memory.borrowed) == (lender, 5)


LIE = 1 << 56
CARD = FACTS.memory_total


@pytest.mark.parametrize(("said", "known"), [
    (Memory(to_pin=LIE), Memory(to_pin=CARD)),
    (Memory(LIE, GIB, GIB, LIE, LIE, to_pin=LIE),
     Memory(CARD - GIB, GIB, GIB, 0, CARD, to_pin=CARD - GIB)),
    (Memory(GIB, GIB, GIB, LIE, to_pin=LIE), Memory(GIB, GIB, GIB, CARD - 2 * GIB, to_pin=GIB)),
])
def test_reported_memory_figures_beyond_the_memory_of_the_card_are_clamped(
        hook: Hook, said: Memory, known: Memory) -> None:
    hook.says(ReportRecord(Type.MEMORY, memory=said))
    assert Scripted.latest.events == [events.MemoryChanged(1, known)]


@pytest.mark.parametrize("absurd", [1 << 57, (1 << 64) - 1])
def test_commit_beyond_the_memory_of_card_or_machine_is_clamped(
        manager: Manager, absurd: int) -> None:
    hook = Hook(manager)
    hook.says(replace(HELLO, commit=absurd))
    assert Scripted.latest.events == [
        events.Joined(1, Memory(), False, False, CARD, tenants=TENANTS)]
    Scripted.latest.events.clear()
    hook.says(ReportRecord(Type.COMMIT, number=3, wanted=absurd, pins=absurd, memory=FIGURES))
    hook.says(ReportRecord(Type.MEMORY, memory=replace(FIGURES, pending=absurd)))
    assert Scripted.latest.events == [
        events.CommitAsked(1, FIGURES, 3, MOST_BYTES, MOST_BYTES),
        events.MemoryChanged(1, replace(FIGURES, pending=CARD - 10))]


def test_restarted_daemon_ignores_records_sent_before_the_new_hello(manager: Manager) -> None:
    hook = Hook(manager)
    hook.session.take_over()
    number = hook.wire.sent[0].number
    assert hook.wire.sent == [OrderRecord(Type.INTRODUCE, number=number)]
    assert number > 0
    for old in (
        HELLO, replace(HELLO, number=number - 1), ReportRecord(Type.STOPPED),
        ReportRecord(Type.MOVED, number=3),
        ReportRecord(Type.COMMIT, number=4, wanted=GIB),
    ):
        hook.says(old)
    assert Scripted.latest.events == [events.Awaited(expected=True)]
    hook.says(replace(HELLO, number=number, flags=Flag.RUNNING, commit=5, memory=FIGURES))
    assert Scripted.latest.events[1:] == [
        events.Joined(1, FIRST, True, False, 5, tenants=TENANTS),
        events.Awaited(expected=False)]
    assert hook.wire.sent[1].type is Type.LIMITS
    with pytest.raises(ProtocolError, match="a second HELLO came"):
        hook.says(replace(HELLO, number=number))


@pytest.mark.parametrize(("record", "why"), [
    (replace(HELLO, version=1), Refusal.VERSION),
    (replace(HELLO, uuid=bytes(16)), Refusal.NO_SUCH_GPU),
    (replace(HELLO, uuid=OTHER.uuid_bytes), Refusal.NO_SUCH_GPU),      # a lost card
])
def test_refused_client_gets_the_reason_and_later_records_are_ignored(
        manager: Manager, record: ReportRecord, why: Refusal) -> None:
    manager.add(OTHER, Sample(memory_used=0), gather=False).lose("gone")
    Scripted.latest.events.clear()
    hook = Hook(manager)
    hook.says(ReportRecord(Type.NAME, text="train", version=record.version))
    hook.says(record)
    assert hook.wire.sent == [OrderRecord(Type.REFUSED, refusal=why)]
    assert hook.session.finished
    hook.says(ReportRecord(Type.MEMORY))
    hook.session.ended()
    assert Scripted.latest.events == []


def test_publish_order_passes_a_writable_inflight_page_and_watch_order_a_readable_page(
        manager: Manager) -> None:
    hooks = [Hook(manager), Hook(manager)]
    for made in hooks:
        made.says(HELLO)
        made.wire.sent.clear()
    urgent, background = hooks
    urgent.is_told(Publish(1, True))
    background.is_told(Watch(2, 1, True))
    assert urgent.wire.sent == [OrderRecord(Type.PUBLISH)]
    assert background.wire.sent == [OrderRecord(Type.WATCH, number=1)]
    (written,), (read,) = urgent.wire.descriptors, background.wire.descriptors
    os.pwrite(written, b"work", 0)
    assert os.pread(read, 4, 0) == b"work"
    os.close(written)
    os.close(read)
    urgent.session.ended()
    background.is_told(Watch(2, 1, False))
    background.is_told(Watch(2, 1, True))            # the watched client has disconnected
    assert background.wire.sent[1:] == [OrderRecord(Type.WATCH, number=1)]
    assert len(background.wire.descriptors) == 1


@pytest.fixture
def looks(manager: Manager) -> list[tuple[int, Callable[[], None]]]:
    """Pending reads of memory limits: bytes not yet counted for the process, and the callback."""
    pending: list[tuple[int, Callable[[], None]]] = []

    def look_up(_peer: Peer, more: int, then: Callable[[], None]) -> bool:
        pending.append((more, then))
        return True

    manager.use_limits(look_up)
    return pending


def test_hello_and_commit_are_answered_after_the_memory_limits_of_the_process_were_read(
        manager: Manager, looks: list[tuple[int, Callable[[], None]]]) -> None:
    made = Hook(manager)
    made.says(replace(HELLO, memory=Memory(host=7, beyond=2)))
    assert (made.session.client, made.session.looking_up, made.wire.sent) == (None, True, [])
    assert looks[0][0] == 9
    looks[0][1]()
    assert made.wire.resumed is not None
    assert not made.session.looking_up
    made.wire.resumed()
    assert made.session.client is not None
    made.says(ReportRecord(Type.MEMORY))
    assert len(looks) == 1
    Scripted.latest.events.clear()
    made.says(ReportRecord(Type.COMMIT, number=1, wanted=GIB))
    assert (looks[1][0], Scripted.latest.events) == (0, [])
    looks[1][1]()
    made.wire.resumed()
    assert isinstance(Scripted.latest.events[-1], events.CommitAsked)


def test_connection_that_ended_during_the_read_of_memory_limits_is_not_resumed(
        manager: Manager, looks: list[tuple[int, Callable[[], None]]]) -> None:
    made = Hook(manager)
    made.says(HELLO)
    made.session.ended()
    looks[0][1]()
    assert not made.wire.resumed


def answer(number: int, park: int) -> ReportRecord:
    return ReportRecord(Type.PARKED, number=number, park=park)


def test_park_order_ignores_a_late_reply_to_an_earlier_park_order(
        monkeypatch: pytest.MonkeyPatch) -> None:
    async def park_twice() -> None:
        hook = ParkedHook(Wire())
        with monkeypatch.context() as patched:
            patched.setattr(session, "PARK_PATIENCE", 0)
            with pytest.raises(NvshareError, match="does not answer"):
                await hook.park(0, ahead=False)
        hook.unpark(bytes(16))
        second = asyncio.create_task(hook.park(0, ahead=False))
        await asyncio.sleep(0)
        hook.handle_parked(answer(1, Park.DONE))
        hook.handle_parked(answer(2, Park.BUSY))
        with pytest.raises(NvshareError, match=session.PARK_REFUSALS[Park.BUSY]):
            await second

    asyncio.run(park_twice())


async def test_session_holds_orders_until_unpark_and_drops_replaced_limits_orders(
        hook: Hook) -> None:
    parks = asyncio.create_task(hook.session.park(0, ahead=False))
    await asyncio.sleep(0)
    refused = Limits(1, 7, 1, 1, GIB, 0, reason="no room")      # the reply to COMMIT number 7
    for order in (Limits(1, 0, 2, 2, GIB), refused, Run(1), Limits(1, 0, 3, 3, GIB)):
        hook.is_told(order)
    hook.says(answer(1, Park.BUSY))
    with pytest.raises(NvshareError):
        await parks
    assert [one.type for one in hook.wire.sent] == [Type.PARK]
    assert hook.session.client is not None
    hook.session.resume_on(hook.session.client.gpu)
    assert [(one.type, one.number, one.commit) for one in hook.wire.sent[1:]] == [
        (Type.UNPARK, 0, 0), (Type.REASON, 0, 0), (Type.LIMITS, 7, 1), (Type.RUN, 0, 0),
        (Type.LIMITS, 0, 3)]


async def test_session_answers_evict_and_writeback_orders_to_a_parked_client(
        hook: Hook) -> None:
    parks = asyncio.create_task(hook.session.park(0, ahead=False))
    await asyncio.sleep(0)
    hook.is_told(Evict(1, 3, 0, 0))
    hook.is_told(Writeback(1, 4, 0, 0, size=GIB))
    hook.says(answer(1, Park.DONE))
    await parks
    hook.session.confirm_checkpoint()
    parked, *replies = Scripted.latest.events
    assert isinstance(parked, events.Parked)
    assert replies == [events.Evicted(1, Memory(), 3, 0), events.WrittenBack(1, Memory(), 4, 0)]
    later: list[Order] = [Evict(1, 5, 0, 0), Writeback(1, 6, 0, 0, size=GIB)]
    Scripted.latest.decide = lambda _: [later.pop(0)] if later else []
    assert hook.session.client is not None
    hook.session.client.gpu.tell(events.Tick())
    assert [one for one in Scripted.latest.events if isinstance(one, events.Moved)] == [
        *replies, events.Evicted(1, Memory(), 5, 0), events.WrittenBack(1, Memory(), 6, 0)]
    assert [one.type for one in hook.wire.sent] == [Type.PARK]


def test_park_order_with_an_unknown_reply_raises_a_protocol_error() -> None:
    hook = ParkedHook(Wire())
    with pytest.raises(ProtocolError, match="99"):
        hook.handle_parked(answer(1, 99))


async def parked(hook: Hook) -> Client:
    """The hook's client, whose process is checkpointed."""
    parks = asyncio.create_task(hook.session.park(0, ahead=False))
    await asyncio.sleep(0)
    hook.says(answer(1, Park.DONE))
    await parks
    hook.session.confirm_checkpoint()
    assert hook.session.client is not None
    hook.wire.sent.clear()
    return hook.session.client


async def test_parked_client_keeps_no_descriptor_and_gets_only_the_watches_in_force_at_the_end(
        hook: Hook) -> None:
    client = await parked(hook)
    others = [joined(client.gpu, number) for number in range(10, 14)]
    for other in others:
        hook.is_told(Watch(client.id, other.id, on=True))
    hook.is_told(Publish(client.id, on=True))
    hook.is_told(Watch(client.id, 10, on=False))
    hook.is_told(Watch(client.id, 99, on=False))    # watched since before it was parked
    client.gpu.leave(others[1])
    assert not [other for other in others if "_page" in vars(other.inflight_page)]
    assert not hook.wire.sent
    hook.session.resume_on(client.gpu)
    assert [(one.type, one.number) for one in hook.wire.sent] == [
        (Type.UNPARK, 0), (Type.WATCH, 12), (Type.WATCH, 13), (Type.PUBLISH, 0), (Type.WATCH, 99)]
    assert len(hook.wire.descriptors) == 3
    for descriptor in hook.wire.descriptors:
        os.close(descriptor)


@pytest.mark.parametrize("asks", [Type.WAITING, Type.COMMIT])
async def test_parked_client_that_asks_over_and_over_keeps_a_bounded_number_of_orders(
        hook: Hook, asks: Type) -> None:
    client = await parked(hook)
    Scripted.latest.decide = lambda event: [Limits(
        1, event.number, 0, 0, GIB, 0, "no")] if isinstance(event, events.CommitAsked) else []
    for number in range(1, 2 * session.HELD_MOST):
        if not hook.wire.dropped:
            hook.says(ReportRecord(asks, number=number, wanted=GIB))
    held = hook.session._parked._held
    assert held is not None
    assert len(held) <= (1 if asks is Type.WAITING else session.HELD_MOST + 2)
    assert bool(hook.wire.dropped) == (asks is Type.COMMIT)
    client.gpu.leave(client)


async def test_stop_of_a_parked_client_is_answered_and_cancels_the_run_held_back(
        hook: Hook) -> None:
    client = await parked(hook)
    hook.is_told(Run(1))
    held = [hook.session.has_turn]
    stop: list[Order] = [Stop(1)]
    Scripted.latest.decide = lambda _: [stop.pop()] if stop else []
    client.gpu.tell(events.Tick())
    assert [*held, hook.session.has_turn] == [True, False]
    assert Scripted.latest.events[-1] == events.Stopped(1, Memory(), wants=False)
    hook.session.resume_on(client.gpu)
    assert [one.type for one in hook.wire.sent] == [Type.UNPARK]


async def test_client_that_cannot_be_restored_is_told_so_and_counts_nothing_on_the_card(
        hook: Hook) -> None:
    client = await parked(hook)
    hook.is_told(Run(1))
    hook.session.give_up()
    assert [(one.type, one.flags) for one in hook.wire.sent] == [
        (Type.UNPARK, Flag.DRIVER_ERROR), (Type.RUN, 0)]
    hook.says(ReportRecord(Type.MEMORY, memory=Memory(pinned=GIB, pending=GIB)))
    assert client.memory == Memory()


GATHER = SECOND
LARGE = FACTS.memory_total * 3 // 4     # bytes; two such clients do not fit the card
GATHERING = replace(DEFAULTS,
                    settings=replace(DEFAULTS.settings, gather=GATHER, host_budget=256 * GIB))


class Survivor(Hook):
    """A client of an earlier daemon; the restarted daemon has taken over its connection."""

    def __init__(self, manager: Manager) -> None:
        super().__init__(manager)
        self.session.take_over()

    def says_hello(self, memory: Memory, flags: Flag) -> None:
        self.says(ReportRecord(
            Type.HELLO, flags, self.wire.sent[0].number, memory, FACTS.uuid_bytes, LARGE))

    @property
    def moves(self) -> list[Type]:
        return [one.type for one in self.wire.sent if one.type in (Type.LOAD, Type.EVICT)]


@pytest.fixture
def restarted(time: Time) -> Manager:
    made = Manager(lambda: GATHERING, time.clock, time.timer)
    made.add(FACTS, Sample(), gather=True)
    return made


@pytest.mark.parametrize("dies", [False, True])
def test_restarted_daemon_waits_for_a_late_hello_until_the_client_disconnects(
        restarted: Manager, time: Time, dies: bool) -> None:
    """A client that drains or moves memory holds memory, but sends HELLO only afterwards."""
    late, waits = Survivor(restarted), Survivor(restarted)
    waits.says_hello(Memory(allocated=LARGE, host=LARGE), Flag.WANTS)
    time.pass_by(GATHER + SECOND // 2)
    assert waits.moves == []
    assert restarted.gpus[0].state == "gathering"
    if dies:
        late.session.ended()
        assert Type.LOAD in waits.moves
        return
    late.says_hello(Memory(allocated=LARGE, resident=LARGE, room=LARGE), Flag.RUNNING)
    now = restarted.gpus[0].snapshot()
    assert 0 <= now.free <= now.capacity - LARGE
    assert restarted.gpus[0].state == "turns"


@pytest.mark.parametrize(("silent", "within"), [
    (0, GATHER), (1, GATHER + HELLO_PATIENCE)])
def test_restarted_daemon_schedules_after_a_fixed_time_and_a_bounded_wait_for_silent_clients(
        restarted: Manager, time: Time, silent: int, within: int) -> None:
    for _ in range(silent):
        Survivor(restarted)
    waits = Survivor(restarted)
    waits.says_hello(Memory(allocated=LARGE, host=LARGE), Flag.WANTS)
    time.pass_by(within - 1)
    assert waits.moves == []
    time.pass_by(1)
    assert Type.LOAD in waits.moves
