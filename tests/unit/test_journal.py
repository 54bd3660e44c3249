# SPDX-License-Identifier: Apache-2.0
"""What people who look after the machine are told."""

import asyncio
import logging

import pytest

from nvshared import journal
from nvshared.log import Limited
from nvshared.manager import Manager
from nvshared.nvml import Sample
from nvshared.scheduler.actions import ClientState, Stuck, TurnEnd, TurnEnded, TurnStarted
from nvshared.scheduler.events import Tick
from nvshared.systemd import Notifier
from tests.unit.scripted import DEFAULTS, FACTS, OTHER, Noted, Scripted, Time, joined, peer, script


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> Manager:
    script(monkeypatch)
    time = Time()
    made = Manager(lambda: DEFAULTS, time.clock, time.timer)
    for facts in (OTHER, FACTS):
        journal.follow(made.add(facts, Sample(), gather=False))
    return made


class Heard(Notifier):
    """A systemd that remembers, and has us stopped when it has heard enough."""

    def __init__(self, stopped: asyncio.Event) -> None:
        super().__init__({})
        self.words: list[str] = []
        self.pings = 0
        self.watchdog = 3000
        self._stopped = stopped

    @property
    def listened(self) -> bool:
        return True

    def status(self, words: str) -> None:
        self.words.append(words)

    def alive(self) -> None:
        self.pings += 1
        if self.pings == 3:
            self._stopped.set()


async def test_systemd_hears_the_status_when_it_changes_and_a_ping_each_time(
    manager: Manager,
) -> None:
    joined(manager.gpus[0], 1, Noted())
    stopped = asyncio.Event()
    heard = Heard(stopped)
    await journal.report(heard, manager, stopped)
    assert heard.words == ["2 GPUs, 1 client"]
    assert heard.pings == 3


async def test_the_status_names_the_holders(manager: Manager) -> None:
    joined(manager.gpus[1], 1, Noted())
    Scripted.latest.holders = (1,)      # the one made last: OTHER came first, FACTS second
    stopped = asyncio.Event()
    heard = Heard(stopped)
    joined(manager.gpus[0], 1, Noted())
    await journal.report(heard, manager, stopped)
    assert heard.words == ["2 GPUs, 2 clients, gpu0: python[4001]"]


def test_the_journal_follows_clients_and_turns(
    manager: Manager, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    gpu = manager.gpus[0]
    client = joined(gpu, 1, Noted())
    Scripted.latest.decide = lambda event: [
        TurnStarted(1), TurnEnded(1, TurnEnd.QUANTUM, 1_500_000),
        Stuck(1, ClientState.DRAINING, 10_000_000),
    ] if isinstance(event, Tick) else []
    gpu.tell(Tick())
    gpu.leave(client)
    assert [record.getMessage() for record in caplog.records] == [
        "gpu0: python[4001] came",
        "gpu0: python[4001] runs",
        "gpu0: python[4001] ran for 1.500 s: quantum",
        "gpu0: python[4001] does not answer, draining for 10 s",
        "gpu0: python[4001] left",
    ]


def test_faults_name_the_process_and_its_user(caplog: pytest.LogCaptureFixture) -> None:
    complain = journal.complainer(Limited(logging.getLogger("nvshared.test"), Time().clock))
    complain(peer(uid=0), "silent", "it said nothing")
    assert caplog.messages == ["python[4711] of root: it said nothing"]


def test_cards_are_listed_with_their_names(manager: Manager) -> None:
    assert journal.cards(manager) == "gpu0 (Card), gpu1 (Card)"
