# SPDX-License-Identifier: Apache-2.0
"""Commands that change several things, where not all of them can be changed."""

import json
from typing import Any

import pytest

from nvshared.errors import ExitCode, NoSuchClient, NotPermitted
from nvshared.scheduler.events import Terms
from nvshared.sharing.manager import Manager
from nvshared.units import GIB, SECOND
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


async def test_original_nvshare_flags_name_the_setting_made_before_another_was_refused(
        manager: Manager, ctl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(mode: str, gpu: str = "") -> None:
        raise NotPermitted("not today")

    monkeypatch.setattr(manager, "set_anti_thrash", refuse)
    ended = await ctl("-T", "5", "-S", "on")
    assert ended.code == ExitCode.NOT_PERMITTED
    assert sentence(ended).startswith("not today (done: quantum; not done: anti-thrash mode)")
    assert manager.tq == 5 * SECOND


@pytest.mark.parametrize(("arguments", "message", "setting"), [
    (["weight", "11", "200"], "weight", {"weight": 200}),
    (["suspend", "11"], "suspended", {"suspended": True}),
    (["resume", "11"], "resumed", {"suspended": False}),
])
async def test_limit_command_that_fails_on_a_second_gpu_names_the_gpu_already_set(
        manager: Manager, ctl: Run, monkeypatch: pytest.MonkeyPatch, arguments: list[str],
        message: str, setting: dict[str, object]) -> None:
    _, two = (a_client(manager, gpu, pid=11) for gpu in manager.gpus)
    change = manager.set_terms

    def leave(id: int, *values: Any, by_owner: bool) -> None:
        if id == two.id:
            raise NoSuchClient("it has just ended")
        change(id, *values, by_owner=by_owner)

    monkeypatch.setattr(manager, "set_terms", leave)
    ended = await ctl(*arguments)
    assert (ended.code, sentence(ended)) == (
        ExitCode.NO_SUCH_THING,
        f"it has just ended (done: {message} on GPU 0; not done: {message} on GPU 1)")
    said = json.loads((await ctl(*arguments, "--json")).err)
    assert (said["done"], said["not_done"], said["unknown"]) == (
        [{"gpu": 0, **setting}], [{"gpu": 1, **setting}], [])
    on_the_other = await ctl(*arguments, "--gpu", "0")
    assert (on_the_other.code, "on GPU 0 " in on_the_other.out.replace(".", " ")) == (0, True)
    assert (await ctl(*arguments, "--gpu", "1")).err == "nvsharectl: it has just ended\n"


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
