# SPDX-License-Identifier: Apache-2.0
"""The history file on full disks, after power cuts, and in place of foreign files."""

import asyncio
import logging
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from nvshared.errors import NoHistory
from nvshared.history import KEPT, MOST_PENDING, HistoryFile
from nvshared.history import store as stored
from nvshared.history.store import (
    FILE_NAME,
    PAGE,
    STEPS,
    HistoryStore,
    Party,
    Query,
    QueryResult,
    find,
)
from nvshared.kept import ASIDES
from nvshared.machine import subordinate
from nvshared.scheduler.tenants import Usage
from tests.unit.test_history import ALICE, NOON, UUID, used

pytestmark = pytest.mark.usefixtures("closed_files")

ROOT = Path(__file__).parents[2]
MINUTE = {UUID: {ALICE: used(1)}}
WRITER = textwrap.dedent("""
    import sys
    from pathlib import Path
    from nvshared.history.store import HistoryStore
    from tests.unit.test_history_file import MINUTE, NOON
    store = HistoryStore(Path(sys.argv[1]), 0)
    for number in range(int(sys.argv[2]), 1 << 30):
        store.add([(NOON + 60 * number, MINUTE)])
        print(number, flush=True)
""")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / FILE_NAME


def at_once(_threads: ThreadPoolExecutor, task: Callable[..., Any], *values: Any) -> "Future[Any]":
    """Replaces ThreadPoolExecutor.submit: makes the call in the caller's thread."""
    done: Future[Any] = Future()
    done.set_result(task(*values))
    return done


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HistoryFile]:
    """A history that makes its calls in the thread of the test."""
    monkeypatch.setattr(ThreadPoolExecutor, "submit", at_once)
    history = HistoryFile(tmp_path, 0)
    yield history
    history._store.close()


@contextmanager
def full_disk() -> Iterator[None]:
    """While the block lasts, each write to the history fails for lack of space."""
    error = sqlite3.OperationalError("database or disk is full")
    with mock.patch.object(HistoryStore, "add", side_effect=error):
        yield


def seconds(path: Path, length: int = 60) -> int:
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        (found,) = file.execute(
            "SELECT coalesce(sum(gpu), 0) FROM usage JOIN step ON step.id = step WHERE length = ?",
            (length,)).fetchone()
    return int(found)


def text(path: Path) -> None:
    path.write_text("a diary\n" * 999)


def nothing_like_it(path: Path) -> None:
    HistoryStore(path, 0).add([(NOON, MINUTE)])
    path.write_bytes(path.read_bytes()[:4096] + b"\xa5" * (path.stat().st_size - 4096))


def cut_off(path: Path) -> None:
    HistoryStore(path, 0).add([(NOON, MINUTE)])
    os.truncate(path, path.stat().st_size // 2)


def altered(statement: str, path: Path) -> None:
    if "CREATE" not in statement:
        HistoryStore(path, 0).add([(NOON, MINUTE)])
    with closing(sqlite3.connect(path)) as file:
        file.execute(statement)
        file.commit()


@pytest.mark.parametrize(("make", "why"), [
    (text, "it is broken: file is not a database"), (nothing_like_it, "it is broken: "),
    (cut_off, "it is broken: "), (os.mkfifo, "it is no file"),
    (partial(altered, "CREATE TABLE usage (a)"), "another program made it"),
    (partial(altered, "PRAGMA user_version = 4"), "it is of version 4, and we know 3"),
    (partial(altered, "PRAGMA user_version = 1"), "it is of version 1, and we know 3"),
    (partial(altered, "ALTER TABLE usage RENAME COLUMN turns TO spins"),
     "it is broken: no such column: turns"),
])
def test_foreign_file_at_the_history_path_is_renamed_and_kept_unchanged(
        path: Path, history: HistoryFile, make: Callable[[Path], None], why: str,
        caplog: pytest.LogCaptureFixture) -> None:
    make(path)
    before = path.read_bytes() if path.is_file() else b""
    history.keep(NOON, MINUTE)
    history.keep(NOON + 60, MINUTE)
    assert seconds(path) == 2
    aside = path.with_name(f"{FILE_NAME}.aside-1")
    assert aside.exists()
    assert not before or aside.read_bytes() == before
    (line,) = caplog.messages
    assert line.startswith(f"{path} is put aside as {aside.name} and a new history begun: {why}")


def test_history_file_of_version_2_is_converted_with_its_usage_and_its_dropped_steps(
        path: Path, history: HistoryFile, monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setitem(STEPS, 60, (9, 9))
    for number in range(20):
        history.keep(NOON + 60 * number, MINUTE)
    history._store.close()
    with closing(sqlite3.connect(path)) as file:
        file.executescript("""
            CREATE TABLE dropped (length INTEGER PRIMARY KEY, start INTEGER NOT NULL);
            INSERT INTO dropped SELECT length, last FROM span;
            DROP TABLE span;
            PRAGMA user_version = 2;""")
    later = NOON + 7 * 86400            # the machine was off for days
    for number in range(20):
        history.keep(later + 60 * number, MINUTE)
    assert (seconds(path), seconds(path, 86400)) == (9, 40)
    # Minutes of the former time are dropped, so hours count.
    for since, until, step, gpu in (
            (NOON, NOON + 600, 3600, 20), (later + 900, later + 1200, 60, 5)):
        with history._store.opened() as file:
            found = find(file, Query(since, until, 0, "user"))
            rounded = find(file, Query(since, until, 1, "user")).step
        assert (sum(row.usage.gpu for row in found.rows), rounded) == (gpu, step)
    assert not caplog.messages
    assert not [*path.parent.glob("*.aside-*")]


def test_renamed_history_files_are_bounded_in_number(path: Path, history: HistoryFile,
                                                     caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(ASIDES + 2):
        text(path)
        history.keep(NOON, MINUTE)
        history._store.close()
    assert len(list(path.parent.glob("*.aside-[0-9]"))) == ASIDES
    assert caplog.messages[-1].endswith(
        "it is broken: file is not a database; 9 have been put aside already, take some away")
    assert len(caplog.messages) == ASIDES + 1
    path.with_name(f"{FILE_NAME}.aside-2").unlink()
    history.keep(NOON, MINUTE)
    assert seconds(path) == 3


def test_history_file_is_renamed_if_unwritable_and_created_again_if_removed(
        path: Path, history: HistoryFile, caplog: pytest.LogCaptureFixture) -> None:
    """The write error is simulated, as root may write to any file."""
    history.keep(NOON, MINUTE)
    history._store.close()
    allowed, roots = os.open, path.stat().st_ino

    def opened(name: Path, *rest: int) -> int:
        if name.exists() and name.stat().st_ino == roots:
            raise PermissionError(13, "Permission denied")
        return allowed(name, *rest)

    with mock.patch("nvshared.history.store.os.open", opened):
        history.keep(NOON + 60, MINUTE)
    assert seconds(path) == seconds(path.with_name(f"{FILE_NAME}.aside-1")) == 1
    assert caplog.messages[0].endswith("and a new history begun: we may not write to it")
    path.rename(path.with_name("kept elsewhere"))       # a removed file is created again
    history.keep(NOON + 120, MINUTE)
    assert seconds(path) == seconds(path.with_name("kept elsewhere")) == 1


def test_history_file_damaged_while_in_use_is_renamed(path: Path, history: HistoryFile) -> None:
    for number in range(30):
        history.keep(NOON + 60 * number, MINUTE)
    whole = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\x5a" * (whole - 4096))
    history._store._connection.execute("PRAGMA cache_size = 0")      # type: ignore[union-attr]
    for number in range(30, 40):
        history.keep(NOON + 60 * number, MINUTE)
    assert path.with_name(f"{FILE_NAME}.aside-1").stat().st_size == whole
    assert seconds(path) == 10


def test_history_on_a_full_disk_loses_no_usage_of_the_last_hour(
        path: Path, history: HistoryFile, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    history.keep(NOON, MINUTE)
    with full_disk():
        for number in range(1, 3 * KEPT):
            history.keep(NOON + 60 * number, MINUTE)
        assert len(history._unwritten) == KEPT
        found = history._answer(Query(NOON, NOON + 86400, 0, "user"), lambda found: found)
    assert found.missing == "database or disk is full"
    history.keep(NOON + 180 * KEPT, {})         # as each minute
    found = history._answer(Query(NOON, NOON + 60, 0, "user"), lambda found: found)
    assert (found.missing, seconds(path)) == ("", 3 * KEPT)
    assert caplog.messages == [
        f"{path} is not written, and tried again each minute: database or disk is full",
        f"{path} is written again"]
    assert not history._unwritten


def test_history_file_is_private_bounded_in_size_and_synced_at_each_commit(path: Path) -> None:
    pragmas = ("synchronous", "journal_mode", "max_page_count")
    with HistoryStore(path, 8 << 20).opened() as file:
        found = [file.execute(f"PRAGMA {name}").fetchone()[0] for name in pragmas]
    assert found == [2, "truncate", (8 << 20) // 4096]      # 2: synchronous = FULL
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="to mount a disk one must be root")
@pytest.mark.parametrize("began", [True, False])
def test_history_file_on_a_full_file_system_keeps_usage_in_memory_until_there_is_space(
        tmp_path: Path, began: bool) -> None:
    """A small tmpfs in a mount namespace; the history may have no file yet."""
    program = textwrap.dedent(f"""
        from concurrent.futures import ThreadPoolExecutor
        from pathlib import Path
        from nvshared.history import HistoryFile
        from tests.unit.test_history_file import MINUTE, NOON, at_once, seconds
        ThreadPoolExecutor.submit = at_once
        folder = Path({str(tmp_path)!r})
        history = HistoryFile(folder, 0)
        if {began}:
            history.keep(NOON, MINUTE)
        waste = folder / "waste"
        with waste.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass
            if not {began}:             # leaves 8 KiB: room to begin a file, and no more
                file.truncate(file.tell() - 8192)
                history.keep(NOON, MINUTE)
        for number in range(1, 20):
            history.keep(NOON + 3600 * number, MINUTE)
        assert history._unwritten, "there was room"
        assert not {began} or seconds(folder / "history.db") < 20
        waste.unlink()
        history.keep(NOON + 3600 * 20, MINUTE)
        assert not history._unwritten, history._write_error
        assert not list(folder.glob("*.aside*"))
        with history._store.opened() as file:
            assert file.execute("PRAGMA auto_vacuum").fetchone() == (2,)
        print(seconds(folder / "history.db"))
    """)
    mount = f"mount -t tmpfs -o size=128k none {tmp_path} && exec {sys.executable} -c \"$0\""
    ended = subprocess.run(
        ["unshare", "--mount", "sh", "-c", mount, program], cwd=ROOT, check=False,
        capture_output=True, text=True)
    if "unshare failed" in ended.stderr or "mount:" in ended.stderr:
        pytest.skip("no mount namespace can be had here")
    assert (ended.returncode, ended.stdout) == (0, "21\n"), ended.stderr


def test_history_loses_a_single_minute_when_a_write_raises_an_unexpected_exception(
        tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    history = HistoryFile(tmp_path, 0)
    history.keep(NOON, {UUID: {Party(1, "\udc00", "user:x"): used(1)}})
    history.keep(NOON + 60, MINUTE)
    history.close()
    assert seconds(tmp_path / FILE_NAME) == 1
    assert [record.message for record in caplog.records] == ["the history has a fault"]


def test_full_history_file_drops_the_oldest_rows(path: Path) -> None:
    store = HistoryStore(path, 0)
    store.pages = pages = 72
    names = [f"unit:u{one}/{'x' * 90}-{{}}.service" for one in range(20)]
    minutes = 100
    for number in range(minutes):
        batch: stored.Batch = {UUID: {
            Party(one, f"u{one}", name.format(number % 9)): Usage(*[1 << 40] * 10)
            for one, name in enumerate(names)}}
        store.add([(NOON + 60 * number, batch)])
        assert path.stat().st_size <= pages * PAGE
    with store.opened() as file:
        first, last, count = file.execute(
            "SELECT min(start), max(start), count(*) FROM step WHERE length = 60").fetchone()
        found = stored.find(file, Query(NOON, NOON + 60 * minutes, 0, "gpu"))
    assert last == NOON + 60 * (minutes - 1)
    assert first == last - 60 * (count - 1) > NOON
    # The hourly rows still have all usage.
    assert sum(row.usage.gpu for row in found.rows) == minutes * 20 << 40
    store.close()
    assert seconds(path) == count * 20 << 40


def test_history_file_shrinks_to_a_smaller_size_limit(path: Path) -> None:
    store = HistoryStore(path, 0)
    store.add([
        (NOON + 60 * minute, {
            f"{UUID}{card}": {
                Party(one, f"u{one}", f"user:u{one}"): Usage(*[1 << 40] * 10) for one in range(50)}
            for card in range(4)})
        for minute in range(70)])
    store.close()
    before = path.stat().st_size
    store = HistoryStore(path, 0)
    store.pages = pages = before // PAGE // 3
    store.add([(NOON + 60 * 300, MINUTE)])
    assert path.stat().st_size <= pages * PAGE
    store.close()
    assert 0 < seconds(path) < seconds(path, 3600)


@pytest.mark.parametrize("rounds", [3, pytest.param(100, marks=pytest.mark.long)])
def test_history_written_before_sigkill_is_kept(path: Path, rounds: int) -> None:
    """Each round kills a writer during a write."""
    written = 0
    for number in range(rounds):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(written)], cwd=ROOT, text=True,
            stdout=subprocess.PIPE)
        assert writer.stdout is not None
        said = [int(writer.stdout.readline()) for _ in range(3 + number % 5)]
        os.kill(writer.pid, signal.SIGKILL)
        said += [int(line) for line in writer.stdout if line.endswith("\n")]
        writer.wait()
        writer.stdout.close()
        there = [seconds(path, length) for length in STEPS]
        assert there == [there[0]] * 3
        # Printed minutes are kept, and perhaps one more that was stored and not yet printed.
        assert there[0] in (said[-1] + 1, said[-1] + 2)
        written = there[0]


@pytest.mark.parametrize("uids", [[1] * (MOST_PENDING + 3), range(100, 103 + MOST_PENDING)],
                         ids=["one uid", "subordinate uids"])
async def test_history_refuses_a_query_of_a_user_with_the_maximum_number_of_pending_queries(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uids: Sequence[int]) -> None:
    (tmp_path / "subuid").write_text("alice:100:100\n")
    monkeypatch.setattr(subordinate, "FILE", tmp_path / "subuid")
    tasks: list[tuple[Future[QueryResult], Callable[[], QueryResult]]] = []

    def later(_: ThreadPoolExecutor, task: Callable[..., Any], *values: Any) -> "Future[Any]":
        tasks.append((Future(), partial(task, *values)))
        return tasks[-1][0]

    monkeypatch.setattr(ThreadPoolExecutor, "submit", later)
    history = HistoryFile(tmp_path, 0)

    def ask(uid: int) -> asyncio.Task[QueryResult]:
        query = Query(NOON, NOON + 60, 0, "user", uid=uid)
        return asyncio.create_task(history.ask(query, lambda found: found))

    asking = [*map(ask, uids), ask(2)]
    refused, waiting = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
    assert (len(refused), len(waiting)) == (3, MOST_PENDING + 1)
    for one in refused:
        with pytest.raises(NoHistory, match="too many ask for the history at once; try again"):
            one.result()
    asking[0].cancel()                  # the caller of this query has left the bus
    await asyncio.sleep(0)
    for done, task in tasks:
        if done.set_running_or_notify_cancel():
            done.set_result(task())
    await asyncio.wait(waiting)
    assert [one.result().rows for one in waiting if not one.cancelled()] == [[]] * MOST_PENDING
    assert not history._pending
    history._store.close()


def test_history_query_during_another_processs_write_returns_one_state_of_the_file(
        path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before each statement of the query, another connection adds a minute with a new user."""
    monkeypatch.setattr(stored, "PATIENCE", 0)
    store, other = HistoryStore(path, 0), HistoryStore(path, 0)
    store.add([(NOON, MINUTE)])
    minutes = 1

    def write(_: object = None) -> None:
        nonlocal minutes
        new = Party(1000 + minutes, f"u{minutes}", f"user:{1000 + minutes}")
        with suppress(sqlite3.OperationalError):        # the file is locked
            other.add([(NOON + 60 * minutes, {UUID: {ALICE: used(1), new: used(1)}})])
            minutes += 1

    with store.opened() as file:
        file.set_trace_callback(write)
        rows = find(file, Query(NOON, NOON + 3600, 0, "user")).rows
        file.set_trace_callback(None)
    assert {row.name: row.usage.gpu for row in rows} == {"alice": len(rows)} | {
        f"u{one}": 1 for one in range(1, len(rows))}
    before = minutes
    write()                             # the ended query does not stop the writer
    assert minutes == before + 1
    for one in (store, other):
        one.close()


def test_steps_of_a_query_grow_with_the_usage_and_not_with_its_product_with_the_tenants(
        tmp_path: Path) -> None:
    midnight = NOON - NOON % 86400

    def steps(tenants: int) -> int:
        store = HistoryStore(tmp_path / f"{tenants}.db", 1 << 24)
        parties = [Party(number, f"u{number}", f"user:{number}") for number in range(tenants)]
        store.add([(midnight + 86400 * day, {UUID: dict.fromkeys(parties, used(1))})
                   for day in range(3)])
        done = 0

        def count() -> int:
            nonlocal done
            done += 1
            return 0

        with store.opened() as file:
            file.set_progress_handler(count, 10)
            found = find(file, Query(midnight, midnight + 3 * 86400, 0, "tenant"))
        store.close()
        assert len(found.rows) == tenants
        return done

    assert steps(500) < 20 * steps(50)      # of ten times as many
