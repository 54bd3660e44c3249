# SPDX-License-Identifier: Apache-2.0
"""nvsharectl trial: what it writes, and that it takes all of it away again."""

import argparse
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from nvshared.cli import trial
from nvshared.control import unit
from nvshared.errors import InvalidArgs, NotPermitted, NvshareError

SYSTEMCTL = """\
#!/bin/sh
if [ "$1" = show ]; then echo ActiveState=inactive; exit; fi
echo "$@" >>"$0.log"
[ "$1" != restart ] || [ ! -e "$0.fails" ]
"""
Run = Callable[..., None]


@pytest.fixture
def systemctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A systemctl that only takes note, and a system below a folder."""
    program = tmp_path / "bin" / "systemctl"
    program.parent.mkdir()
    program.write_text(SYSTEMCTL)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(unit, "SYSTEMD", tmp_path)
    monkeypatch.setattr(trial, "FOLDER", tmp_path / "state")
    monkeypatch.setattr(trial, "DROP_IN", tmp_path / "units" / "service.d" / "trial.conf")
    return program


@pytest.fixture
def run(systemctl: Path) -> Run:
    """nvsharectl trial."""

    def act(*words: str) -> None:
        parser = argparse.ArgumentParser()
        trial.VERB.configure(parser)
        options = parser.parse_args(words)
        options.json, options.bus = True, "system"
        trial.VERB.act(options)

    return act


def test_it_begins_and_leaves_nothing_behind(run: Run, systemctl: Path) -> None:
    run("start", "--gpus", "2", "--memory", "2GiB")
    state = trial.FOLDER / "gpus"
    assert state.stat().st_mode & 0o777 == 0o666        # for all users
    assert trial.FOLDER.stat().st_mode & 0o022 == 0     # who cannot put anything else there
    lines = trial.DROP_IN.read_text().splitlines()
    assert f"Environment=NVSHARE_SIM_DIR={trial.FOLDER}" in lines
    assert f"Environment=NVSHARE_SIM_MEMORY={2 << 30}" in lines
    assert "Environment=NVSHARE_SIM_GPUS=2" in lines
    assert f"ReadWritePaths={trial.FOLDER}" in lines
    with pytest.raises(NvshareError, match="on already"):
        run("start")
    run("stop")
    assert not trial.FOLDER.exists()
    assert not trial.DROP_IN.parent.exists()
    assert Path(f"{systemctl}.log").read_text().splitlines() == [
        "daemon-reload", "restart nvshared.service", "daemon-reload", "stop nvshared.service",
    ]
    with pytest.raises(NvshareError, match="no trial is on"):
        run("stop")


def test_a_service_that_does_not_start_leaves_nothing_either(run: Run, systemctl: Path) -> None:
    Path(f"{systemctl}.fails").touch()
    with pytest.raises(NvshareError, match=r"restart nvshared\.service failed"):
        run("start")
    assert not trial.FOLDER.exists()
    assert not trial.DROP_IN.exists()


@pytest.mark.parametrize(("words", "match"), [
    (("--gpus", "0"), "cannot be 0 GPUs"), (("--gpus", "17"), "cannot be 17 GPUs"),
    (("--memory", "much"), "'much'"), (("--memory", "1MiB"), "1MiB is too little"),
])
def test_wrong_values_are_named(run: Run, words: tuple[str, ...], match: str) -> None:
    with pytest.raises(InvalidArgs, match=match):
        run("start", *words)
    assert not trial.FOLDER.exists()


def test_only_root_may(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NotPermitted):
        run("start")
