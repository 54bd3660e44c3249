# SPDX-License-Identifier: Apache-2.0
"""Findings of nvsharectl doctor on simulated machines."""

import dataclasses
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nvshared import doctor as checks
from nvshared import library
from nvshared.cli.machine import TOPICS
from nvshared.cli.main import main
from nvshared.control import connection, unit
from nvshared.control.snapshot import ClientSnapshot, Snapshot
from nvshared.doctor import Finding, Grade, InspectedGPU, Inspection
from nvshared.errors import BusUnavailable, ExitCode, NoDriver, NotRunning, NvshareError
from nvshared.machine import host
from nvshared.machine.nvml import Process, Sample
from nvshared.preload import trial
from nvshared.units import GIB
from tests.unit.scripted import FACTS

OTHERS = Sample(memory_used=3 * GIB, processes=(Process(11, 2 * GIB), Process(12, None)))


def grades(findings: Iterator[Finding]) -> list[tuple[str, str]]:
    """Topic and grade of each finding; checks that warnings and faults have advice."""
    found = list(findings)
    for finding in found:
        assert finding.words
        assert not finding.words.endswith(".")
        assert finding.advice or finding.grade in (Grade.OK, Grade.NOTE)
        assert len(finding.topic) <= TOPICS
    return [(finding.topic, str(finding.grade)) for finding in found]


def a_client(pid: int) -> ClientSnapshot:
    fields: dict[str, Any] = dict.fromkeys(ClientSnapshot._fields, 0)
    return ClientSnapshot(**{**fields, "id": 1, "pid": pid, "name": "python", "state": "idle"})


def a_snapshot(*clients: ClientSnapshot, version: str = "1") -> Snapshot:
    return Snapshot(version, 30, 30_000_000, False, "auto", (), clients)


def test_doctor_without_a_driver_reports_only_the_missing_driver() -> None:
    inspection = Inspection(
        error=NoDriver("the NVIDIA driver is not loaded", "load it with: modprobe nvidia"))
    (finding,) = checks.driver_findings(inspection)
    assert (finding.grade, finding.advice) == (Grade.FAULT, "load it with: modprobe nvidia")
    assert list(checks.program_findings(inspection, None)) == []


@pytest.mark.parametrize(("mig", "exclusive", "sample", "grade", "words"), [
    (False, False, OTHERS, Grade.OK, "3.0 GiB used"),
    (False, False, None, Grade.FAULT, "does not answer: it fell off"),
    (False, True, OTHERS, Grade.FAULT, "one process"),
    (True, False, OTHERS, Grade.WARNING, "MIG"),
])
def test_doctor_grades_a_card_by_mode_and_nvml_sample(
        mig: bool, exclusive: bool, sample: Sample | None, grade: Grade, words: str) -> None:
    facts = dataclasses.replace(FACTS, mig=mig)
    inspection = Inspection("580.1", (InspectedGPU(facts, exclusive, sample, "it fell off"),))
    driver, card = checks.driver_findings(inspection)
    assert (driver.grade, driver.words) == (Grade.OK, "version 580.1")
    assert card.grade is grade
    assert words in card.words


def test_doctor_names_programs_without_the_library_or_with_a_replaced_library(
        monkeypatch: pytest.MonkeyPatch) -> None:
    maps = {11: "7f00-7f01 r-xp 0 fe:00 1 /bin/cat\n",
            12: "7f00-7f01 r-xp 0 fe:00 1 /l/libnvshare.so\n"}
    monkeypatch.setattr(
        host, "process", lambda pid, name: maps.get(pid, "") if name == "maps" else "")
    inspection = Inspection("1", (InspectedGPU(FACTS, False, OTHERS),))
    assert grades(checks.program_findings(inspection, a_snapshot(a_client(11), a_client(12)))) == [
        ("clients", "ok")]
    found = list(checks.program_findings(inspection, a_snapshot(a_client(99))))
    assert [one.grade for one in found] == [Grade.OK, Grade.WARNING, Grade.WARNING]
    assert "[11] uses GPU 0 with 2.0 GiB without nvshared" in found[1].words
    assert "nvsharectl run" in found[1].advice
    assert "although it has the library" in found[2].words
    without = list(checks.program_findings(inspection, None))
    assert [one.grade for one in without] == [Grade.WARNING, Grade.NOTE]
    assert "is unknown, since nvshared does not answer on this bus" in without[1].words
    maps[11] = "7f00-7f01 r-xp 0 fe:00 1 /l/libnvshare.so (deleted)\n"
    replaced = checks.program_findings(Inspection("1"), a_snapshot(a_client(11), a_client(12)))
    assert grades(replaced) == [("clients", "ok"), ("library", "warning")]
    maps.clear()                        # the maps of all processes are unreadable
    assert grades(checks.program_findings(inspection, None)) == [("unshared", "note")] * 2
    assert grades(checks.program_findings(inspection, a_snapshot())) == [
        ("unshared", "warning")] * 2


@pytest.mark.parametrize(("settings", "cards_total", "grade", "words"), [
    ("", 90 * GIB, Grade.WARNING, "less than the 90.0 GiB of the cards"),
    ("[gpu]\nswap-budget = 10GiB\n", 0, Grade.OK, "10.0 GiB of host memory, as configured"),
    ("[gpu]\nswap-budget = 60GiB\n", 0, Grade.WARNING, "of which 50.0 GiB are free"),
    ("[gpu]\nswap-budget = 101GiB\n", 0, Grade.FAULT, "the host has 100.0 GiB"),
    ("[gpu]\nswap-budget = much\n", 0, Grade.FAULT, "nvshared.conf:2"),
])
def test_doctor_grades_the_host_budget_against_host_memory(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path, settings: str, cards_total: int,
        grade: Grade, words: str) -> None:
    (tmp_path / "nvshared.conf").write_text(settings)
    monkeypatch.setattr("nvshared.settings.config.DEFAULT_FILE", tmp_path / "nvshared.conf")
    monkeypatch.setattr(host, "total", lambda: 100 * GIB)
    monkeypatch.setattr(host, "free", lambda: 50 * GIB)
    facts = dataclasses.replace(FACTS, memory_total=cards_total)
    inspection = Inspection("1", (InspectedGPU(facts, False, Sample()),))
    budget = next(iter(checks.host_memory_findings(inspection)))
    assert (budget.topic == "configuration") == ("much" in settings)
    assert (budget.grade, words in budget.words) == (grade, True), budget


@pytest.mark.parametrize(("text", "grade"), [
    ("[always] madvise never", Grade.OK), ("always [madvise] never", Grade.OK),
    ("always madvise [never]", Grade.WARNING), (None, Grade.NOTE),
])
def test_doctor_grades_huge_pages(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str | None, grade: Grade) -> None:
    monkeypatch.setattr(checks, "HUGE_PAGES", tmp_path / "enabled")
    if text is not None:
        (tmp_path / "enabled").write_text(text + "\n")
    _, pages = checks.host_memory_findings(Inspection())
    assert pages.grade == grade


def systemd_says(monkeypatch: pytest.MonkeyPatch, folder: Path, shown: str | None) -> None:
    """Replaces systemctl by a script that prints `shown`; with None, the script fails."""
    script = folder / "systemctl"
    script.write_text("#!/bin/sh\n" + ("exit 1\n" if shown is None else f"printf '{shown}'\n"))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    monkeypatch.setattr(unit, "SYSTEMD", folder)


MASKED = "LoadState=masked\nActiveState=inactive\nSubState=dead\nUnitFileState=masked\n"
RESET = "systemctl reset-failed nvshared.socket nvshared.service && systemctl start nvshared"
FAILED = "LoadState=loaded\nActiveState=failed\nSubState=failed\nUnitFileState=enabled\n"
AGAIN = "LoadState=loaded\nActiveState=activating\nSubState=auto-restart\nUnitFileState=enabled\n"


@pytest.mark.parametrize(("shown", "grade"), [
    ("LoadState=loaded\nActiveState=active\nSubState=running\nUnitFileState=enabled\n", "ok"),
    ("LoadState=loaded\nActiveState=active\nSubState=running\nUnitFileState=disabled\n", "warning"),
    ("LoadState=loaded\nActiveState=inactive\nSubState=dead\nUnitFileState=enabled\n", "fault"),
    ("LoadState=not-found\nActiveState=inactive\nSubState=dead\nUnitFileState=\n", "note"),
    (MASKED, "fault"),
    ("LoadState=bad-setting\nActiveState=inactive\nSubState=dead\nUnitFileState=\n", "fault"),
    (None, "warning"),
])
def test_doctor_grades_systemd_units_by_active_and_enabled_state(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shown: str | None, grade: str) -> None:
    systemd_says(monkeypatch, tmp_path, shown)
    monkeypatch.setenv("NVSHARE_SOCKET", str(tmp_path / "none"))
    answer = NotRunning("nvshared is not running", "start it")
    assert grades(checks.daemon_findings("system", answer)) == [
        ("nvshared.socket", grade), ("nvshared.service", grade), ("socket", "fault"),
        ("bus", "fault")]


@pytest.mark.parametrize(("shown", "why", "start"), [
    (FAILED + "Result=exit-code\nStatusText=a.conf:2 is wrong\n", "a.conf:2 is wrong", unit.START),
    (AGAIN + "Result=exit-code\nStatusText=\n", "exit-code", unit.START),
    (AGAIN + "Result=signal\nStatusText=1 GPU\n", "signal", unit.START),
    *((FAILED + f"Result={limit}\n", limit, RESET)
      for limit in ("start-limit-hit", "service-start-limit-hit", "trigger-limit-hit")),
])
def test_doctor_says_why_a_systemd_unit_failed_and_how_to_restart_the_unit(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shown: str, why: str, start: str) -> None:
    systemd_says(monkeypatch, tmp_path, shown)
    _, service, *_ = checks.daemon_findings("none", checks.ask_daemon("none"))
    assert service.grade is Grade.FAULT
    assert service.words.endswith(why)
    assert service.advice.endswith(f"after the repair: {start}")
    # The error of other commands without a daemon has the same advice.
    error = connection.not_running("system")
    assert error.message == f"nvshared is not running: {why}"
    assert error.hint.endswith(start)


def test_doctor_advises_to_unmask_a_masked_unit_and_only_warns_while_nvshared_answers(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    systemd_says(monkeypatch, tmp_path, MASKED)
    monkeypatch.setenv("NVSHARE_SOCKET", str(tmp_path / "none"))
    _, service, *_ = checks.daemon_findings("none", checks.ask_daemon("none"))
    assert service.advice == (
        "systemctl unmask nvshared.socket nvshared.service && systemctl enable --now nvshared")
    for shown in (MASKED, "LoadState=loaded\nActiveState=inactive\nSubState=dead\n"
                  "UnitFileState=enabled\n", FAILED + "Result=signal\n"):
        systemd_says(monkeypatch, tmp_path, shown)
        _, service, *_ = checks.daemon_findings("session", a_snapshot())
        assert service.grade is Grade.WARNING


def test_error_that_nvshared_is_not_running_says_how_to_start_nvshared(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for shown in ("LoadState=loaded\nActiveState=inactive\nSubState=dead\n", None):
        systemd_says(monkeypatch, tmp_path, shown)
        assert connection.not_running("system").hint == "start it with: systemctl start nvshared"
    assert "nvshared --bus session" in connection.not_running("session").hint
    masked = MASKED.replace("FileState=masked", "FileState=masked-runtime")
    systemd_says(monkeypatch, tmp_path, masked)
    error = connection.not_running("system")
    assert error.message.startswith("nvshared is not running: it is masked")
    assert error.hint == (
        "start it with: systemctl unmask --runtime nvshared.socket nvshared.service && "
        "systemctl start nvshared")


@pytest.mark.parametrize(("error", "words"), [
    (NotRunning("nvshared is not running", "start it"), "no process owns com.nvshare"),
    (BusUnavailable("cannot connect to the message bus"), "cannot connect"),
    (NvshareError("it is of another version"), "another version"),
])
def test_doctor_reports_a_failed_bus_as_a_fault_but_as_a_warning_while_programs_are_served(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: NvshareError, words: str) -> None:
    monkeypatch.setenv("NVSHARE_SOCKET", str(tmp_path / "socket"))
    *_, bus = checks.daemon_findings("system", error)
    assert (bus.grade, words in bus.words) == (Grade.FAULT, True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(tmp_path / "socket"))
        listening.listen()
        *_, found, bus = checks.daemon_findings("system", error)
        listening.setblocking(False)
        with pytest.raises(BlockingIOError):    # a connection would start a failed service
            listening.accept()
    assert (found.grade, bus.grade) == (Grade.OK, Grade.WARNING)
    assert words in bus.words
    assert "programs need no bus" in bus.words


def test_doctor_warns_of_a_daemon_that_listens_on_another_socket_or_has_another_version(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NVSHARE_SOCKET", str(tmp_path / "socket"))
    answer = a_snapshot(version="0.0.9")
    *_, found, bus, version = checks.daemon_findings("session", answer)
    assert (found.topic, found.grade) == ("socket", Grade.FAULT)
    assert "set NVSHARE_SOCKET" in found.advice
    assert "start it" not in found.advice
    assert (bus.grade, version.grade) == (Grade.OK, Grade.WARNING)
    assert "version 0.0.9" in version.words


def test_doctor_without_a_program_to_preload_grades_the_library_as_a_note(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(trial, "TRUE", tmp_path / "true")   # an image of nvshared alone has none
    assert grades(checks.installation_findings())[1] == ("library", "note")


@pytest.mark.parametrize(
    ("text", "grade"),
    [("", "note"), ("/lib/other.so\n", "note"), ("/no/such/libnvshare.so\n", "fault"),
     ("{hook}\n{hook}\n", "fault"), ("libnvshare.so\n", "ok")],
)
def test_doctor_grades_the_list_of_preloaded_libraries(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, grade: str) -> None:
    path = tmp_path / "ld.so.preload"
    path.write_text(text.format(hook=library.hook()))
    monkeypatch.setattr("nvshared.preload.switch.LIST", path)
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    assert grades(checks.installation_findings())[-1] == ("preload", grade)
    monkeypatch.setenv("LD_PRELOAD", "/lib/asan.so:/l/libnvshare.so")
    assert grades(checks.installation_findings())[-1] == ("environment", "note")
    monkeypatch.setattr(library, "_INSTALLED", tmp_path)        # a folder without libnvshare.so
    assert grades(checks.installation_findings())[1] == ("library", "fault")


@pytest.mark.parametrize(
    ("grade", "code"),
    [(Grade.OK, ExitCode.OK), (Grade.WARNING, ExitCode.OK), (Grade.FAULT, ExitCode.FAILURE)])
def test_doctor_prints_text_or_json_and_exits_by_grade(
        monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], grade: Grade,
        code: ExitCode) -> None:
    finding = Finding(grade, "socket", "it is so", "do that" if grade is not Grade.OK else "")
    monkeypatch.setattr("nvshared.doctor.examine", lambda _: [finding])
    assert main(["doctor", "--json"]) is code
    found = json.loads(capsys.readouterr().out)
    assert found["healthy"] is (grade is not Grade.FAULT)
    assert found["findings"] == [finding._asdict()]
    assert main(["doctor"]) is code
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.split() == [str(grade), "socket", "it", "is", "so"]
    assert any("→ do that" in line for line in rest) is (grade is not Grade.OK)
    assert ("cannot share" in rest[-1]) is (grade is Grade.FAULT)


def test_doctor_denies_only_the_gpus_with_faults_while_another_gpu_can_be_shared(
        monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lost = Finding(Grade.FAULT, "gpu 1", "it is lost", "look")
    monkeypatch.setattr("nvshared.doctor.examine", lambda _: [
        Finding(Grade.OK, "gpu 0", "it is there"), lost])
    assert main(["doctor"]) is ExitCode.FAILURE
    assert capsys.readouterr().out.endswith("can share their GPUs, but for GPU 1.\n")
    monkeypatch.setattr("nvshared.doctor.examine", lambda _: [lost])
    assert main(["doctor"]) is ExitCode.FAILURE
    assert capsys.readouterr().out.endswith("cannot share their GPUs: 1 fault.\n")


def test_doctor_warns_of_static_pods_that_started_without_a_gpu(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(checks, "STATIC_PODS", tmp_path / "file")
    assert grades(checks.static_pod_findings()) == []
    for text in ("[[", "[1]", "3", "[]", '[["lab/bare: c1 started without", "move it"]]'):
        checks.STATIC_PODS.write_text(text)
        found = grades(checks.static_pod_findings())
        assert found == ([] if text == "[]" else [("static pod", "warning")])
