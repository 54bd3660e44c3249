# SPDX-License-Identifier: Apache-2.0
"""busctl works with the daemon on a private bus."""

import shutil

import pytest

from nvshared.bus import Publication
from nvshared.sharing.manager import Manager
from nvshared.units import SECOND
from tests.bus.service import PrivateBus, a_client
from tests.bus.test_commands import run


@pytest.mark.skipif(not shutil.which("busctl"), reason="there is no busctl on this machine")
async def test_busctl_calls_and_introspects_the_daemon(manager: Manager, publication: Publication,
                                                       private: PrivateBus) -> None:
    a_client(manager, manager.gpus[0])
    busctl = ("busctl", f"--address={private.address}")
    target = ("com.nvshare", "/com/nvshare", "com.nvshare.Manager")
    assert (await run(*busctl, "call", *target, "SetTQ", "u", "17")).code == 0
    assert [gpu.tq // SECOND for gpu in manager.gpus] == [17, 17]
    assert (await run(*busctl, "get-property", *target, "TQ")).out == "u 17\n"
    tree = (await run(*busctl, "tree", "--list", "com.nvshare")).out.split()
    assert {"/com/nvshare", "/com/nvshare/gpu/0", "/com/nvshare/client/1"} <= set(tree)
    shown = (await run(*busctl, "introspect", "com.nvshare", "/com/nvshare/gpu/0")).out
    for words in ("com.nvshare.GPU.Statistics", ".SetAntiThrash", ".QueueLength", "emits-change"):
        assert words in shown
    ended = await run(*busctl, "call", *target, "SetTQ", "u", "0")
    assert "the quantum cannot be 0 seconds" in ended.err
