# SPDX-License-Identifier: Apache-2.0
"""nvshare-checkpoint: checkpoints processes with the driver, and restores them.

    state PID                   reports the driver's state of the process
    park PID                    locks and checkpoints it; unlocks it if that fails
    wake PID [OLD=NEW ...]      restores and unlocks it. NEW replaces the GPU with the UUID OLD;
                                other GPUs stay. Each named GPU must be once OLD, once NEW

A thread that queries a stream or an event takes no lock of the driver, and crashes in a process
that is checkpointed (driver 580). So the process must have libnvshare.so, which keeps its threads
out of the driver.

Commands are lines of the standard input. Each does the steps that are missing in the current state
of the process, so it can be repeated after its caller or this program was killed. The answer
consists of lines:

    step NAME CODE MICROSECONDS WORDS       a call of the driver: its result as number and text
    state STATE                             the last line: running, locked, checkpointed, failed,
                                            or none: no such process, or no usable driver

Orders on a socket are taken from the daemon alone; the exit status is 3 for others, and 2 for a
malformed command. The driver restores only from a process that has called cuInit(). This one
creates no context."""

import ctypes
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from struct import Struct

if not __package__:                     # root runs this file, by python3 -I
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from nvshared import caller

LOCK_TIMEOUT = 5000                     # milliseconds
LONGEST = 8192                          # most bytes of a command
STATES = ("running", "locked", "checkpointed", "failed")
# Arguments of the driver's functions, 64 bytes each, as in cuda.h of CUDA 12.8 and later: a
# timeout; a pointer to pairs of UUIDs, and their number; none.
LOCK, RESTORE, NONE = Struct("I60x"), Struct("PI52x"), Struct("64x")
FUNCTIONS = ("GetState", "Lock", "Checkpoint", "Restore", "Unlock")
OLD = "this driver cannot checkpoint; 570 and later can"

Pair = tuple[bytes, bytes]              # UUIDs of the old and the new GPU


def say(line: str) -> None:
    """Answers the daemon. If the daemon has ended, the command is carried out nevertheless."""
    with suppress(OSError):
        os.write(1, f"{line}\n".encode())


def now() -> int:
    return time.monotonic_ns() // 1000


class Driver:
    """The driver. Raises OSError, with the reason, if it is unusable."""

    def __init__(self) -> None:
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)    # all_gpus() needs every GPU
        self.cuda = ctypes.CDLL("libcuda.so.1")
        if not all(hasattr(self.cuda, f"cuCheckpointProcess{name}") for name in FUNCTIONS):
            raise OSError(OLD)

    def report(self, name: str, began: int, code: int) -> bool:
        words = ctypes.c_char_p()
        self.cuda.cuGetErrorString(code, ctypes.byref(words))
        text = (words.value or b"no words for it").decode(errors="replace")
        say(f"step {name} {code} {now() - began} {text}")
        return code == 0

    def state(self, pid: int) -> str:
        found = ctypes.c_int()
        code = self.cuda.cuCheckpointProcessGetState(pid, ctypes.byref(found))
        return STATES[found.value] if code == 0 and 0 <= found.value < len(STATES) else "none"

    def step(self, name: str, pid: int, arguments: bytes) -> bool:
        function, began = getattr(self.cuda, f"cuCheckpointProcess{name}"), now()
        return self.report(name.lower(), began, function(pid, ctypes.c_char_p(arguments)))

    def park(self, pid: int) -> None:
        if self.state(pid) == "running":
            self.step("Lock", pid, LOCK.pack(LOCK_TIMEOUT))
        if self.state(pid) == "locked" and not self.step("Checkpoint", pid, NONE.pack()):
            self.unlock(pid)

    def wake(self, pid: int, pairs: Sequence[Pair]) -> None:
        every = b"".join(old + new for old, new in self.all_gpus(pairs)) if pairs else b""
        given = ctypes.create_string_buffer(every, len(every) or 1)
        if self.state(pid) == "checkpointed":
            self.step("Restore", pid, RESTORE.pack(
                ctypes.addressof(given) if every else 0, len(every) // 32))
        self.unlock(pid)

    def unlock(self, pid: int) -> None:
        if self.state(pid) == "locked":
            self.step("Unlock", pid, NONE.pack())

    def all_gpus(self, pairs: Sequence[Pair]) -> list[Pair]:
        """Adds the other GPUs, each as itself: the driver refuses pairs that do not contain all
        GPUs of the machine (580), whichever of them the process uses."""
        every, number, uuid = dict(pairs), ctypes.c_int(), ctypes.create_string_buffer(16)
        self.cuda.cuDeviceGetCount(ctypes.byref(number))
        for gpu in range(number.value):
            if self.cuda.cuDeviceGetUuid(uuid, gpu) == 0:
                every.setdefault(uuid.raw, uuid.raw)
        return list(every.items())


@cache
def opened() -> Driver | None:
    """The driver, which is initialised once; None, reported with the reason: it is unusable."""
    began = now()
    try:
        driver = Driver()
    except OSError as error:
        say(f"step open -1 {now() - began} {error}")
        return None
    return driver if driver.report("init", began, driver.cuda.cuInit(0)) else None


def parsed(words: Sequence[str]) -> tuple[str, int, list[Pair]] | None:
    """The command, the process and the pairs of GPUs; None: it is malformed."""
    order, pid, *rest = [*words, "", ""][:max(2, len(words))]
    pairs = []
    for text in rest:
        try:
            old, new = (bytes.fromhex(one.removeprefix("GPU-").replace("-", ""))
                        for one in text.split("="))
        except ValueError:
            return None
        if len(old) != 16 or len(new) != 16:
            return None
        pairs.append((old, new))
    is_known = order == "wake" or (order in ("state", "park") and not pairs)
    is_process = pid.isascii() and pid.isdecimal() and 0 < int(pid) < 1 << 31
    return (order, int(pid), pairs) if is_known and is_process else None


def run(words: Sequence[str]) -> bool:
    """Carries out a command and answers. False: it is malformed."""
    if (given := parsed(words)) is None:
        return False
    order, pid, pairs = given
    driver = opened()
    if driver is not None and order == "park":
        driver.park(pid)
    elif driver is not None and order == "wake":
        driver.wake(pid, pairs)
    say(f"state {'none' if driver is None else driver.state(pid)}")
    return True


def main() -> int:
    if why := caller.refusal():
        print(f"nvshare-checkpoint takes no orders from {why}", file=sys.stderr)
        return 3
    with suppress(ConnectionError):     # the daemon has ended without reading an answer
        for line in iter(lambda: sys.stdin.buffer.readline(LONGEST), b""):
            if (command := line.decode(errors="replace").split()) and not run(command):
                return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
