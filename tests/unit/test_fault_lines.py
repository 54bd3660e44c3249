# SPDX-License-Identifier: Apache-2.0
"""The lines of the journal on faults: the begin and the end of each, and few of one that recurs."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from nvshared.faults import LOGGED_EVERY, Faults
from nvshared.lanes import here
from nvshared.machine.nvml import Sample
from nvshared.sharing import rivals
from nvshared.sharing.checks import Checks
from nvshared.sharing.manager import Manager
from nvshared.sharing.rivals import RIVALS_MOST, Rivals
from tests.unit.scripted import DEFAULTS, FACTS, Time, script

BEGIN = ("fault gpu-unreliable: the driver has reported an error of GPU 3 that no program causes: "
         "Xid 48; ")
END = ("fault gpu-unreliable is over: the driver has reported an error of GPU 3 that no program "
       "causes")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> list[float]:
    """The time of the faults in seconds; the lines are those from level INFO on."""
    caplog.set_level("INFO")
    now = [1000.0]
    monkeypatch.setattr("nvshared.faults.time.monotonic", lambda: now[0])
    return now


def test_fault_is_logged_at_its_begin_with_the_remedy_and_at_its_end(
        clock: list[float], caplog: pytest.LogCaptureFixture) -> None:
    card = Faults(lambda: None, 3)
    for detail in ("Xid 48", "Xid 48", "Xid 48, Xid 64", "", ""):
        card.set("gpu-unreliable", detail)
    begin, end = caplog.records
    assert begin.getMessage().startswith(BEGIN)
    assert begin.getMessage().endswith("nvsharectl forget-gpu 3")
    assert (begin.levelname, end.levelname, end.getMessage()) == ("ERROR", "INFO", END)


def test_fault_while_it_recurs_within_an_interval_is_logged_once(
        clock: list[float], caplog: pytest.LogCaptureFixture) -> None:
    card = Faults(lambda: None, 3)
    for _ in range(1000):
        card.set("gpu-unreliable", "Xid 48")
        card.set("gpu-unreliable", "")
    assert len(caplog.records) == 2
    card.set("gpu-unreliable", "Xid 48")
    for expected in (2, 3, 3):
        card.log_again()
        assert len(caplog.records) == expected
        clock[0] += LOGGED_EVERY


def test_gpu_error_after_a_forgotten_one_is_logged_at_the_next_look(
        clock: list[float], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch,
        ) -> None:
    script(monkeypatch)
    time = Time()
    manager = Manager(lambda: DEFAULTS, time.clock, time.timer)
    gpu = manager.add(FACTS, Sample(), gather=False)
    checks = Checks(manager, time.clock, here, here, lambda _: False, None, lambda: ("", ""))
    gpu.faults.set("gpu-unreliable", "Xid 48")
    manager.forget(gpu)
    gpu.faults.set("gpu-unreliable", "Xid 79")      # once: the card does not answer any more
    clock[0] += LOGGED_EVERY
    asyncio.run(checks.look())
    assert [line.split(": ")[0] for line in caplog.messages] == [
        "fault gpu-unreliable", "fault gpu-unreliable is over", "fault gpu-unreliable"]
    assert "Xid 79" in caplog.messages[-1]


def test_fault_of_a_second_daemon_names_few_of_many_faked_daemons(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user can make namespaces, with a process called nvshared in each."""
    script(monkeypatch)
    monkeypatch.setattr(rivals, "PROC", tmp_path)
    facts, time = replace(FACTS, serial="faults"), Time()
    for name in ("self", *map(str, range(1 << 22, (1 << 22) + 1000))):      # no pids
        (tmp_path / name / "net").mkdir(parents=True)
        (tmp_path / name / "comm").write_text("nvshared\n")
        (tmp_path / name / "net/unix").write_text(f"Num Path\n1 @nvshare/{facts.uuid}/faults\n")
    manager = Manager(lambda: DEFAULTS, time.clock, time.timer)
    gpu = manager.add(facts, Sample(), gather=False)
    watching = Rivals(manager, time.clock, here)
    asyncio.run(watching._look())
    watching.close()
    assert gpu.faults.detail("gpu-contested").count("in another network namespace") == RIVALS_MOST
