# SPDX-License-Identifier: Apache-2.0
"""The daemon with orders to move programs on its standard input, for machines without D-Bus.

    park PID        move PID GPU        deep-idle SECONDS
    save PID        restore FOLDER

Orders run concurrently. The answer to each is the line "PID done", or "PID" and the reason of the
failure; for deep-idle the PID is 0, for restore the FOLDER. The answer to save is "PID saved
FOLDER". The daemon uses only the first two GPUs.
"""

import asyncio
import sys
from typing import Any

from nvshared import daemon
from nvshared.errors import NvshareError
from nvshared.machine import host
from nvshared.machine.nvml import NVML
from nvshared.sharing.moving import Moving, start_task
from nvshared.sharing.saving import Saving
from nvshared.units import SECOND

CARDS = 2

find_all, watch, take_over = NVML.find, Moving.watch, Saving.take_over
saving: list[Saving] = []


async def _carry_out(moving: Moving, order: str, *words: str) -> str:
    gpus: Any = moving._gpus
    if order == "deep-idle":
        moving.use(round(float(words[0]) * SECOND))
        return "0 done"
    if order == "restore":
        try:
            await saving[0].restore(await saving[0].find(words[0], ""))
        except NvshareError as error:
            return f"{words[0]} {error}"
        return f"{words[0]} done"
    pid = int(words[0])
    found: list[Any] = []
    # Just after a move, neither card may have the client yet.
    while not found and host.started(pid) is not None:
        await asyncio.sleep(0.001)
        found = [one for gpu in gpus for one in gpu.clients.values() if one.peer.pid == pid]
    if not found:
        return f"{pid} has ended"
    if len(found) > 1:
        return f"{pid} uses several GPUs"
    try:
        if order == "save":
            return f"{pid} saved {(await saving[0].save(found[0])).folder}"
        if order == "park":
            await moving.park(found[0])
        else:
            await moving.move(found[0], gpus[int(words[1])])
    except NvshareError as error:
        return f"{pid} {error}"
    return f"{pid} done"


async def _answer(moving: Moving, line: str) -> None:
    print(await _carry_out(moving, *line.split()), flush=True)


async def _listen(moving: Moving) -> None:
    loop, tasks = asyncio.get_running_loop(), set[asyncio.Task[Any]]()
    start_task(tasks, watch(moving))
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        start_task(tasks, _answer(moving, line))


async def _take_over(mine: Saving) -> None:
    saving.append(mine)
    await take_over(mine)


if __name__ == "__main__":
    setattr(Saving, "take_over", _take_over)    # noqa: B010
    setattr(NVML, "find", lambda nvml: [*find_all(nvml)][:CARDS])   # noqa: B010
    setattr(Moving, "watch", _listen)   # noqa: B010
    sys.exit(daemon.main())
