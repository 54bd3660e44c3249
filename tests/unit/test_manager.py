# SPDX-License-Identifier: Apache-2.0
"""Class Manager finds GPUs by name, and changes settings of all GPUs or of one GPU."""

from dataclasses import replace
from pathlib import Path

import pytest

from nvshared.errors import ConfigError, InvalidArgs
from nvshared.machine.nvml import Sample
from nvshared.scheduler.events import AntiThrash
from nvshared.settings.state import StateFile
from nvshared.sharing.gpu import GPU
from nvshared.sharing.manager import Manager
from nvshared.units import GIB, SECOND
from tests.unit.scripted import DEFAULTS, FACTS, OTHER, SETTINGS, Scripted, Time, script


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Manager:
    script(monkeypatch)
    time = Time()
    made = Manager(lambda: DEFAULTS, time.clock, time.timer, StateFile(tmp_path))
    made.add(OTHER, Sample(memory_used=0), gather=False)
    made.add(FACTS, Sample(memory_used=0), gather=False)
    return made


@pytest.mark.parametrize("name", [
    "1", OTHER.uuid, OTHER.uuid.upper(), OTHER.uuid[4:], "00000000:65:00.0", "0000:65:00.0",
    "65:00.0",
])
def test_gpu_is_found_by_index_uuid_and_pci_address(manager: Manager, name: str) -> None:
    assert manager.gpu(name).facts is OTHER
    assert manager.gpu_by_uuid(OTHER.uuid_bytes).facts is OTHER


def quanta(manager: Manager) -> list[int]:
    return [-(-tq // SECOND) for tq in (manager.tq, *(gpu.tq for gpu in manager.gpus))]


def auto(manager: Manager) -> list[bool]:
    return [one.tq is None for one in (manager.settings, *(g.settings for g in manager.gpus))]


def test_set_tq_changes_and_saves_the_quantum_of_one_gpu_or_of_all(
        manager: Manager, tmp_path: Path) -> None:
    heard: list[None] = []
    manager.changed.connect(lambda: heard.append(None))
    assert quanta(manager) == [30, 30, 30]
    manager.set_tq(5 * SECOND, manager.gpus[1]).result()
    assert quanta(manager) == [30, 30, 5]
    assert StateFile(tmp_path).load() == {"": {}, OTHER.uuid: {"tq": 5_000_000}}
    manager.set_anti_thrash("on", manager.gpus[1])
    manager.set_tq(7 * SECOND)
    assert quanta(manager) == [7, 7, 7]
    assert manager.gpus[1].settings.anti_thrash is AntiThrash.ON
    assert manager.settings.anti_thrash is AntiThrash.AUTO
    manager.set_anti_thrash("off")
    assert {gpu.settings.anti_thrash for gpu in manager.gpus} == {AntiThrash.OFF}
    manager.reset_settings().result()
    assert quanta(manager) == [30, 30, 30]
    assert StateFile(tmp_path).load() == {"": {}}
    assert len(heard) == 5


@pytest.mark.parametrize("usec", [0, -SECOND, 999, SECOND << 32, 0xFFFF_FFFF * SECOND + 1])
def test_set_tq_below_a_millisecond_or_above_a_day_is_refused(manager: Manager, usec: int) -> None:
    manager.set_tq(500_000, manager.gpus[1])
    with pytest.raises(InvalidArgs) as caught:
        manager.set_tq(usec)
    assert str(caught.value) == (
        f"the quantum cannot be {usec / SECOND:.10g} seconds; give 0.001 to 86400")
    assert [gpu.tq for gpu in manager.gpus] == [30_000_000, 500_000]


def test_reload_applies_all_settings_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch)
    time = Time()
    now = [DEFAULTS]

    def read() -> object:
        if not now:
            raise ConfigError("/etc/nvshare/nvshared.conf:3: wrong")
        return now[0]

    manager = Manager(read, time.clock, time.timer)     # type: ignore[arg-type]
    manager.add(FACTS, Sample(), gather=False)
    now[0] = replace(DEFAULTS, settings=replace(SETTINGS, tq=9_000_000))
    manager.reload()
    assert quanta(manager) == [9, 9]
    now[0] = replace(DEFAULTS, settings=replace(SETTINGS, tq=None, longest_tq=7_500_000))
    manager.reload()
    assert manager.gpus[0].settings.tq is None
    assert quanta(manager) == [8, 2]
    now.clear()
    with pytest.raises(ConfigError):
        manager.reload()
    assert quanta(manager) == [8, 2]


def test_saved_settings_apply_from_the_start_of_the_daemon(monkeypatch: pytest.MonkeyPatch,
                                                           tmp_path: Path) -> None:
    script(monkeypatch)
    time = Time()
    store = StateFile(tmp_path)
    store.save({"": {"tq": 4_000_000}, OTHER.uuid: {"anti_thrash": AntiThrash.ON}}).result()
    manager = Manager(lambda: DEFAULTS, time.clock, time.timer, store)
    gpu: GPU = manager.add(OTHER, Sample(), gather=True)
    assert (gpu.tq, gpu.settings.anti_thrash) == (4 * SECOND, AntiThrash.ON)
    store.save({"": {"tq": None}}).result()
    manager = Manager(lambda: DEFAULTS, time.clock, time.timer, store)
    assert manager.add(FACTS, Sample(), gather=True).settings.tq is None


def test_card_memory_used_at_the_daemons_start_is_subtracted_unless_clients_will_reconnect(
        manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    time = Time()
    used = Sample(memory_used=10 * GIB)
    fresh = Manager(lambda: DEFAULTS, time.clock, time.timer)
    assert fresh.add(FACTS, used, gather=False).capacity.bytes == 54 * GIB
    assert Scripted.latest.settings.gather == 0
    assert fresh.add(OTHER, used, gather=True).capacity.bytes == 32 * GIB
    assert Scripted.latest.settings.gather == SETTINGS.gather
