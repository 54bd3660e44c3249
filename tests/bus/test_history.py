# SPDX-License-Identifier: Apache-2.0
"""GetHistory and nvsharectl history: the caller's usage; all users' usage needs permission."""

import csv
import io
import json
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import pytest
from dbus_next.message import Message

from nvshared.bus import publish
from nvshared.bus.dispatch import Caller
from nvshared.clock import monotonic
from nvshared.history import History, HistoryFile
from nvshared.history.store import HistoryStore, Party
from nvshared.scheduler.tenants import Usage
from nvshared.sharing.manager import Manager
from nvshared.units import GIB, SECOND
from tests.bus.service import Peeper, PrivateBus, a_timer, peeper
from tests.bus.test_authority import polkit_on
from tests.bus.test_calls import STANDARD, refusal
from tests.bus.test_commands import Run, in_process, sentence
from tests.unit.scripted import FACTS, OTHER

NOW = int(time.time()) // 60 * 60
THEN = NOW - 3600
ALICE = Party(1000, "alice", "user:alice")
JOB = Party(1000, "alice", "unit:alice/train.service")
BOB = Party(1001, "bob", "job:7")
def usage(seconds: int) -> Usage:
    return Usage(seconds * SECOND, 2 * seconds * SECOND, 3 * SECOND, 4, 2, SECOND // 2, GIB,
                 2 * GIB, 1024 * 3600, 2048 * 3600, 512 * 3600, 256 * 3600)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a history of an hour ago."""
    store = HistoryStore(tmp_path / "history.db", 0)
    first = {ALICE: usage(20), JOB: usage(10)}
    store.add([(THEN, {FACTS.uuid: first, OTHER.uuid: {BOB: usage(5)}})])
    store.close()
    return tmp_path


@pytest.fixture
async def history(folder: Path, manager: Manager) -> AsyncIterator[History]:
    history = History(HistoryFile(folder, 1 << 26), monotonic, a_timer(), time.time)
    for gpu in manager.gpus:
        history.follow(gpu)
    yield history
    history.close()


@pytest.fixture
async def asker(history: History, manager: Manager, private: PrivateBus,
                monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Peeper]:
    """A caller of the user alice on the system bus."""
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", private.address)

    async def uid(_caller: Caller) -> int:
        return ALICE.uid

    publication = await publish(manager, "system", history)
    async with peeper(private.address) as someone:
        monkeypatch.setattr(Caller, "uid", uid)
        yield someone
    await publication.close()


async def ask(asker: Peeper, by: str = "tenant", gpu: str = "", everyone: bool = False,
              step: int = 0, names: int = 0, since: int = THEN - 600) -> Message:
    asked = [since * SECOND, NOW * SECOND, step * SECOND, by, gpu, names, everyone]
    return await asker.call("GetHistory", "tttssub", asked)


def used(answer: Message) -> dict[str, int]:
    """GPU seconds in a reply, by name."""
    return {row[1]: row[3] // SECOND for row in answer.body[3]}


async def test_history_call_of_a_user_shows_only_the_usage_of_that_user(asker: Peeper) -> None:
    answer = await ask(asker)
    since, until, step, rows, missing = answer.body
    assert (since, until, step, missing) == ((THEN - 600) * SECOND, NOW * SECOND, 0, "")
    assert rows[0] == [since, "user:alice", "alice", *usage(20), {}]
    assert used(answer) == {"user:alice": 20, "unit:alice/train.service": 10}
    assert used(await ask(asker, "user")) == {"alice": 30}
    assert used(await ask(asker, "gpu")) == {FACTS.uuid: 30}
    assert used(await ask(asker, "gpu", "1")) == {}
    assert used(await ask(asker, "user", FACTS.uuid)) == {"alice": 30}
    assert used(await ask(asker, "user", "GPU-that-was-here")) == {}


async def test_history_of_all_users_is_shown_when_polkit_permits(
        asker: Peeper, private: PrivateBus) -> None:
    assert refusal(await ask(asker, everyone=True))[0] == STANDARD + "AccessDenied"
    async with polkit_on(private.address) as polkit:
        name, sentence = refusal(await ask(asker, everyone=True))
        assert name == STANDARD + "AccessDenied"
        assert "com.nvshare.view-history" in sentence
        polkit.granted = True
        assert used(await ask(asker, "user", everyone=True)) == {"alice": 30, "bob": 5}
        assert used(await ask(asker, "user", everyone=True, names=1)) == {"alice": 30, "": 5}
        assert len(polkit.asked) == 3
        await ask(asker)                # polkit is not asked about the caller's own usage
        assert len(polkit.asked) == 3


async def test_history_call_is_refused_with_nohistory_while_the_daemon_keeps_no_history(
        other: Peeper) -> None:
    name, sentence = refusal(await ask(other))
    assert name == "com.nvshare.Error.NoHistory"
    assert sentence.startswith("no history is kept; set history and state-dir")


async def test_history_call_is_refused_with_the_reason_when_the_history_cannot_be_read(
        asker: Peeper, history: History, folder: Path) -> None:
    (folder / "history.db").unlink()
    folder.joinpath("history.db").symlink_to("/proc/none/of/it")
    name, sentence = refusal(await ask(asker))
    assert name == "com.nvshare.Error.NoHistory"
    assert sentence.startswith(f"{folder}/history.db cannot be read: ")
    folder.joinpath("history.db").unlink()
    assert used(await ask(asker)) == {}


@pytest.fixture
async def ctl(history: History, manager: Manager, private: PrivateBus,
              monkeypatch: pytest.MonkeyPatch,
              capsys: pytest.CaptureFixture[str]) -> AsyncIterator[Run]:
    publication = await publish(manager, private.address, history)
    with monkeypatch.context() as patch:
        patch.setenv("NVSHARE_BUS", private.address)
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield partial(in_process(capsys), "history")
    time.tzset()
    await publication.close()


async def test_history_command_prints_a_table_with_totals(ctl: Run) -> None:
    ended = await ctl("--since", "2h", "--all", "--by", "user")
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert lines[0].endswith("2 GPUs:")
    assert lines[2].split() == ["USER", "GPU-SECONDS", "SHARE", "HELD", "WAITED", "TURNS",
                                "HAND-OVERS", "IN", "OUT", "GPU-GIBH", "HOST-GIBH",
                                "BORROWED-GIBH", "DISK-GIBH"]
    assert lines[3].split() == ["alice", "30", "0.2%", "1m00s", "6.0s", "8", "4", "2.0G", "4.0G",
                                "2.00", "4.00", "1.00", "0.50"]
    assert [line.split()[:2] for line in lines[4:]] == [["bob", "5"], ["total", "35"]]
    ended = await ctl("--since", "2h", "--all", "--by", "tenant", "--step", "hour")
    lines = ended.out.splitlines()
    assert lines[2].split()[:4] == ["FROM", "TENANT", "USER", "GPU-SECONDS"]
    assert [line.split()[2:5] for line in lines[3:]] == [
        ["user:alice", "alice", "20"], ["unit:alice/train.service", "alice", "10"],
        ["job:7", "bob", "5"]]
    lines = (await ctl("--since", "2h", "--all", "--by", "gpu")).out.splitlines()
    assert [line.split()[:2] for line in lines[2:]] == [
        ["GPU", "GPU-SECONDS"], ["0", "30"], ["1", "5"], ["total", "35"]]


async def test_history_command_with_a_uuid_known_nowhere_prints_a_warning(
        ctl: Run) -> None:
    ended = await ctl("--since", "2h", "--all", "--gpu", "GPU-typo")
    assert (ended.code, ended.out.splitlines()[-1]) == (0, "No GPU was used.")
    assert ended.err.startswith("nvsharectl: warning: the history has no use of 'GPU-typo' in that "
                                "time, and there is no GPU 'GPU-typo'; the indices are: 0, 1; ")
    assert (await ctl("--since", "2h", "--all", "--gpu", FACTS.uuid)).err == ""
    assert (await ctl("--since", "2min", "--all", "--gpu", "0")).err == ""


async def test_history_command_with_json_or_csv_prints_exact_values_and_units(ctl: Run) -> None:
    document = json.loads((await ctl("--since", "2h", "--all", "--json", "--by", "user")).out)
    assert [document[name] for name in ("by", "gpus", "step_usec", "missing")] == ["user", 2, 0, ""]
    assert document["rows"][1] | {"start_usec": 0} == {
        "start_usec": 0, "name": "bob", "user": "", "gpu_usec": 5 * SECOND,
        "held_usec": 10 * SECOND, "waited_usec": 3 * SECOND, "turns": 4, "handovers": 2,
        "handover_usec": SECOND // 2, "bytes_in": GIB, "bytes_out": 2 * GIB,
        "card_mib_sec": 1024 * 3600, "host_mib_sec": 2048 * 3600,
        "borrowed_mib_sec": 512 * 3600, "disk_mib_sec": 256 * 3600}
    text = (await ctl("--since", "2h", "--all", "--csv", "--by", "tenant", "--step", "day")).out
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [(row["tenant"], row["user"], row["gpu_seconds"]) for row in rows] == [
        ("user:alice", "alice", "20.000"), ("unit:alice/train.service", "alice", "10.000"),
        ("job:7", "bob", "5.000")]
    assert rows[0]["seconds"] == "86400"
    assert rows[0]["start"].endswith("T00:00:00Z")
    assert (rows[0]["gpu_memory_gib_hours"], rows[0]["disk_gib_hours"]) == ("1.000", "0.250")


async def test_history_command_with_plot_draws_usage_as_text_or_svg(
        ctl: Run, tmp_path: Path) -> None:
    assert (await ctl("--since", "5min", "--all", "--plot")).out == "No GPU was used.\n"
    ended = await ctl("--since", "2h", "--all", "--by", "user", "--plot")
    lines = ended.out.splitlines()
    assert [line.partition("|")[0].strip() for line in lines[:2]] == ["alice", "bob"]
    assert "▁" in ended.out
    picture = tmp_path / "used.svg"
    ended = await ctl("--since", "2h", "--all", "--by", "user", "--plot", str(picture))
    assert ended.out == f"{picture} shows the shares of the time.\n"
    assert [text.text for text in ElementTree.parse(picture).getroot().iter(
        "{http://www.w3.org/2000/svg}text")][:2] == ["alice", "bob"]
    ended = await ctl("--since", "2h", "--all", "--plot", "/proc/none/used.svg")
    assert sentence(ended) == "/proc/none/used.svg cannot be written: No such file or directory"
