# SPDX-License-Identifier: Apache-2.0
"""Commands that change several things, as people who may change some of them."""

import pytest

from nvshared.bus.authority import Caller
from nvshared.errors import ExitCode, NotPermitted
from nvshared.manager import Manager
from nvshared.scheduler.settings import Terms
from tests.bus.service import a_client
from tests.bus.test_authority import SOMEBODY
from tests.bus.test_clients import owned_by
from tests.bus.test_commands import Run, ctl, sentence

__all__ = ["ctl"]                       # a fixture
GIB = 1 << 30


@pytest.fixture
def somebody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever calls is neither root nor the daemon's user."""

    async def uid(_caller: Caller) -> int:
        return SOMEBODY

    monkeypatch.setattr(Caller, "uid", uid)


@pytest.mark.usefixtures("somebody")
async def test_who_may_set_one_of_two_limits_hears_which_holds(
    manager: Manager, ctl: Run
) -> None:
    client = owned_by(a_client(manager, manager.gpus[0], pid=11), SOMEBODY)
    manager.set_compute_limit(client.id, 50)
    ended = await ctl("limit", "11", "--memory", "1GiB", "--compute", "60")
    assert ended.code == ExitCode.NOT_PERMITTED
    assert sentence(ended).startswith("only the memory limit is set: com.nvshare.manage-clients ")
    assert client.agreement.terms == Terms(memory_limit=GIB, compute_limit=50)
    ended = await ctl("limit", "11", "--compute", "60")
    assert sentence(ended).startswith("com.nvshare.manage-clients ")
    assert "; the administrator has limited the program to 50 % of the time" in ended.err


@pytest.mark.usefixtures("somebody")
async def test_who_may_set_a_limit_on_one_of_two_gpus_hears_that(
    manager: Manager, ctl: Run
) -> None:
    one, two = (owned_by(a_client(manager, gpu, pid=11), SOMEBODY) for gpu in manager.gpus)
    manager.set_memory_limit(two.id, GIB)
    ended = await ctl("limit", "11", "--compute", "60", "--memory", "2GiB")
    assert sentence(ended).startswith("only the memory limit on 1 of 2 GPUs is set: ")
    assert (one.agreement.terms, two.agreement.terms) == (Terms(2 * GIB), Terms(GIB))


async def test_of_the_predecessors_flags_one_may_be_refused(
    manager: Manager, ctl: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(mode: str, gpu: str = "") -> None:
        raise NotPermitted("not today")

    monkeypatch.setattr(manager, "set_anti_thrash", refuse)
    ended = await ctl("-T", "5", "-S", "on")
    assert ended.code == ExitCode.NOT_PERMITTED
    assert sentence(ended).startswith("only the quantum is set: not today")
    assert manager.tq == 5
