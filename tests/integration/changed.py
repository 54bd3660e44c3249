# SPDX-License-Identifier: Apache-2.0
"""nvshared with faults: python -m tests.integration.changed OPTIONS. Variables choose the faults.

NVSHARE_TEST_HELPER: the path of the program that the daemon starts as nvshare-checkpoint.
NVSHARE_TEST_PATIENCE: seconds that the daemon waits for nvshare-checkpoint's first answer.
NVSHARE_TEST_CUT=COMMAND:CALLS[:SIGNAL]: at the first command of this name nvshare-checkpoint makes
    only CALLS calls of the driver and ends without an answer. Then the daemon gets the signal (KILL
    or TERM), if any.
NVSHARE_TEST_LOST: once this file exists, the driver reports the cards whose UUIDs are in the file,
    or all cards if it is empty, as lost.
NVSHARE_TEST_PIPES: a folder of pipes without a writer, which let lookups hang: proc/PID has pipes
    in place of a process's files, groups in place of files of control groups; users is a pipe that
    each lookup of a user reads first.
NVSHARE_TEST_CONSTANTS: see zygote.replace_constants().
"""

import asyncio
import os
import pwd
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nvshared.errors import GPULost, NvshareError
from nvshared.machine import cgroup, checkpoint, host
from nvshared.machine.nvml import NVML, Sample

CALLS = {"park": ["Lock", "Checkpoint"], "wake": ["Restore", "Unlock"]}
DRIVER = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
assert cuda.cuInit(0) == 0
for name in sys.argv[2:]:
    assert getattr(cuda, "cuCheckpointProcess" + name)(int(sys.argv[1]), None) == 0
"""


def use_helper(path: str) -> None:
    checkpoint.COMMAND = (path,)


def use_patience(seconds: str) -> None:
    checkpoint.READY_WITHIN = float(seconds)


def cut(fault: str) -> None:
    first, calls, *end = fault.split(":")
    whole = checkpoint.ask
    left = [first]

    async def ask(command: str, pid: int, *words: Any, **named: Any) -> checkpoint.Answer:
        if command not in left:
            return await whole(command, pid, *words, **named)
        left.remove(command)
        driver = await asyncio.create_subprocess_exec(
            sys.executable, "-c", DRIVER, str(pid), *CALLS[command][:int(calls)])
        assert await driver.wait() == 0
        if end:
            os.kill(os.getpid(), signal.Signals[f"SIG{end[0]}"])
            await asyncio.Event().wait()
        raise NvshareError("nvshare-checkpoint has ended without an answer")

    checkpoint.ask = ask


def lose(path: str) -> None:
    from nvshared import daemon

    lost = Path(path)

    class Losing(NVML):
        def sample(self, uuid: str) -> Sample:
            if lost.exists() and uuid in (lost.read_text() or uuid):
                raise GPULost("GPU is lost")
            return super().sample(uuid)

    daemon.NVML = Losing                # type: ignore[attr-defined]


def hang(folder: str) -> None:
    box = Path(folder)

    class Processes:
        """/proc, except for processes that have a folder in `box`."""

        def __truediv__(self, pid: str) -> Path:
            mine = box / "proc" / pid
            return mine if mine.exists() else Path("/proc") / pid

    def look_up(uid: int) -> pwd.struct_passwd:
        if uid and (box / "users").exists():
            (box / "users").read_bytes()
        return getpwuid(uid)

    getpwuid = pwd.getpwuid
    host.PROCESSES = Processes()        # type: ignore[assignment]
    cgroup.ROOT = box / "groups"
    cgroup._visible_top = lambda name: (cgroup.mount_point(name), ())     # type: ignore[assignment]
    pwd.getpwuid = look_up


CHANGES: dict[str, Callable[[str], None]] = {
    "HELPER": use_helper, "PATIENCE": use_patience, "CUT": cut, "LOST": lose,
    "PIPES": hang,
}

if __name__ == "__main__":
    for name, change in CHANGES.items():
        if value := os.environ.get(f"NVSHARE_TEST_{name}"):
            change(value)
    # Imported only now, because nvshared.daemon imports functions of the changed modules by name.
    from nvshared import daemon
    from tests.integration.zygote import replace_constants

    replace_constants()
    sys.exit(daemon.main())
