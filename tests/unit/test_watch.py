# SPDX-License-Identifier: Apache-2.0
"""Changes of a configuration file are noticed: written, replaced, deleted or behind links."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from nvshared.clock import monotonic
from nvshared.lanes import Lanes
from nvshared.settings import watch
from nvshared.settings.watch import SettingsWatch


def put(file: Path, text: str) -> None:
    file.write_text(text)


class Changes:
    def __init__(self, file: Path) -> None:
        self.watch = SettingsWatch(file)
        self.changes_seen = asyncio.Semaphore(0)
        self._looks = 0
        self._read_metadata = self.watch._read_metadata
        self.watch._read_metadata = self._look      # type: ignore[method-assign]

    def _look(self) -> Any:
        self._looks += 1
        return self._read_metadata()

    async def looked(self) -> None:
        """Waits until the watch would have reported what it sees now: it looks on after that."""
        before = self._looks
        async with asyncio.timeout(60):
            while self._looks < before + 5:     # noqa: ASYNC110
                await asyncio.sleep(0.01)

    def read(self) -> None:
        self.watch.note()
        self.changes_seen.release()

    async def noticed(self) -> None:
        async with asyncio.timeout(60):
            await self.changes_seen.acquire()


@pytest.fixture
async def changes(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[[Path], Changes]]:
    monkeypatch.setattr(watch, "INTERVAL", 0.01)
    tasks = []
    loop = asyncio.get_running_loop()

    def post(function: Callable[[], None]) -> None:
        with suppress(RuntimeError):    # the event loop has ended
            loop.call_soon_threadsafe(function)

    lanes = Lanes("test", 1, post, monotonic, lambda *_: lambda: None)

    def start(file: Path) -> Changes:
        made = Changes(file)
        tasks.append(asyncio.create_task(made.watch.run(made.read, lanes.run)))
        return made

    yield start
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert all(task.cancelled() for task in tasks)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "etc" / "nvshared.conf"
    made.parent.mkdir()
    put(made, "[gpu]\n")
    return made


async def test_config_watch_notices_that_a_file_or_drop_in_is_written_replaced_or_deleted(
        changes: Callable[[Path], Changes], tmp_path: Path) -> None:
    file = tmp_path / "a" / "b" / "nvshared.conf"
    watched = changes(file)
    file.parent.mkdir(parents=True)     # the folder is made after the watch began
    put(file, "[gpu]\n")
    await watched.noticed()
    put(file, "[gpu]\ntq = 3\n")
    await watched.noticed()
    other = file.with_name("new")
    put(other, "[gpu]\ntq = 4\n")
    other.replace(file)
    await watched.noticed()
    folder = file.with_name("nvshared.conf.d")
    folder.mkdir()
    put(folder / "lab.conf", "[gpu]\n")
    await watched.noticed()
    put(folder / "lab.conf", "[gpu]\ntq = 3\n")
    await watched.noticed()
    for removed in (folder / "lab.conf", file):
        removed.unlink()
        await watched.noticed()


async def test_config_watch_notices_a_change_behind_the_links_of_a_kubernetes_volume(
        changes: Callable[[Path], Changes], tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        put(tmp_path / name / "nvshared.conf", f"# {name}\n")
    data = tmp_path / "..data"
    data.symlink_to("one")
    file = tmp_path / "nvshared.conf"
    file.symlink_to("..data/nvshared.conf")
    watched = changes(file)
    other = tmp_path / "..new"
    other.symlink_to("two")
    other.replace(data)
    await watched.noticed()
    put(tmp_path / "two" / "nvshared.conf", "# in place, where the link leads\n")
    await watched.noticed()


def test_config_watch_reports_a_changed_file_after_a_time_without_changes(
        file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float | None] = []

    class Ended(threading.Event):
        """The file changes in each of the first 30 waits."""

        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout)
            if len(waits) <= 30:
                put(file, "#" * len(waits))
            return False

    monkeypatch.setattr(watch, "Event", Ended)
    assert SettingsWatch(file)._wait_for_change()
    assert waits == [watch.INTERVAL] * 31


async def test_config_watch_does_not_report_a_change_already_read(
        changes: Callable[[Path], Changes], file: Path) -> None:
    watched = changes(file)
    put(file.with_name(".nvshared.conf.swp"), "x")      # no file of the configuration
    put(file, "[gpu]\ntq = 3\n")
    watched.watch.note()
    await watched.looked()
    assert watched.changes_seen.locked()
    put(file.with_name(".new"), "[gpu]\ntq = 44\n")
    file.with_name(".new").replace(file)        # at once, as the watch looks meanwhile
    await watched.noticed()
    await watched.looked()
    assert watched.changes_seen.locked()


async def test_config_watch_on_a_file_system_that_hangs_reports_nothing_and_looks_once(
        file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`run` never answers here, as a thread whose stat() does not return."""
    monkeypatch.setattr(watch, "INTERVAL", 0)
    looks: list[object] = []
    asked = asyncio.Event()

    def run(key: object, *_: object) -> None:
        looks.append(key)
        asked.set()

    watching = asyncio.create_task(SettingsWatch(file).run(lambda: looks.append("changed"), run))
    await asked.wait()
    put(file, "[gpu]\ntq = 3\n")
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(looks) == 1
    watching.cancel()


async def test_config_watch_without_changes_leaves_the_event_loop_asleep(
        changes: Callable[[Path], Changes], file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = changes(file)
    put(file, "[gpu]\ntq = 3\n")
    await watched.noticed()
    await watched.looked()
    posted: list[object] = []
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "call_soon_threadsafe", posted.append)
    await watched.looked()
    assert posted == []
