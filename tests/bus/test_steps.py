# SPDX-License-Identifier: Apache-2.0
"""Commands that change several things, where not all of them can be changed."""

import json

import pytest

from nvshared.errors import ExitCode
from nvshared.scheduler.events import Terms
from nvshared.sharing.manager import Manager
from nvshared.units import GIB
from tests.bus.service import OTHER_UID, PrivateBus, a_client
from tests.bus.test_clients import owned_by
from tests.bus.test_commands import Run, ctl, sentence

__all__ = ["ctl"]                       # a fixture


@pytest.mark.usefixtures("other_user")
async def test_limit_command_after_a_refused_limit_names_limits_and_gpus_set_before(
        manager: Manager, ctl: Run) -> None:
    client = owned_by(a_client(manager, manager.gpus[0], pid=11), OTHER_UID)
    manager.set_terms(client.id, "compute_limit", 50)
    ended = await ctl("limit", "11", "--memory", "1GiB", "--compute", "60")
    assert ended.code == ExitCode.NOT_PERMITTED
    said = sentence(ended)
    assert said.startswith("authentication required: com.nvshare.manage-clients ")
    assert "(done: memory limit on GPU 0; not done: compute limit on GPU 0)" in said
    assert client.terms.in_force == Terms(memory_limit=GIB, compute_limit=50)
    ended = await ctl("limit", "11", "--compute", "60")
    assert sentence(ended).startswith("authentication required: com.nvshare.manage-clients ")
    assert "; the administrator has limited the program to 50 % of the time" in ended.err
    one, two = (owned_by(a_client(manager, gpu, pid=12), OTHER_UID) for gpu in manager.gpus)
    manager.set_terms(two.id, "memory_limit", GIB)
    ended = await ctl("limit", "12", "--compute", "60", "--memory", "2GiB")
    assert (
        "(done: memory limit on GPU 0; not done: memory limit on GPU 1, compute limit on GPU 0, "
        "compute limit on GPU 1)") in sentence(ended)
    assert (one.terms.in_force, two.terms.in_force) == (Terms(2 * GIB), Terms(GIB))


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
