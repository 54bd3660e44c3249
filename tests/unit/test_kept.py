# SPDX-License-Identifier: Apache-2.0
"""Files that programs keep over a restart: nothing is lost in silence, whatever stands in them."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nvshared.kept import WRITTEN_WITHIN, Complain, KeptFile, each, replace
from nvshared.kubelet import claims
from nvshared.kubelet.claims import Prepared
from nvshared.settings.state import FILE_NAME, TENANTS_FILE, StateFile, TenantsFile

RIGHT = {"user:1": {"weight": (7, "")}}
# Text of the entries of tenants.json, with one that is right; and words of the message.
WRONG = [
    (b'"user:1": {"weight": 3}, "user:1": {"weight": 7}', "'user:1' stands more than once"),
    (b'"user:1": {"weight": 7}, "user:2": {"weight": 3, "weight": 4}', "'weight' stands more"),
    (b'"user:1": {"weight": 7}, "user:2": {"weight": ' + b"9" * 5000 + b"}", "the term 'weight'"),
    (b'"user:1": {"weight": 7}, "user:2": {"weight": NaN}', "the term 'weight'"),
    (b'"user:1": {"weight": 7}, "user:2": {"weight": -Infinity}', "the term 'weight'"),
    (b'"user:1": {"weight": 7}, "unit:\xff.service": {"weight": 3}', r"unit:\udcff"),
    (b'"user:1": {"weight": 7}, "unit:\\ud800.service": {"weight": 3}', r"unit:\ud800"),
    (b'"user:1": {"weight": 7}, "user:2": ' + b"[" * 500 + b"]" * 500, "of user:2"),
]


@pytest.mark.parametrize(("text", "words"), WRONG, ids=range(len(WRONG)))
def test_tenants_file_with_json_that_only_some_readers_accept_keeps_the_other_entries(
        tmp_path: Path, caplog: pytest.LogCaptureFixture, text: bytes, words: str) -> None:
    whole = b'\xef\xbb\xbf{"version": 1, "tenants": {%s}}' % text
    (tmp_path / TENANTS_FILE).write_bytes(whole)
    file = TenantsFile(tmp_path)
    kept = file.load()
    assert kept.pop("user:1") == RIGHT["user:1"]
    assert all("weight" not in terms or terms["weight"] == (4, "") for terms in kept.values())
    assert words in caplog.text
    file.save(RIGHT).result()
    assert (tmp_path / f"{TENANTS_FILE}.aside-1").read_bytes() == whole
    assert TenantsFile(tmp_path).load() == RIGHT


def test_tenants_file_with_many_names_that_are_repeated_is_read_soon_and_named_in_few_words(
        tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    entries = ",".join(f'"user:{number}":{{"weight":7}}' for number in range(100_000))
    (tmp_path / TENANTS_FILE).write_text(f'{{"version":1,"tenants":{{{entries},{entries}}}}}')
    assert len(TenantsFile(tmp_path).load()) == 100_000     # comparing all with all takes hours
    assert max(map(len, caplog.messages)) < 2000


def _claims(state: Path) -> object:
    return Prepared(state).claims()


@pytest.mark.parametrize(("name", "load"), [
    (FILE_NAME, lambda state: StateFile(state).load()),
    (TENANTS_FILE, lambda state: TenantsFile(state).load()), (claims.FILE, _claims)])
@pytest.mark.parametrize("make", [
    os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero"), *(
        lambda path, text=text: path.write_bytes(text) for text in (
            b"", b"{", b"7", b"null", b"{}", b'{"version": 2}', b"[" * 200_000, b"\xff"))])
def test_what_is_no_kept_file_delays_no_start_and_is_put_aside(
        tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str,
        load: Callable[[Path], object], make: Callable[[Path], object]) -> None:
    make(tmp_path / name)
    there = (tmp_path / name).lstat()
    assert not load(tmp_path)
    assert (tmp_path / f"{name}.aside-1").lstat().st_ino == there.st_ino
    assert f"{tmp_path / name} is put aside as {name}.aside-1" in caplog.text
    assert [one.name for one in tmp_path.iterdir()] == [f"{name}.aside-1"]


def test_kept_file_that_another_program_has_changed_is_put_aside_before_it_is_written(
        tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def read(plain: dict[str, Any], wrong: Complain) -> dict[str, int]:
        return each(plain["all"], "entry", lambda _, value: int(value), wrong)

    path, aside = tmp_path / "kept", tmp_path / "kept.aside-1"
    file = KeptFile(path)
    assert file.load(read) == (None, False)
    file.keep({"version": 1, "all": {"a": 1}})
    file.keep({"version": 1, "all": {"a": 2}})
    assert not aside.exists()
    path.write_text(theirs := '{"version": 1, "all": {"a": 2, "b": 3}}')
    file.keep({"version": 1, "all": {"a": 4}})
    assert aside.read_text() == theirs
    assert "another program has changed it" in caplog.text
    assert json.loads(path.read_text()) == {"version": 1, "all": {"a": 4}}


KILLED = """
import os, pathlib, signal, sys
from nvshared.kept import replace
replace(pathlib.Path(sys.argv[1]), b"half", lambda _: os.kill(os.getpid(), signal.SIGKILL))
"""


def test_file_that_a_killed_writer_left_is_removed_once_no_writer_can_be_at_work(
        tmp_path: Path) -> None:
    path = tmp_path / "kept"
    for _ in range(2):
        ended = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
        assert ended.returncode == -signal.SIGKILL
    first, second = tmp_path.iterdir()
    then = first.stat().st_mtime - WRITTEN_WITHIN - 1
    os.utime(first, (then, then))
    others = [tmp_path / f".kept.{end}" for end in ("swp", "original")]     # of an editor, a person
    for one in others:
        one.write_text("theirs")
        os.utime(one, (then, then))
    replace(path, b"whole")
    assert sorted(tmp_path.iterdir()) == sorted([path, second, *others])
    assert path.read_bytes() == b"whole"
