# SPDX-License-Identifier: Apache-2.0
"""Completion by Tab of what the daemon has at that moment: GPUs, process ids, tenants, folders."""

import asyncio
import os
import sys
from pathlib import Path

import pytest
from dbus_next.constants import MessageType

from nvshared.machine.saving import Saved
from nvshared.names import BUS_NAME
from nvshared.sharing.manager import Manager
from tests.bus.service import PrivateBus, a_client, peeper, published
from tests.bus.test_cli_waits import JOB
from tests.unit.test_completion import path, shell, tab

__all__ = ["path", "shell"]             # fixtures


PATIENT = (
    "import sys; from nvshared.cli import main; main.QUICK = 600.0; sys.exit(main.main())")


@pytest.fixture
def patient(path: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """nvsharectl in PATH waits longer for the daemon: the machine may be busy."""
    (tmp_path / "nvsharectl").write_text(f'#!/bin/sh\nexec {sys.executable} -c "{PATIENT}" "$@"\n')
    (tmp_path / "nvsharectl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


async def offered(shell: str, line: str) -> set[str]:
    """The candidates, without options and their values before an equals sign."""
    found = await asyncio.to_thread(tab, shell, line)
    return {one.rpartition("=")[2] for one in found if not one.startswith("-") or "=" in one}


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(("line", "expected"), [
    ("park ", {"11", "12"}), ("move 11 --to ", {"0", "1"}), ("clients --gpu=", {"0", "1"}),
    ("preempt ", {"0", "1"}), ("limit 1", {"11", "12"}),
    ("suspend --wait ", {"11", "12", "job:7", "user:root", "user:alice"}),
    ("priority j", {"job:7"}), ("tenants --explain ", {"job:7", "user:root", "user:alice"}),
    ("restore ", {"/saved/python-9"}), ("save --remove /sav", {"/saved/python-9"}),
])
async def test_completion_beside_a_daemon_offers_its_gpus_programs_tenants_and_folders(
        manager: Manager, private: PrivateBus, shell: str, line: str, expected: set[str],
        monkeypatch: pytest.MonkeyPatch) -> None:
    async def listed(_to: str) -> list[Saved]:
        return [Saved("/saved/python-9", "saved", 1, "", 0, 9, 0, "python-9", 1, 0, {})]

    monkeypatch.setattr(manager.saving, "_list", listed)
    monkeypatch.setenv("NVSHARE_BUS", private.address)
    async with published(manager, private.address):
        a_client(manager, manager.gpus[0], pid=11)
        a_client(manager, manager.gpus[1], pid=12, tenants=JOB)
        manager.tenancy.set_terms("user:alice", {"weight": 200})
        assert await offered(shell, line) == expected


@pytest.mark.usefixtures("patient")
async def test_completion_of_a_tenant_in_bash_goes_on_behind_the_colon(
        manager: Manager, private: PrivateBus, monkeypatch: pytest.MonkeyPatch) -> None:
    """bash takes a colon for the end of a word."""
    monkeypatch.setenv("NVSHARE_BUS", private.address)
    async with published(manager, private.address):
        a_client(manager, manager.gpus[0], tenants=JOB)
        assert await offered("bash", "limit job:") == {"7"}


async def test_completion_beside_a_silent_daemon_offers_nothing_and_prints_nothing(
        private: PrivateBus, shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVSHARE_BUS", private.address)
    async with peeper(private.address) as silent:
        silent.bus.add_message_handler(
            lambda message: message.message_type is MessageType.METHOD_CALL)
        await silent.bus.request_name(BUS_NAME)
        assert await offered(shell, "park ") == set()
