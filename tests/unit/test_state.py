# SPDX-License-Identifier: Apache-2.0
"""Changed settings survive a restart; a broken file or full disk loses only those."""

import json
import os
from pathlib import Path
from threading import Event

import pytest

from nvshared.errors import NotKept
from nvshared.kept import ASIDES
from nvshared.scheduler.events import AntiThrash
from nvshared.settings.state import FILE_NAME, Overrides, StateFile

CHANGED: Overrides = {
    "": {"tq": 5_000_000}, "GPU-1": {"anti_thrash": AntiThrash.OFF}, "GPU-2": {"tq": 7_000_000},
    "GPU-3": {"tq": None}, "GPU-4": {"tq": 1_500_000, "policy": "fifo"},
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
                 "GPU-4": {"policy": "fifo", "tq-usec": 1_500_000}}}


@pytest.mark.parametrize(("wrong", "words"), [
    ('"everywhere": {"tq": 7, "anti-thrash": "x"}', "of all GPUs, the setting 'anti-thrash': "),
    *((f'"everywhere": {{"tq": 7}}, "gpus": {{"GPU-2": {{"{name}": {value}}}, '
       '"GPU-1": {"tq": 8}}', f"of GPU-2, the setting '{name}': it ") for name, value in (
        ("tq", "-1"), ("tq", "100000000000000"), ("tq", "true"), ("tq", "2.0"), ("tq-usec", "999"),
        ("tq-usec", '"auto"'), ("quantum", "3"), ("policy", '"lifo"'))),
    ('"everywhere": {"tq": 7}, "gpus": {"GPU-1": {"tq": 8}, "GPU-2": 3}', "of GPU-2, the setting"),
    ('"everywhere": {"tq": 7}, "gpus": {"GPU-1": {"tq": 8}}, "cards": {}', "'cards' is unknown"),
    ('"everywhere": 3, "gpus": {"GPU-1": {"tq": 8}}', "of all GPUs, the setting cannot be 3"),
    ('"everywhere": {"tq": 7}, "gpus": 3', "the GPU cannot be 3"),
])
def test_state_file_with_a_wrong_entry_keeps_the_others_and_is_put_aside(
        tmp_path: Path, caplog: pytest.LogCaptureFixture, wrong: str, words: str) -> None:
    if '"gpus"' not in wrong:
        wrong += ', "gpus": {"GPU-1": {"tq": 8}}'
    path = tmp_path / FILE_NAME
    path.write_text(text := f'{{"version": 1, {wrong}}}')
    right = {"": {"tq": 7_000_000}, "GPU-1": {"tq": 8_000_000}}
    expected: Overrides = {
        key: value for key, value in right.items() if f'"tq": {value["tq"] // 10**6}' in text}
    file = StateFile(tmp_path)
    assert file.load() == expected
    assert len(expected) >= 1
    assert words in caplog.text
    file.save(expected).result()
    assert (tmp_path / f"{FILE_NAME}.aside-1").read_text() == text
    caplog.clear()
    assert StateFile(tmp_path).load() == expected
    assert caplog.text == ""


def test_state_file_is_not_overwritten_while_it_cannot_be_put_aside(
        tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / FILE_NAME
    path.write_text(text := '{"version": 1, "everywhere": {"tq": 7, "x": 1}, "gpus": {}}')
    for number in range(1, ASIDES + 1):
        (tmp_path / f"{FILE_NAME}.aside-{number}").write_text("older")
    file = StateFile(tmp_path)
    assert file.load() == {"": {"tq": 7_000_000}}
    with pytest.raises(NotKept, match="it has what is not understood, and cannot be put aside"):
        file.save({}).result()
    assert "9 have been put aside already, take some away" in caplog.text
    assert path.read_text() == text
    (tmp_path / f"{FILE_NAME}.aside-3").unlink()
    file.save(CHANGED).result()
    assert (tmp_path / f"{FILE_NAME}.aside-3").read_text() == text
    assert StateFile(tmp_path).load() == CHANGED


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
        "the change holds, but is forgotten if nvshared ends now: "
        f"{state.path} cannot be written: No space left on device; "
        "put that right: it is then written within seconds")
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
