# SPDX-License-Identifier: Apache-2.0
"""A restarted daemon restores the terms of the programs that it finds running."""

import asyncio
import json
import os
from collections.abc import Callable
from copy import deepcopy
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvshared.errors import InvalidArgs, NotKept, NvshareError
from nvshared.lanes import Run, here
from nvshared.machine import host
from nvshared.machine import saving as machine_saving
from nvshared.machine.checkpoint import Answer
from nvshared.machine.nvml import Sample
from nvshared.machine.saving import NoAnswer, Saved
from nvshared.quantity import HEAVIEST
from nvshared.scheduler.events import Terms, WentIdle
from nvshared.scheduler.turn import OTHERS_IDLE
from nvshared.sharing import saving
from nvshared.sharing.client_terms import ClientTerms
from nvshared.sharing.gpu import Client, EarlierTimes
from nvshared.sharing.manager import Manager
from nvshared.sharing.moving import PARKED, RESTORING
from nvshared.sharing.remembered import FILE_NAME, WRITTEN_WITHIN, RememberedTerms
from nvshared.terms import TERMS
from nvshared.units import GIB, SECOND
from tests.unit.scripted import DEFAULTS, FACTS, OTHER, Noted, Time, joined, peer, script

OURS = os.getpid()


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    script(monkeypatch)
    return Time()


class Daemon:
    """A daemon that stores the terms of clients for its successor."""

    def __init__(self, folder: Path, time: Time, run: Run = here) -> None:
        self.manager = Manager(lambda: DEFAULTS, time.clock, time.timer)
        self.kept = RememberedTerms(folder, time.clock, time.timer, run)
        for facts in (FACTS, OTHER):
            self.kept.follow(self.manager.add(facts, Sample(), gather=False))

    def joins(self, pid: int = OURS, gpu: int = 0, *, running: bool = False) -> Client:
        process = replace(peer(1), pid=pid, started=host.started(pid))
        return joined(
            self.manager.gpus[gpu], self.manager.next_id(), process=process, running=running)


def test_remembered_terms_are_restored_after_a_restart(tmp_path: Path, time: Time) -> None:
    first = Daemon(tmp_path, time)
    client = first.joins()
    first.manager.set_term(client.id, TERMS["compute-limit"], 50)
    first.manager.set_term(client.id, TERMS["compute-limit"], 20, by_owner=True)
    first.manager.set_term(client.id, TERMS["memory-limit"], 1 << 30)
    first.manager.set_term(client.id, TERMS["weight"], 7)
    first.manager.set_term(client.id, TERMS["suspended"], True, by_owner=True)
    before = client.terms
    time.pass_by(SECOND)
    second = Daemon(tmp_path, time)
    again = second.joins()
    assert again.terms == before
    assert again.terms.in_force == Terms(1 << 30, 7, True, 20)
    (program,) = json.loads((tmp_path / FILE_NAME).read_text())["programs"]
    assert program.keys() == {"pid", "started", "gpu", "administrator", "owner"}
    assert second.joins(gpu=1).terms == ClientTerms()     # the terms were set on one card
    assert second.joins(pid=1).terms == ClientTerms()     # the terms are of one program
    second.manager.set_term(again.id, TERMS["suspended"], False, by_owner=True)
    time.pass_by(SECOND)
    assert not Daemon(tmp_path, time).joins().terms.in_force.suspended


def test_client_keeps_times_held_and_waited_over_restarts(tmp_path: Path, time: Time) -> None:
    first = Daemon(tmp_path, time)
    client = first.joins()
    client.remember(EarlierTimes(7 * SECOND, 3 * SECOND), client.terms)
    held, waited = client.held, client.waited
    assert held >= 7 * SECOND
    first.kept.close()
    for _ in range(2):                  # the second daemon changes no terms
        next_one = Daemon(tmp_path, time)
        again = next_one.joins()
        assert (again.past.held, again.past.waited) == (held, waited)
        assert next_one.joins(pid=1).past.held == 0
        next_one.manager.set_term(again.id, TERMS["weight"], 7)
        held, waited = again.held, again.waited
        next_one.kept.close()


def test_client_without_work_keeps_its_idle_time_over_a_restart_until_its_next_work(
        tmp_path: Path) -> None:
    time = Time()                       # with the real scheduler
    first = Daemon(tmp_path, time)
    client = first.joins(running=True)
    client.gpu.tell(WentIdle(client.id, client.memory))
    time.pass_by(48 * SECOND)
    assert client.idle == 48 * SECOND + OTHERS_IDLE
    first.kept.close()
    time.pass_by(3 * SECOND)            # no daemon runs
    second = Daemon(tmp_path, time)
    again = second.joins(running=True)
    again.gpu.tell(WentIdle(again.id, again.memory))
    time.pass_by(7 * SECOND)
    assert again.idle == 58 * SECOND + OTHERS_IDLE
    again.gpu.tell(WentIdle(again.id, again.memory, resumed=True))
    assert again.idle == 0
    time.pass_by(9 * SECOND)
    again.gpu.tell(WentIdle(again.id, again.memory))
    time.pass_by(SECOND)
    assert again.idle == SECOND + OTHERS_IDLE


def test_remembered_terms_are_dropped_after_a_reboot_and_for_a_new_process_with_the_same_pid(
        tmp_path: Path, time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Daemon(tmp_path, time)
    first.manager.set_term(first.joins().id, TERMS["weight"], 7)
    time.pass_by(SECOND)
    with monkeypatch.context() as patch:
        patch.setattr(host, "boot", lambda: "another")
        assert Daemon(tmp_path, time).joins().terms == ClientTerms()
    now = host.started(OURS)
    assert now is not None
    monkeypatch.setattr(host, "started", lambda _pid: now + 1)
    second = Daemon(tmp_path, time)
    client = second.joins()
    assert client.terms == ClientTerms()
    second.manager.set_term(client.id, TERMS["weight"], 8)
    time.pass_by(SECOND)
    (one,) = json.loads((tmp_path / "programs.json").read_text())["programs"]
    assert one["started"] == now + 1        # the entry of the ended process is gone


@pytest.mark.parametrize("damage", [
    "", "[]", '{"version": 2}', '{"version": 1, "boot": 3, "programs": 3}',
    *(f'{{"version": 1, "boot": 3, "programs": [{{"pid": {pid}, "started": 1, "gpu": "x", '
      '"administrator": {}, "owner": {}}]}' for pid in (
          "1e999", "1.5", "true", '"7"', "[" * 200_000)),
    '{"version": 1, "boot": 3, "programs": [], "times": [{"pid": 1, "started": 1, "gpu": "x", '
    f'"held": {1 << 63}, "waited": 0}}]}}',
], ids=[
    "empty", "list", "version", "programs", "huge pid", "fraction", "boolean pid", "text pid",
    "nested lists", "time that fits no property of D-Bus",
])
def test_remembered_terms_in_a_damaged_file_are_logged_and_ignored(
        tmp_path: Path, time: Time, caplog: pytest.LogCaptureFixture, damage: str) -> None:
    (tmp_path / "programs.json").write_text(damage.replace("3", json.dumps(host.boot()), 1))
    assert Daemon(tmp_path, time).joins().terms == ClientTerms()
    (line,) = caplog.messages
    assert "programs.json is put aside as programs.json.aside-1" in line


@pytest.mark.parametrize(("name", "value"), [
    ("weight", 0), ("weight", 1001), ("compute_limit", 0), ("compute_limit", 101),
    ("memory_limit", -1), ("memory_limit", 1 << 64), ("suspended", 3), ("nonsense", 1),
    ("weight", 1.5), ("compute_limit", 50.0), ("memory_limit", 0.5), ("weight", True),
])
def test_remembered_terms_with_an_invalid_value_are_put_aside_and_cost_no_other_program(
    tmp_path: Path, time: Time, caplog: pytest.LogCaptureFixture, name: str, value: float
) -> None:
    first = Daemon(tmp_path, time)
    first.manager.set_term(first.joins().id, TERMS["weight"], 7)
    first.manager.set_term(first.joins(gpu=1).id, TERMS["weight"], 8)
    time.pass_by(SECOND)
    path = tmp_path / "programs.json"
    plain = json.loads(path.read_text())
    plain["programs"][0]["owner"][name] = value
    path.write_text(text := json.dumps(plain))
    second = Daemon(tmp_path, time)
    assert second.joins().terms == ClientTerms()
    assert second.joins(gpu=1).terms.in_force.weight == 8
    assert "programs.json is put aside as programs.json.aside-1" in caplog.text
    assert (tmp_path / "programs.json.aside-1").read_text() == text
    second.manager.set_term(second.joins(gpu=1).id, TERMS["weight"], 9)
    time.pass_by(SECOND)
    assert Daemon(tmp_path, time).joins(gpu=1).terms.in_force.weight == 9


def test_remembered_terms_are_saved_at_once_and_then_after_a_pause(
        tmp_path: Path, time: Time) -> None:
    first = Daemon(tmp_path, time)
    client = first.joins()
    for weight, pause in ((7, 0), (8, WRITTEN_WITHIN)):
        first.manager.set_term(client.id, TERMS["weight"], weight)
        written = first.kept.saved()
        time.pass_by(pause - 1)
        assert not written.done()
        time.pass_by(1)
        written.result(0)
        assert Daemon(tmp_path, time).joins().terms.in_force.weight == weight


def test_remembered_terms_that_cannot_be_saved_are_reported_and_saved_later(
        tmp_path: Path, time: Time) -> None:
    folder = tmp_path / "state"
    folder.write_text("a file\n")
    first = Daemon(folder, time)
    first.manager.set_term(first.joins().id, TERMS["weight"], 7)
    write = first.kept.saved()
    time.pass_by(SECOND)
    with pytest.raises(NotKept, match="cannot be written"):
        write.result(0)
    folder.unlink()
    first.kept.file.keep_again()
    assert Daemon(folder, time).joins().terms.in_force.weight == 7
    write = first.kept.saved()          # terms are set as they were
    time.pass_by(SECOND)
    write.result(0)


def test_remembered_terms_at_the_end_are_not_replaced_by_an_earlier_write_that_is_late(
        tmp_path: Path, time: Time) -> None:
    late: list[Callable[[], object]] = []
    first = Daemon(tmp_path, time, lambda _key, write, _answer: late.append(write))
    client = first.joins()
    client.remember(EarlierTimes(7 * SECOND, 3 * SECOND), client.terms)
    first.manager.set_term(client.id, TERMS["weight"], 7)
    time.pass_by(SECOND)
    first.manager.set_term(client.id, TERMS["weight"], 8)
    first.kept.close()
    for write in late:                  # a thread was slow
        write()
    again = Daemon(tmp_path, time).joins()
    assert (again.terms.in_force.weight, again.past.waited) == (8, 3 * SECOND)


def test_remembered_terms_whose_write_raises_are_not_reported_as_saved(
        tmp_path: Path, time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Daemon(tmp_path, time)
    # As lanes answer for a call that raised.
    monkeypatch.setattr(first.kept, "_run", lambda _key, _call, answer: answer(None))
    first.manager.set_term(first.joins().id, TERMS["weight"], 7)
    write = first.kept.saved()
    time.pass_by(SECOND)
    with pytest.raises(NotKept, match="its write failed"):
        write.result(0)


@pytest.mark.parametrize(("terms", "limit"), [
    ({"compute_limit": 30}, 30), ({"compute_limit": 300}, 100),
    ({"compute_limit": 30, "urgency": 7}, 100), ("none", 100)])
async def test_program_saved_by_another_version_is_restored_also_if_its_terms_are_unknown(
    tmp_path: Path, time: Time, caplog: pytest.LogCaptureFixture, terms: object, limit: int
) -> None:
    daemon = Daemon(tmp_path, time)
    client = daemon.joins()
    note = {"terms": {"administrator": terms, "owner": {}}}
    saved = Saved("/saved/one", "saved", 1, "", 0, OURS, 1, "one", 1, 0, note)

    async def restored(order: str, **_: object) -> dict[str, object]:
        return {"pid": OURS, "started": host.started(OURS), "note": note}

    daemon.manager.saving._ask = restored
    assert await daemon.manager.saving.restore(saved) == OURS
    assert client.terms.in_force.compute_limit == limit
    assert ("are not used" in caplog.text) is (limit == 100)
    for task in daemon.manager.saving._tasks:
        task.cancel()


class Dump:
    """A program of ours and the driver, which parks it, as nvshare-save dumps it."""

    def __init__(self, folder: Path) -> None:
        self.daemon = Daemon(folder, Time())    # with the real scheduler
        self.manager, self.saving = self.daemon.manager, self.daemon.manager.saving
        self.client = self.come()
        self.note: dict[str, object] = {}
        self.fails = False
        self.manager.budget.resize(200 * GIB)
        self.manager.moving._ask, self.saving._ask = self.driver, self.ask
        self.saving._list = self.listed

    def come(self) -> Client:
        link = Noted()
        client = joined(self.manager.gpus[0], self.manager.next_id(), link, process=replace(
            peer(1), pid=OURS, started=host.started(OURS)))
        link.leave = lambda: client.gpu.leave(client)       # type: ignore[method-assign]
        client.gpu.measure = self.measured
        return client

    async def driver(self, command: str, *_: object) -> Answer:
        if command == "park":           # an administrator sets a limit meanwhile
            self.manager.set_term(self.client.id, TERMS["compute-limit"], 30)
        return Answer("checkpointed" if command == "park" else "running")

    async def measured(self, _pid: int | None) -> int:
        return GIB

    async def ask(self, order: str, note: dict[str, object], **_: object) -> dict[str, object]:
        if order == "save":
            self.note = deepcopy(note)
            if self.fails:
                raise NvshareError("CRIU cannot dump it")
        return {"done": "/saved/one"}

    async def listed(self, _to: str) -> list[Saved]:
        return [Saved("/saved/one", "saved", 1, "", 0, OURS, 1000, "one", 1, 0, {})]


async def test_saved_program_after_terms_set_while_parked_is_restored_with_these_terms(
        tmp_path: Path) -> None:
    dump = Dump(tmp_path)
    await dump.saving.save(dump.client)
    assert dump.note["terms"] == asdict(ClientTerms(Terms(compute_limit=30)))


@pytest.mark.parametrize("later", [0, 20], ids=["terms of before", "terms of afterwards"])
async def test_program_that_was_not_saved_comes_back_with_its_terms_or_later_ones(
        tmp_path: Path, later: int) -> None:
    dump = Dump(tmp_path)
    dump.fails = True
    with pytest.raises(NvshareError, match="CRIU cannot dump it"):
        await dump.saving.save(dump.client)
    client = dump.come()
    client.parking.enter(RESTORING)     # the driver is asked about it
    if later:
        dump.manager.set_term(client.id, TERMS["compute-limit"], later)
    client.parking.enter(PARKED)
    while client.parking.state:         # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert client.terms.in_force.compute_limit == (later or 30)


class Restoring:
    """nvshare-save, which restores our process once it may, and calls that ask for it."""

    def __init__(self, daemon: Daemon) -> None:
        self.answers, self.orders = asyncio.Event(), 0
        self.saving = daemon.manager.saving
        self.saving._ask = self.ask
        self.note = {"terms": asdict(ClientTerms(Terms(compute_limit=30)))}
        self.saved = Saved("/saved/one", "saved", 1, "", 0, OURS, 1000, "one", 1, 0, self.note)

    async def ask(self, order: str, **_: object) -> dict[str, object]:
        self.orders += 1
        await self.answers.wait()
        return {"pid": OURS, "started": host.started(OURS), "note": self.note}

    async def begin(self) -> asyncio.Task[int]:
        orders = self.orders
        call = asyncio.create_task(self.saving.restore(self.saved))
        while self.orders == orders:    # noqa: ASYNC110
            await asyncio.sleep(0)
        return call

    def close(self) -> None:
        for task in tuple(self.saving._tasks):
            task.cancel()


async def take_over(daemon: Daemon, restoring: Restoring, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that finds the restored program in its folder."""
    found = restoring.saved._replace(state="restored", started=host.started(OURS) or 0)

    async def listed(_to: str) -> list[Saved]:
        return [found]

    monkeypatch.setattr(machine_saving, "has_saved", lambda: True)
    daemon.manager.saving._list = listed
    await daemon.manager.saving.take_over()
    for task in tuple(daemon.manager.saving._tasks):
        task.cancel()


async def test_restored_program_has_its_terms_although_the_caller_of_the_restore_has_left(
        tmp_path: Path, time: Time) -> None:
    daemon = Daemon(tmp_path, time)
    restoring = Restoring(daemon)
    call = await restoring.begin()
    call.cancel()
    await asyncio.wait([call])
    client = daemon.joins()
    restoring.answers.set()
    while client.terms.in_force.compute_limit != 30 and restoring.saving._tasks:    # noqa: ASYNC110
        await asyncio.sleep(0)
    assert client.terms.in_force.compute_limit == 30
    restoring.close()


async def test_restored_program_has_its_terms_although_its_library_comes_back_late(
        tmp_path: Path, time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = Daemon(tmp_path, time)
    restoring = Restoring(daemon)
    restoring.answers.set()
    with monkeypatch.context() as late:
        late.setattr(saving, "BACK_WITHIN", 0)
        with pytest.raises(NvshareError, match="does not use the GPU"):
            await restoring.saving.restore(restoring.saved)
    client = daemon.joins()
    assert client.terms.in_force.compute_limit == 30
    daemon.manager.set_term(client.id, TERMS["compute-limit"], 20)
    await (await restoring.begin())     # its user orders it again: it is there already
    assert client.terms.in_force.compute_limit == 20
    restoring.close()


async def test_restored_program_has_its_terms_although_the_daemon_was_restarted_meanwhile(
        tmp_path: Path, time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = Daemon(tmp_path, time)
    restoring = Restoring(daemon)
    found = restoring.saved._replace(started=host.started(OURS) or 0)
    states = ["", "restoring", "restored"]

    async def listed(_to: str) -> list[Saved]:
        if not states[0]:
            states.pop(0)
            raise NoAnswer("nvshare-save has ended without an answer")
        return [found._replace(state=states.pop(0) if len(states) > 1 else states[0])]

    monkeypatch.setattr(saving, "LISTED_EVERY", 0)
    monkeypatch.setattr(machine_saving, "has_saved", lambda: True)
    daemon.manager.saving._list = listed
    client = daemon.joins()
    await daemon.manager.saving.take_over()
    assert client.terms.in_force.compute_limit == 30
    restoring.close()


@pytest.mark.parametrize("late", [False, True], ids=["before the list", "after the list"])
async def test_restored_program_after_a_restart_of_the_daemon_keeps_later_terms_of_its_user(
        tmp_path: Path, time: Time, monkeypatch: pytest.MonkeyPatch, late: bool) -> None:
    first = Daemon(tmp_path, time)
    restoring = Restoring(first)
    restoring.note = {"terms": asdict(ClientTerms())}
    restoring.saved = restoring.saved._replace(note=restoring.note)
    restoring.answers.set()
    client = first.joins()
    await (await restoring.begin())
    first.manager.set_term(client.id, TERMS["suspended"], True, by_owner=True)
    restoring.close()
    first.kept.close()
    second = Daemon(tmp_path, time)
    again = None if late else second.joins()
    await take_over(second, restoring, monkeypatch)
    assert (again or second.joins()).terms == client.terms


async def test_restored_program_has_its_terms_although_an_earlier_daemon_kept_only_its_own_ones(
        tmp_path: Path, time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Daemon(tmp_path, time)
    first.manager.set_term(first.joins().id, TERMS["weight"], 7, by_owner=True)
    first.kept.close()                  # it ends before nvshare-save has answered
    second = Daemon(tmp_path, time)
    await take_over(second, Restoring(first), monkeypatch)
    assert second.joins().terms.in_force == Terms(weight=7, compute_limit=30)


async def test_second_restore_after_a_reset_by_an_administrator_sets_no_terms(
        tmp_path: Path, time: Time) -> None:
    daemon = Daemon(tmp_path, time)
    restoring = Restoring(daemon)
    restoring.answers.set()
    client = daemon.joins()
    await (await restoring.begin())
    daemon.manager.set_term(client.id, TERMS["compute-limit"], 100)
    assert client.terms == ClientTerms()
    await (await restoring.begin())
    assert client.terms == ClientTerms()
    restoring.close()


@pytest.mark.parametrize("by_owner", [False, True], ids=["administrator", "owner"])
async def test_restored_program_after_a_restart_of_the_daemon_stays_without_terms_that_were_reset(
        tmp_path: Path, time: Time, monkeypatch: pytest.MonkeyPatch, by_owner: bool) -> None:
    first = Daemon(tmp_path, time)
    restoring = Restoring(first)
    one = ClientTerms().having(TERMS["compute-limit"], 30, by_owner=by_owner)
    restoring.note["terms"] = asdict(one)
    restoring.answers.set()
    client = first.joins()
    await (await restoring.begin())
    assert client.terms == one
    first.manager.set_term(client.id, TERMS["compute-limit"], 100, by_owner=by_owner)
    time.pass_by(SECOND)                # the daemon is killed then
    restoring.close()
    second = Daemon(tmp_path, time)
    await take_over(second, restoring, monkeypatch)
    assert second.joins().terms == ClientTerms()


async def test_orders_whose_callers_have_left_keep_their_places_and_no_other_user_waits(
        tmp_path: Path, time: Time) -> None:
    restoring = Restoring(Daemon(tmp_path, time))
    for _ in range(saving.AT_ONCE):
        call = await restoring.begin()
        call.cancel()
        await asyncio.wait([call])
    third = asyncio.create_task(restoring.saving.restore(restoring.saved))
    other = asyncio.create_task(restoring.saving.restore(restoring.saved._replace(uid=1001)))
    while restoring.orders < saving.AT_ONCE + 1:        # noqa: ASYNC110
        await asyncio.sleep(0)
    assert restoring.orders == saving.AT_ONCE + 1       # the one of the other user
    for one in (third, other):
        one.cancel()
    await asyncio.wait([third, other])
    restoring.close()


async def test_search_for_a_saved_program_does_not_wait_for_searches_of_another_user(
        tmp_path: Path, time: Time) -> None:
    restoring = Restoring(Daemon(tmp_path, time))
    silent, lists = asyncio.Event(), 0

    async def listed(_to: str) -> list[Saved]:
        nonlocal lists
        lists += 1
        if lists <= saving.AT_ONCE:
            await silent.wait()
        return [restoring.saved]

    restoring.saving._list = listed
    calls = [asyncio.create_task(restoring.saving.find("one", "user:1000")) for _ in range(9)]
    await asyncio.sleep(0)
    assert await restoring.saving.find("one", "user:1001") == restoring.saved
    silent.set()
    await asyncio.wait(calls)


def test_terms_take_effect_and_a_warning_is_logged_when_the_state_folder_is_unwritable(
        tmp_path: Path, time: Time, caplog: pytest.LogCaptureFixture) -> None:
    daemon = Daemon(tmp_path / "file" / "below", time)
    (tmp_path / "file").write_text("")
    client = daemon.joins()
    daemon.manager.set_term(client.id, TERMS["weight"], 7)
    time.pass_by(SECOND)
    assert client.terms.in_force.weight == 7
    assert "cannot be written: Not a directory" in caplog.text


def test_terms_set_by_the_administrator_override_terms_set_by_the_clients_owner() -> None:
    made = ClientTerms()
    made = made.having(TERMS["memory-limit"], GIB, by_owner=True)
    made = made.having(TERMS["weight"], 7, by_owner=True)
    made = made.having(TERMS["suspended"], True, by_owner=True)
    assert made.allows(TERMS["memory-limit"], 0)       # the owner may remove own terms
    assert made.allows(TERMS["suspended"], False)
    made = made.having(TERMS["memory-limit"], 4 * GIB, by_owner=False)
    made = made.having(TERMS["weight"], 300, by_owner=False)
    made = made.having(TERMS["suspended"], False, by_owner=False)
    assert made.in_force == Terms(4 * GIB, 300, False)


@pytest.mark.parametrize(("term", "value", "sentence"), [
    ("weight", 0, "the weight cannot be 0"), ("weight", HEAVIEST + 1, "the weight cannot be 1001"),
    ("compute-limit", 0, "the compute limit cannot be 0"),
    ("compute-limit", 101, "the compute limit cannot be 101"),
])
@pytest.mark.parametrize("by_owner", [False, True])
def test_client_term_out_of_range_is_refused(term: str, value: int, sentence: str,
                                             by_owner: bool) -> None:
    with pytest.raises(InvalidArgs, match=sentence):
        ClientTerms().having(TERMS[term], value, by_owner=by_owner)


VALUES = {
    "memory-limit": st.integers(0, 9), "weight": st.integers(1, HEAVIEST),
    "compute-limit": st.integers(1, 100), "suspended": st.booleans(),
}


@given(st.data())
def test_owner_of_a_client_never_exceeds_terms_of_the_administrator_by_random_changes(
        data: st.DataObject) -> None:
    made = ClientTerms()
    for term, values in VALUES.items():
        made = made.having(TERMS[term], data.draw(values), by_owner=False)
    most = made.in_force
    for _ in range(data.draw(st.integers(1, 5))):
        for term, values in VALUES.items():
            value = data.draw(values)
            if made.allows(TERMS[term], value):
                made = made.having(TERMS[term], value, by_owner=True)
                # An allowed value takes effect.
                assert getattr(made.in_force, TERMS[term].field) == value
        terms = made.in_force
        assert terms.memory_limit <= most.memory_limit or not most.memory_limit
        assert terms.memory_limit or not most.memory_limit
        assert terms.weight <= most.weight
        assert terms.compute_limit <= most.compute_limit
        assert terms.suspended or not most.suspended
