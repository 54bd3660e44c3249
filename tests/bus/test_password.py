# SPDX-License-Identifier: Apache-2.0
"""nvsharectl at a terminal starts pkttyagent when polkit demands a password."""

import sys
from pathlib import Path
from typing import Any

import pytest

from nvshared.errors import ExitCode
from nvshared.sharing.manager import Manager
from nvshared.units import SECOND
from tests.bus.service import Peeper, PrivateBus, a_client
from tests.bus.test_authority import polkit_on
from tests.bus.test_commands import NVSHARECTL
from tests.bus.test_terminal import on_a_terminal

AGENT = """#!{python}
import os, signal, sys
from pathlib import Path

there = Path({there!r})
there.write_text(" ".join(sys.argv[1:]))

def end(*_):
    there.rename(there.with_name("ended"))
    os._exit(0)

signal.signal(signal.SIGTERM, end)
os.close(int(sys.argv[2]))
signal.pause()
"""


def seen(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


@pytest.fixture
def environment(private: PrivateBus, tmp_path: Path) -> dict[str, Any]:
    """Variables with the private bus as system bus, and a PATH that has only pkttyagent."""
    agent = tmp_path / "pkttyagent"
    agent.write_text(AGENT.format(python=sys.executable, there=str(tmp_path / "there")))
    agent.chmod(0o755)
    return {
        "DBUS_SYSTEM_BUS_ADDRESS": private.address, "NVSHARE_BUS": "system",
        "PATH": str(tmp_path)}


async def test_nvsharectl_at_a_terminal_asks_for_the_password_that_polkit_requires(
        manager: Manager, caller: Peeper, private: PrivateBus, tmp_path: Path,
        environment: dict[str, Any]) -> None:
    async with polkit_on(private.address) as polkit:
        polkit.challenge, polkit.agent = True, tmp_path / "there"
        shown = await on_a_terminal(*NVSHARECTL, "set-tq", "5", **environment)
        assert shown == "The quantum of all GPUs is 5 seconds.\r\n"
        assert [flags for _, _, flags in polkit.asked] == [0, 1]
    assert manager.tq == 5 * SECOND
    arguments = (tmp_path / "ended").read_text().split()
    assert (arguments[0], arguments[2:]) == ("--notify-fd", ["--fallback"])


@pytest.mark.parametrize(("granted", "agent"), [
    (True, AGENT), (False, None), (False, "#!/bin/sh\nexit 1\n")])
async def test_nvsharectl_asks_no_password_where_polkit_grants_or_no_polkit_agent_runs(
        manager: Manager, caller: Peeper, private: PrivateBus, tmp_path: Path,
        environment: dict[str, Any], granted: bool, agent: str | None) -> None:
    if agent is None:
        (tmp_path / "pkttyagent").unlink()
    elif not granted:
        (tmp_path / "pkttyagent").write_text(agent)
    async with polkit_on(private.address) as polkit:
        polkit.granted, polkit.challenge, polkit.agent = granted, True, tmp_path / "there"
        shown = await on_a_terminal(
            *NVSHARECTL, "set-tq", "5", expected=0 if granted else ExitCode.NOT_PERMITTED,
            **environment)
    assert granted or "com.nvshare.set-tq is not permitted to uid" in " ".join(shown.split())
    assert manager.tq == (5 if granted else 30) * SECOND
    assert seen(tmp_path) == ["pkttyagent"] * (agent is not None)


async def test_top_leaves_the_terminal_to_the_polkit_agent_that_asks_for_a_password(
        manager: Manager, caller: Peeper, private: PrivateBus, tmp_path: Path,
        environment: dict[str, Any]) -> None:
    client = a_client(manager, manager.gpus[0])
    async with polkit_on(private.address) as polkit:
        polkit.challenge, polkit.agent = True, tmp_path / "there"
        shown = await on_a_terminal(*NVSHARECTL, "top", "-i", "0.3", **environment, steps=[
            (b"python", b"s"), (b"y/n", b"y"), (b"is suspended on GPU 0.", b"q")])
    assert client.terms.in_force.suspended
    assert (tmp_path / "ended").exists()
    assert shown.count("\x1b[?1049h") == shown.count("\x1b[?1049l") == 2
