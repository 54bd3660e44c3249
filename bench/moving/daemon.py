# SPDX-License-Identifier: Apache-2.0
"""The daemon, told by lines of its standard input what to move: for machines without a D-Bus.

    park PID        move PID GPU        Answers: "done", or why not.
"""

import asyncio
import sys
from typing import Any

from nvshared import daemon
from nvshared.errors import NvshareError
from nvshared.machine import host
from nvshared.sharing.moving import Moving


async def _obey(moving: Moving, words: list[str]) -> str:
    gpus: Any = moving._gpus
    pid = int(words[1])
    found: list[Any] = []
    # Just after a move it is on its way to the other card.
    while not found and host.started(pid) is not None:
        await asyncio.sleep(0.001)
        found = [one for gpu in gpus for one in gpu.clients.values() if one.peer.pid == pid]
    try:
        (client,) = found
        if words[0] == "park":
            await moving.park(client)
        else:
            await moving.move(client, gpus[int(words[2])])
    except (NvshareError, ValueError) as error:
        return str(error)
    return "done"


async def _listen(moving: Moving) -> None:
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        print(await _obey(moving, line.split()), flush=True)


if __name__ == "__main__":
    # In the place of its look for idle clients, which is off by default.
    setattr(Moving, "watch", _listen)   # noqa: B010
    sys.exit(daemon.main())
