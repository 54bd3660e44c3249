# SPDX-License-Identifier: Apache-2.0
"""nvsharectl trial: the files that it writes and removes."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from nvshared import library
from nvshared.cli import machine as trial
from nvshared.cli.main import build
from nvshared.containers import cdi
from nvshared.control import unit
from nvshared.errors import NotPermitted, NvshareError

SYSTEMCTL = """\
#!/bin/sh
if [ "$1" = show ]; then echo ActiveState=inactive; exit; fi
echo "$@" >>"$0.log"
[ "$1" != restart ] || [ ! -e "$0.fails" ]
"""
Run = Callable[..., object]


@pytest.fixture
def systemctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A systemctl that only records its arguments, and a system below a folder."""
    program = tmp_path / "bin" / "systemctl"
    program.parent.mkdir()
    program.write_text(SYSTEMCTL)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(unit, "SYSTEMD", tmp_path)
    monkeypatch.setattr(trial, "FOLDER", tmp_path / "state")
    monkeypatch.setattr(trial, "SPECIFICATION", tmp_path / "cdi" / "trial.json")
    monkeypatch.setattr(cdi, "read", lambda: None)
    monkeypatch.setattr(trial, "STATE", trial.FOLDER / "terms")
    monkeypatch.setattr(trial, "DROP_IN", tmp_path / "units" / "service.d" / "trial.conf")
    monkeypatch.setattr(trial, "HELPER_DROP_IN", tmp_path / "units" / "helper.d" / "trial.conf")
    return program


@pytest.fixture
def run(systemctl: Path) -> Run:
    return lambda *words: trial.trial.act(build((trial.trial,)).parse_args(["trial", *words]))


def test_trial_start_writes_settings_that_trial_stop_removes(run: Run, systemctl: Path) -> None:
    before = os.umask(0o077)
    run("start", "--gpus", "2", "--memory", "2GiB")
    os.umask(before)
    for name, mode in (("gpus", 0o666), ("", 0o755), ("settings", 0o644)):
        assert (trial.FOLDER / name).stat().st_mode & 0o777 == mode
    for drop_in in (trial.DROP_IN, trial.HELPER_DROP_IN):
        lines = drop_in.read_text().splitlines()
        assert f"Environment=NVSHARE_SIM_DIR={trial.FOLDER}" in lines
        assert f"ReadWritePaths={trial.FOLDER}" in lines
    # Root may not read what all users may write.
    assert "User=nvshare" in lines
    assert (trial.FOLDER / "settings").read_text() == f"gpus 2\nmemory {2 << 30}\n"
    said = json.loads(trial.SPECIFICATION.read_text())
    assert [one["name"] for one in said["devices"]] == ["all", "0", "1"]
    assert said["kind"] == "nvidia.com/gpu"
    assert {one["hostPath"]: one["options"][0] for one in said["containerEdits"]["mounts"]} == {
        str(library.simulator().parent): "ro", str(trial.FOLDER): "rw"}
    with pytest.raises(NvshareError, match="on already"):
        run("start")
    run("stop")
    assert not trial.FOLDER.exists()
    assert not trial.SPECIFICATION.exists()
    assert not trial.DROP_IN.parent.exists()
    assert not trial.HELPER_DROP_IN.parent.exists()
    assert Path(f"{systemctl}.log").read_text().splitlines() == [
        "daemon-reload", "restart nvshared.service", "daemon-reload", "stop nvshared.service"]
    with pytest.raises(NvshareError, match="no trial is on"):
        run("stop")


def test_trial_leaves_no_files_when_the_service_fails_to_start(run: Run, systemctl: Path) -> None:
    Path(f"{systemctl}.fails").touch()
    with pytest.raises(NvshareError, match=r"restart nvshared\.service failed"):
        run("start")
    assert not trial.FOLDER.exists()
    assert not trial.DROP_IN.exists()


def test_trial_start_and_stop_remove_files_of_an_interrupted_start_and_require_root(
        run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    trial.FOLDER.mkdir()
    (trial.FOLDER / trial.RAN).touch()
    run("start")
    assert not (trial.FOLDER / trial.RAN).exists()
    shutil.rmtree(trial.FOLDER)
    run("stop")
    assert not trial.DROP_IN.exists()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NotPermitted):
        run("start")
