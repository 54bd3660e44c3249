# SPDX-License-Identifier: Apache-2.0
"""From the configuration and the cards to the schedulers' settings."""

from dataclasses import replace
from pathlib import Path

import pytest

from nvshared.errors import ConfigError
from nvshared.machine import host
from nvshared.quantity import Amount
from nvshared.scheduler.events import Accounting, AntiThrash
from nvshared.settings.config import Config, load
from nvshared.settings.defaults import derive
from nvshared.units import GIB, MIB
from tests.unit.scripted import FACTS, OTHER


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "total", lambda: 256 * GIB)


def test_unset_settings_are_derived_from_card_and_host() -> None:
    defaults = derive(Config(), [FACTS, OTHER], 100 * GIB)
    assert defaults.settings.host_budget == 100 * GIB
    assert defaults.settings.accounting == Accounting()
    assert defaults.settings.tq == 30_000_000
    assert derive(Config(tq=None), [FACTS], GIB).settings.tq is None
    assert defaults.settings.anti_thrash is AntiThrash.AUTO
    assert defaults.card(FACTS).step == 512 * MIB
    assert defaults.card(replace(FACTS, memory_total=3200 * MIB)).step == 100 * MIB
    assert defaults.card(replace(FACTS, memory_total=640 * MIB)).step == 32 * MIB
    assert defaults.card(FACTS).allowances.configured == FACTS.memory_total


def test_settings_in_percent_refer_to_memory_of_each_card_or_of_the_host() -> None:
    config = Config(
        capacity=Amount(share=0.5), swap_budget=Amount(share=0.5), compute_window=1,
        quota_sample_interval=2, quota_carryover=3, drop_tail_billing=4)
    defaults = derive(config, [FACTS, OTHER], 0)
    assert defaults.card(FACTS).allowances.configured == 32 * GIB
    assert defaults.card(OTHER).allowances.configured == 16 * GIB
    assert defaults.settings.host_budget == 128 * GIB
    assert defaults.settings.accounting == Accounting(1, 2, 3, 4)


@pytest.mark.parametrize(("settings", "sentence"), [
    ("capacity = 40GiB",
     "a capacity of 40.0 GiB is more than GPU 1 (Card) has: 32.0 GiB; give less, or a percentage"),
    ("context-reserve = 100%", "a reserve of 256 MiB and a context-reserve of 64.0 GiB leave "
     "nothing of GPU 0 (Card), which has 64.0 GiB; give less, or a percentage"),
    ("swap-budget = 300GiB", "a swap-budget of 300.0 GiB is more than the 256.0 GiB this host has; "
     "give less, a percentage, or auto"),
])
def test_settings_beyond_the_memory_of_card_or_host_are_refused_with_the_file_and_line(
        tmp_path: Path, settings: str, sentence: str) -> None:
    path = tmp_path / "nvshared.conf"
    path.write_text(f"[gpu]\ntq = 3\n{settings}\n")
    with pytest.raises(ConfigError) as caught:
        derive(load(path, {}, {}), [FACTS, OTHER], 0)
    assert str(caught.value) == f"{path}:3: {sentence}"
    name, _, value = settings.partition(" = ")
    with pytest.raises(ConfigError) as caught:      # an option has no file and line
        derive(load(path, {}, {name: value}), [FACTS, OTHER], 0)
    assert str(caught.value) == sentence
