# SPDX-License-Identifier: Apache-2.0
"""Changed settings survive a restart; a broken file or full disk loses only those."""

import json
import os
from pathlib import Path
from threading import Event

import pytest

from nvshared.errors import NotKept
from nvshared.scheduler.events import AntiThrash
from nvshared.settings.state import FILE_NAME, Overrides, StateFile

CHANGED: Overrides = {
    "": {"tq": 5_000_000}, "GPU-1": {"anti_thrash": AntiThrash.OFF}, "GPU-2": {"tq": 7_000_000},
    "GPU-3": {"tq": None}, "GPU-4": {"tq": 1_500_000},
}


def test_saved_state_is_loaded_unchanged(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    assert StateFile(folder).load() == {}
    StateFile(folder).save(CHANGED).result()
    assert StateFile(folder).load() == CHANGED
    assert [path.name for path in folder.iterdir()] == [FILE_NAME]
    assert json.loads((folder / FILE_NAME).read_text()) == {
        "version": 1, "everywhere": {"tq": 5},
        "gpus": {"GPU-1": {"anti-thrash": "off"}, "GPU-2": {"tq": 7}, "GPU-3": {"tq": "auto"},
                 "GPU-4": {"tq-usec": 1_500_000}}}


@pytest.mark.parametrize("text", [
    "", "{", "[]", "7", "{}", '{"version": 2, "everywhere": {}, "gpus": {}}',
    '{"version": 1, "everywhere": {"tq": -1}, "gpus": {}}',
    '{"version": 1, "everywhere": {}, "gpus": {"GPU-1": {"tq": 100000000000000}}}',
    '{"version": 1, "everywhere": {"anti-thrash": "x"}, "gpus": {}}',
    '{"version": 1, "everywhere": {"tq": true}, "gpus": {}}',
    '{"version": 1, "everywhere": {"tq-usec": 999}, "gpus": {}}',
    '{"version": 1, "everywhere": {"tq": 2.0}, "gpus": {}}', "[" * 200_000,
    '{"version": 1, "everywhere": 3, "gpus": {}}', '{"version": 1, "everywhere": {}, "gpus": 3}',
])
def test_broken_state_file_counts_as_empty_and_is_logged(
        tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str) -> None:
    (tmp_path / FILE_NAME).write_text(text)
    assert StateFile(tmp_path).load() == {}
    assert f"{tmp_path / FILE_NAME} is not used" in caplog.text


def test_state_save_on_a_full_disk_keeps_the_old_file_and_logs(
        tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    state = StateFile(tmp_path)
    state.save(CHANGED).result()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(NotKept) as caught:
        state.save({}).result()
    assert str(caught.value) == (
        "what was changed holds, but will be forgotten at the next start: "
        f"{state.path} cannot be written: No space left on device; "
        "put that right and change it again")
    assert caplog.messages == [str(caught.value)]
    assert state.load() == CHANGED
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


def test_state_save_while_the_disk_hangs_returns_and_writes_in_order_later(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state, syncs, goes_on, fsync = StateFile(tmp_path), Event(), Event(), os.fsync

    def slow(descriptor: int) -> None:
        syncs.set()
        goes_on.wait()
        fsync(descriptor)

    monkeypatch.setattr("os.fsync", slow)
    first, last = state.save({}), state.save(CHANGED)
    syncs.wait()
    assert not first.done()
    assert not last.done()
    assert not state.path.exists()
    goes_on.set()
    last.result()
    assert first.done()
    assert state.load() == CHANGED
