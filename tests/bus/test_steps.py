# SPDX-License-Identifier: Apache-2.0
"""A command for several clients that succeeds for some clients only."""

import json

import pytest

from nvshared.errors import ExitCode
from nvshared.sharing.manager import Manager
from tests.bus.service import PrivateBus, a_client
from tests.bus.test_commands import Run, ctl

__all__ = ["ctl"]                       # a fixture


async def test_suspend_command_says_perhaps_done_when_the_bus_ends_before_the_reply(
        manager: Manager, ctl: Run, private: PrivateBus, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = (a_client(manager, gpu, pid=11) for gpu in manager.gpus)
    set_terms = manager.set_terms

    def end(id: int, setting: str, value: int, *, by_owner: bool) -> None:
        set_terms(id, setting, value, by_owner=by_owner)
        if id == two.id:
            private.stop()

    monkeypatch.setattr(manager, "set_terms", end)
    ended = await ctl("suspend", "11", "--json")
    assert (one.terms.in_force.suspended, two.terms.in_force.suspended) == (True, True)
    said = json.loads(ended.err)
    assert "(done: suspended on GPU 0; perhaps done: suspended on GPU 1)" in said["error"]
    assert (said["done"], said["not_done"], said["unknown"]) == (
        [{"gpu": 0, "suspended": True}], [], [{"gpu": 1, "suspended": True}])
    assert ended.code == ExitCode.FAILURE
