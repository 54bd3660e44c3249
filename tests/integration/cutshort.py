# SPDX-License-Identifier: Apache-2.0
"""The daemon, whose nvshare-checkpoint is killed in the middle of a command, once.

NVSHARE_TEST_CUT=COMMAND:CALLS[:SIGNAL]: of the first such command, only so many calls of the driver
are made, and there is no answer. The daemon gets the signal (KILL or TERM) then.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Iterable

from nvshared.machine import checkpoint
from nvshared.machine.checkpoint import Answer

CALLS = {"park": ["Lock", "Checkpoint"], "wake": ["Restore", "Unlock"]}
DRIVER = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
assert cuda.cuInit(0) == 0
for name in sys.argv[2:]:
    assert getattr(cuda, "cuCheckpointProcess" + name)(int(sys.argv[1]), None) == 0
"""

cut, calls, *end = os.environ["NVSHARE_TEST_CUT"].split(":")
whole = checkpoint.ask
left = [cut]


async def ask(
    command: str, pid: int, pairs: Iterable[tuple[str, str]] = (), tag: str = "",
) -> Answer:
    if command not in left:
        return await whole(command, pid, pairs, tag)
    left.remove(command)
    driver = await asyncio.create_subprocess_exec(
        sys.executable, "-c", DRIVER, str(pid), *CALLS[command][:int(calls)])
    assert await driver.wait() == 0
    if end:
        os.kill(os.getpid(), signal.Signals[f"SIG{end[0]}"])
        await asyncio.Event().wait()
    return checkpoint.parse("")


if __name__ == "__main__":
    checkpoint.ask = ask
    from nvshared import daemon

    sys.exit(daemon.main())
