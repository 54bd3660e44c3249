# SPDX-License-Identifier: Apache-2.0
"""Facts, samples and errors from the results of a fake NVML."""

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nvshared import daemon
from nvshared.errors import ExitCode, GPULost, NoDriver, NoGPU, NvshareError
from nvshared.machine import nvml as nvml_module
from nvshared.machine.nvml import NVML, Process, Sample
from nvshared.units import GIB
from tests.unit.scripted import FACTS


class FakeError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"NVML says {value}")
        self.value = value


class FakeLibrary:
    NVMLError = FakeError
    NVML_ERROR_NOT_SUPPORTED = 3
    NVML_ERROR_NO_PERMISSION = 4
    NVML_ERROR_NOT_FOUND = 6
    NVML_ERROR_DRIVER_NOT_LOADED = 9
    NVML_ERROR_LIBRARY_NOT_FOUND = 12
    NVML_ERROR_GPU_IS_LOST = 15
    NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18
    NVML_TEMPERATURE_GPU = 0
    NVML_DEVICE_MIG_ENABLE = 1
    NVML_P2P_CAPS_INDEX_WRITE = 1
    NVML_P2P_CAPS_INDEX_NVLINK = 2
    NVML_P2P_STATUS_OK = 0

    def __init__(self) -> None:
        # Errors by function name, or by (function name, index of the card).
        self.failing: dict[str | tuple[str, int], int | Exception] = {}
        self.count = 1

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def call(*given: Any) -> Any:
            card = _card(*given)
            if (failure := self.failing.get(name, self.failing.get((name, card)))) is not None:
                raise failure if isinstance(failure, Exception) else FakeError(failure)
            if name.startswith("nvmlDeviceGetHandleBy"):
                return f"card {card}"
            if name == "nvmlDeviceGetUUID" and card:
                return OTHER
            return ANSWERS.get(name, self.count)

        return call


OTHER = FACTS.uuid[:-1] + "e"


def _card(given: Any = 0, *_: object) -> int:
    """The index of the card of a query, from an index, a UUID or a handle."""
    return given if isinstance(given, int) else int(given in (OTHER, "card 1"))


ANSWERS: dict[str, Any] = {
    "nvmlDeviceGetUUID": FACTS.uuid,
    "nvmlDeviceGetName": "Card",
    "nvmlDeviceGetMigMode": [0, 0],
    "nvmlDeviceGetPciInfo": SimpleNamespace(busId="00000000:17:00.0"),
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=64 * GIB, used=3 * GIB),
    "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=50),
    "nvmlDeviceGetTemperature": 40,
    "nvmlDeviceGetPowerUsage": 123_000,
    "nvmlDeviceGetComputeRunningProcesses": [
        SimpleNamespace(pid=7, usedGpuMemory=5), SimpleNamespace(pid=8, usedGpuMemory=None)],
}


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> FakeLibrary:
    fake = FakeLibrary()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.setattr("nvshared.machine.host.private", {7: 4 * GIB, 8: 0}.get)
    return fake


def test_nvml_find_returns_uuid_name_address_size_and_mig_mode_of_each_card(library: FakeLibrary,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    assert NVML().find() == (FACTS,)
    monkeypatch.setitem(ANSWERS, "nvmlDeviceGetMigMode", [1, 1])
    library.failing["nvmlDeviceGetName"] = NO_NVML_ERRORS[0]
    name = "NVIDIA \N{REPLACEMENT CHARACTER}?"
    assert NVML().find() == (replace(FACTS, mig=True, name=name),)


def test_nvml_names_the_cards_linked_by_nvlink(library: FakeLibrary,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    library.count = 2
    monkeypatch.setitem(ANSWERS, "nvmlDeviceGetP2PStatus", 0)
    assert [found.linked for found in NVML().find()] == [{OTHER}, {FACTS.uuid}]
    monkeypatch.setitem(ANSWERS, "nvmlDeviceGetP2PStatus", 5)
    assert [found.linked for found in NVML().find()] == [set(), set()]
    library.failing["nvmlDeviceGetP2PStatus"] = 15
    assert [found.linked for found in NVML().find()] == [set(), set()]


def test_nvml_sample_has_memory_utilisation_temperature_power_and_processes(
        library: FakeLibrary) -> None:
    assert NVML().sample(FACTS.uuid) == Sample(3 * GIB, 0.5, 40, 123.0,
                                               (Process(7, 5, 4 * GIB), Process(8, None)))


@pytest.mark.parametrize(("value", "loaded", "code", "sentence"), [
    (12, False, ExitCode.NO_DRIVER,
     "libnvidia-ml.so.1 is not installed, so no GPU can be managed; install"),
    (9, False, ExitCode.NO_DRIVER,
     "the NVIDIA driver is not loaded; load it with: modprobe nvidia"),
    (18, True, ExitCode.NO_DRIVER,
     "the NVIDIA kernel module and libraries are of different versions; reboot"),
    # These faults may end by themselves, so systemd should restart the daemon.
    (4, True, ExitCode.FAILURE, "/dev/nvidiactl may not be opened; run as a user who may"),
    (999, True, ExitCode.FAILURE,
     "the NVIDIA driver does not answer: NVML says 999; see what nvidia-smi says"),
])
def test_nvml_without_a_driver_raises_no_driver_with_the_reason(
        library: FakeLibrary, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: int,
        loaded: bool, code: ExitCode, sentence: str) -> None:
    monkeypatch.setattr(nvml_module, "LOADED", tmp_path if loaded else tmp_path / "none")
    library.failing["nvmlInit"] = value
    with pytest.raises(NoDriver) as caught:
        NVML()
    assert str(caught.value).startswith(sentence)
    assert caught.value.exit_code is code


@pytest.mark.parametrize(("value", "code", "words"), [
    (18, ExitCode.NO_DRIVER, "are of different versions; reboot"), (12, ExitCode.OK, ""),
    (999, ExitCode.OK, "")])
def test_check_option_fails_only_for_a_driver_that_needs_a_reboot(
        library: FakeLibrary, tmp_path: Path, capfd: pytest.CaptureFixture[str], value: int,
        code: ExitCode, words: str) -> None:
    library.failing["nvmlInit"] = value
    (tmp_path / "conf").write_text("")
    assert daemon.main(["--check", "--config", str(tmp_path / "conf")]) == code
    said = capfd.readouterr().err
    assert words in said
    assert bool(words) == bool(said)


@pytest.mark.parametrize(("question", "error", "why"), [
    ("HandleByIndex", 15, "NVML says 15"),
    ("MemoryInfo", 3, "it has no memory of its own, but the host's"),
])
def test_nvml_skips_a_card_without_a_handle_or_dedicated_memory_and_logs_the_reason(
        library: FakeLibrary, caplog: pytest.LogCaptureFixture, question: str, error: int,
        why: str) -> None:
    library.failing[f"nvmlDeviceGet{question}"] = error
    with pytest.raises(NoGPU, match="knows no GPU that can be shared"):
        NVML().find()
    assert f"GPU 0 is left out: {why}" in caplog.text


@pytest.mark.parametrize(("function", "line"), [
    ("nvmlDeviceGetHandleByIndex", "GPU 0 is left out: NVML says 18"),
    ("nvmlDeviceGetName", "GPU 0: its name cannot be read: NVML says 18"),
    ("nvmlEventSetCreate", "errors of the GPUs are not reported: NVML says 18"),
])
def test_nvml_failure_that_lasts_is_logged_once_however_often_the_daemon_searches(
        library: FakeLibrary, caplog: pytest.LogCaptureFixture, function: str, line: str) -> None:
    nvml = NVML()
    library.failing[function] = library.NVML_ERROR_LIB_RM_VERSION_MISMATCH
    for _ in range(5):
        assert nvml.renew()
        with suppress(NoGPU):
            nvml.find()
        if function == "nvmlEventSetCreate":
            nvml.watch_faults([FACTS.uuid], lambda *_: None)
    assert caplog.messages == [line]


QUESTIONS = (
    "HandleByIndex", "UUID", "Name", "PciInfo", "MemoryInfo", "MigMode", "UtilizationRates",
    "PowerUsage", "ComputeRunningProcesses", "Temperature", "HandleByUUID",
)
NO_NVML_ERRORS = (
    UnicodeDecodeError("utf-8", b"NVIDIA \xf8\x01", 7, 8, "invalid start byte"),
    AttributeError("undefined symbol: nvmlDeviceGetComputeRunningProcesses_v3"), OSError("gone"),
)
CODES: tuple[int | Exception, ...] = (*range(1, 30), 999, *NO_NVML_ERRORS)


@pytest.mark.parametrize("question", QUESTIONS)
def test_nvml_query_that_fails_on_a_card_changes_no_figures_of_other_cards(
        library: FakeLibrary, caplog: pytest.LogCaptureFixture, question: str) -> None:
    library.count = 2
    for code in CODES:
        library.failing.clear()
        caplog.clear()
        fail_for_one_card(library, caplog, question, code)


def fail_for_one_card(library: FakeLibrary, caplog: pytest.LogCaptureFixture, question: str,
                      code: int | Exception) -> None:
    nvml = NVML()
    library.failing[f"nvmlDeviceGet{question}", 0] = code
    found = nvml.find()
    assert 1 in [facts.index for facts in found]
    if 0 not in [facts.index for facts in found]:
        assert "GPU 0 is left out: " in caplog.text
    library.failing.clear()
    first, second = nvml.find()
    whole = nvml.sample(first.uuid)
    nvml = NVML()
    library.failing[f"nvmlDeviceGet{question}", 0] = code
    lost = code in (library.NVML_ERROR_NOT_FOUND, library.NVML_ERROR_GPU_IS_LOST)
    asked_for = question not in ("HandleByIndex", "UUID", "Name", "PciInfo", "MigMode")
    if asked_for and (lost or question == "HandleByUUID"):
        with pytest.raises(GPULost if lost else NvshareError):
            nvml.sample(first.uuid)
    else:
        sample = nvml.sample(first.uuid)
        differing = [name for name in FIGURES if getattr(sample, name) != getattr(whole, name)]
        assert len(differing) == asked_for
        assert all(getattr(sample, name) is None for name in differing)
        assert ("memory_used" in differing) == bool(sample.trouble)
    assert replace(nvml.sample(second.uuid), processes=None) == replace(whole, processes=None)


def test_nvml_sample_of_a_silent_card_fails_as_usual_while_a_search_samples_it_too(
        library: FakeLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = NVML()

    def fails(_handle: object) -> None:
        with monkeypatch.context() as other:    # the thread that looks for cards fails first
            other.setattr(library, "nvmlDeviceGetMemoryInfo", broken, raising=False)
            nvml.sample(FACTS.uuid)
        broken()

    def broken(_handle: object = None) -> None:
        raise FakeError(999)

    monkeypatch.setattr(library, "nvmlDeviceGetMemoryInfo", fails, raising=False)
    assert "NVML says 999" in nvml.sample(FACTS.uuid).trouble


def test_nvml_search_finds_all_cards_while_a_sample_of_one_of_them_fails(
        library: FakeLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml, library.count = NVML(), 2

    def status(*_given: object) -> int:
        library.failing["nvmlDeviceGetMemoryInfo"] = 999
        for uuid in (FACTS.uuid, OTHER):        # in the sampler's threads
            nvml.sample(uuid)
        del library.failing["nvmlDeviceGetMemoryInfo"]
        return FakeLibrary.NVML_P2P_STATUS_OK

    monkeypatch.setattr(library, "nvmlDeviceGetP2PStatus", status, raising=False)
    assert [card.reached for card in nvml.find()] == [{OTHER}, {FACTS.uuid}]


FIGURES = ("memory_used", "utilisation", "temperature", "power", "processes")
