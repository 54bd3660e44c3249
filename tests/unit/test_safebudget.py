# SPDX-License-Identifier: Apache-2.0
"""A restarted daemon adds host memory that clients hold to its default host budget."""

from collections.abc import Mapping

import pytest

from nvshared.machine import host
from nvshared.machine.nvml import Sample
from nvshared.quantity import Amount
from nvshared.scheduler.events import CommitAsked, Event, Memory, MemoryChanged, Tick
from nvshared.settings.config import Config
from nvshared.settings.defaults import Defaults, derive
from nvshared.sharing.manager import Manager, SafeBudget
from nvshared.units import GIB, SECOND
from tests.unit.scripted import FACTS, OTHER, Noted, Time, joined

FREE = 20 * GIB
HELD = 60 * GIB
AT_START = int(0.8 * FREE)
WITH_HELD = int(0.8 * (FREE + HELD))
SWAPPED = Memory(allocated=HELD, host=HELD)


class Site:
    """A daemon with one or two cards on a host with `free` bytes of free memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cards: int, config: Config) -> None:
        self.free = FREE
        self.time = Time()
        self.looks: list[dict[int, int]] = []
        monkeypatch.setattr(host, "total", lambda: 256 * GIB)
        monkeypatch.setattr(host, "safe_budget", self._safe)
        facts = [FACTS, OTHER][:cards]
        self.config = config
        safe = SafeBudget(self.time.clock, self.time.timer)

        def read() -> Defaults:
            return derive(self.config, facts, safe.bytes)

        self.manager = Manager(read, self.time.clock, self.time.timer)
        safe.follow(self.manager)
        for one in facts:
            self.manager.add(one, Sample(memory_used=0), gather=True)

    def _safe(self, held: Mapping[int, int] | None = None) -> int:
        self.looks.append(dict(held or {}))
        return int(0.8 * (self.free + sum((held or {}).values())))

    def comes(self, number: int, memory: Memory, card: int = 0) -> Noted:
        link = Noted()
        joined(self.manager.gpus[card], number, link, memory)
        return link

    def gathers(self) -> None:
        self.time.pass_by(SECOND)

    @property
    def whole(self) -> int:
        return sum(gpu.snapshot().host_budget for gpu in self.manager.gpus)


@pytest.fixture(params=[1, 2])
def site(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Site:
    return Site(monkeypatch, request.param, Config())


def test_default_host_budget_includes_host_memory_held_by_clients_of_an_earlier_daemon(
        site: Site) -> None:
    assert site.whole == AT_START
    link = site.comes(1, SWAPPED)
    assert site.whole == AT_START
    site.manager.gpus[0].tell(CommitAsked(1, SWAPPED, 1, HELD + GIB))
    site.gathers()
    site.manager.reload()
    assert WITH_HELD - 1 <= site.whole <= WITH_HELD
    assert site.looks == [{}, {4001: HELD}]
    # The request is decided with the larger budget.
    (answer,) = [order for order in link.orders if getattr(order, "number", 0) == 1]
    assert answer.commit >= HELD + GIB  # type: ignore[union-attr]


def test_default_host_budget_ignores_host_memory_taken_by_clients_after_the_recomputation(
        site: Site) -> None:
    site.comes(1, SWAPPED)
    site.gathers()
    whole = site.whole
    site.manager.gpus[0].tell(MemoryChanged(1, Memory(allocated=HELD, host=2 * HELD)))
    site.comes(2, Memory())
    site.time.pass_by(120 * SECOND)
    site.comes(3, SWAPPED)
    site.time.pass_by(120 * SECOND)
    assert site.whole == whole
    assert len(site.looks) == 2


def test_default_host_budget_counts_a_process_on_two_cards_once(
        monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(monkeypatch, 2, Config())
    for card in (0, 1):
        client = site.comes(1 + card, Memory(host=GIB, beyond=2 * GIB), card)
        assert client.orders
    site.comes(3, Memory())
    site.gathers()
    assert site.looks[-1] == {4001: 3 * GIB, 4002: 3 * GIB}


def test_default_host_budget_is_recomputed_for_late_clients_once_per_interval(site: Site) -> None:
    site.gathers()
    assert site.whole == AT_START
    site.time.pass_by(10 * SECOND)
    site.comes(1, SWAPPED)
    assert WITH_HELD - 1 <= site.whole <= WITH_HELD
    for number in range(2, 10):
        site.comes(number, Memory(allocated=GIB, host=GIB))
    assert len(site.looks) == 2
    site.time.pass_by(SECOND)
    assert len(site.looks) == 3
    assert site.whole >= int(0.8 * (FREE + HELD + 8 * GIB)) - 1


def test_default_host_budget_does_not_replace_a_configured_size(
        monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(monkeypatch, 1, Config(swap_budget=Amount(30 * GIB)))
    sizes: list[int] = []

    def note(_: int, event: Event) -> None:
        if isinstance(event, Tick):
            sizes.append(site.manager.budget.shared.size)

    site.manager.gpus[0].happened.connect(note)
    site.comes(1, SWAPPED)
    site.gathers()
    assert site.whole == 30 * GIB
    site.config = Config()              # the default: swap-budget = auto
    site.manager.reload()
    assert site.whole == WITH_HELD
    assert list(dict.fromkeys(sizes)) == [30 * GIB, WITH_HELD]
