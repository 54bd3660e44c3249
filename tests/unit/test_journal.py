# SPDX-License-Identifier: Apache-2.0
"""Log lines and notifications for administrators."""

import asyncio
import logging

import pytest

from nvshared.machine.nvml import Sample
from nvshared.report import journal
from nvshared.report.log import BURST, Limited
from nvshared.report.systemd import Notifier
from nvshared.scheduler.actions import (
    ClientState,
    Pinned,
    Stuck,
    TurnEnd,
    TurnEnded,
    TurnStarted,
)
from nvshared.scheduler.events import Memory, PinReason, Tick
from nvshared.sharing.gpu import OVERDUE
from nvshared.sharing.manager import Manager
from tests.unit.scripted import DEFAULTS, FACTS, OTHER, Noted, Scripted, Time, joined, peer, script


@pytest.fixture
def stopped() -> asyncio.Event:
    return asyncio.Event()


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch, stopped: asyncio.Event) -> Manager:
    script(monkeypatch)
    time = Time()
    made = Manager(lambda: DEFAULTS, time.clock, time.timer)
    limited = Limited(logging.getLogger("nvshared.test"), time.clock, time.timer)
    for facts in (OTHER, FACTS):
        journal.follow(made.add(facts, Sample(), gather=False), limited, stopped)
    return made


def test_journal_names_programs_with_swapped_memory_when_the_daemon_stops(
        manager: Manager, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(journal.MOST_NAMED + 2):
        joined(manager.gpus[0], number, Noted(), Memory(3 << 30, 1 << 30))
    journal.log_waiting_clients(manager)
    assert len(caplog.messages) == journal.MOST_NAMED + 1
    first = manager.gpus[0].clients[0]
    assert f"{first} of {first.peer.user}" in caplog.messages[0]
    assert "2048 MiB in host memory" in caplog.messages[0]
    assert caplog.messages[-1].startswith("2 more")


class Systemd(Notifier):
    """Records the notifications; its watchdog has a long interval."""

    def __init__(self, watchdog: int = 3_600_000_000) -> None:
        super().__init__({})
        self.watchdog = watchdog
        self.words: list[str] = []
        self.pings = 0
        self.tries = 0                  # number of calls of catch_up()
        self.heard = asyncio.Event()    # set when a status is sent
        self.stopped = asyncio.Event()  # set at the third ping

    @property
    def listened(self) -> bool:
        return True

    def status(self, words: str) -> None:
        self.words.append(words)
        self.heard.set()

    def alive(self) -> None:
        self.pings += 1
        if self.pings == 3:
            self.stopped.set()

    def catch_up(self) -> None:
        self.tries += 1


async def test_systemd_status_is_sent_only_after_events_of_clients_and_turns(
        manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "STATUS_INTERVAL", 0.001)
    stopped, systemd = asyncio.Event(), Systemd()
    report = asyncio.create_task(journal.report(systemd, manager, stopped))
    await systemd.heard.wait()
    await asyncio.sleep(0.05)           # 50 status intervals without an event
    gpu = manager.gpus[0]             # the GPU with the latest scripted scheduler
    for happen in (
        lambda: joined(gpu, 1, Noted()),
        lambda: gpu.reported.emit(gpu.clients[1], TurnStarted(1)),
        lambda: gpu.leave(gpu.clients[1]),
    ):
        Scripted.latest.holders = (1,) if systemd.words[-1].endswith("1 client") else ()
        systemd.heard.clear()
        happen()
        await systemd.heard.wait()
    stopped.set()
    await report
    assert systemd.words == [
        "2 GPUs, 0 clients", "2 GPUs, 1 client", "2 GPUs, 1 client, gpu0: python[4001]",
        "2 GPUs, 0 clients"]


@pytest.mark.parametrize("fault", ["stuck", "overdue"])
async def test_systemd_watchdog_gets_no_ping_while_a_scheduler_hangs(
        manager: Manager, caplog: pytest.LogCaptureFixture, fault: str) -> None:
    gpu = manager.gpus[0]
    scheduler = gpu.scheduler
    assert isinstance(scheduler, Scripted)
    systemd = Systemd(watchdog=3000)
    if fault == "stuck":
        gpu._handling = True            # as while the scheduler handles an event
    else:
        scheduler.due = gpu._clock() - OVERDUE - 1
    report = asyncio.create_task(journal.report(systemd, manager, systemd.stopped))
    while not caplog.messages:          # noqa: ASYNC110 - the watchdog sends no event
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.02)  # 20 ms: without the hang about 20 pings would have been sent
    report.cancel()
    assert systemd.pings == 0
    assert caplog.messages == ["nothing is decided any more on gpu0"]
    gpu._handling, scheduler.due = False, None
    await journal.report(systemd, manager, systemd.stopped)
    assert systemd.pings == 3


def test_journal_has_lines_for_the_connection_turns_and_faults_of_a_client(
        manager: Manager, stopped: asyncio.Event, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    gpu = manager.gpus[0]
    client = joined(gpu, 1, Noted())
    Scripted.latest.decide = lambda event: [
        TurnStarted(1), TurnEnded(1, TurnEnd.QUANTUM, 1_500_000),
        Stuck(1, ClientState.DRAINING, 10_000_000), Pinned(1, PinReason.UNDRAINED),
    ] if isinstance(event, Tick) else []
    gpu.tell(Tick())
    gpu.leave(client)
    time = Time()
    limited = Limited(logging.getLogger("nvshared.test"), time.clock, time.timer)
    journal.log_fault(limited, peer(uid=0), "silent", "it said nothing")
    last = joined(gpu, 2, Noted())
    stopped.set()
    gpu.leave(last)                     # no line, as all clients leave when the daemon stops
    assert [record.getMessage() for record in caplog.records] == [
        "gpu0: python[4001] came",
        "gpu0: python[4001] runs",
        "gpu0: python[4001] ran for 1.500 s: quantum",
        "gpu0: python[4001] does not answer, draining for 10 s",
        "gpu0: python[4001] stays on the GPU from now on, and others get what is left: its work "
        "does not end, or cannot be waited for",
        "gpu0: python[4001] left", "python[4711] of root: it said nothing",
        "gpu0: python[4002] came"]


def test_journal_limits_the_number_of_lines_about_a_client_that_reconnects_often(
        manager: Manager, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    gpu = manager.gpus[0]
    for number in range(1, 200):
        gpu.leave(joined(gpu, number, Noted()))
    assert caplog.messages.count("gpu0: python[4001] came") == 1
    assert len(caplog.messages) == 2 * BURST
