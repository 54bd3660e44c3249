# SPDX-License-Identifier: Apache-2.0
"""The programs of a soak: libhook/tests/stress, which knows what each byte must be."""

import os
import subprocess
from pathlib import Path
from typing import IO

from bench.harness import ROOT
from nvshared.machine import disk
from nvshared.units import GIB

PROGRAMS = 4
DISK = Path("/var/tmp")
RESTS = (5.0, 5.0, 4.0, 4.0)            # seconds, of which a program rests for the last
# What each program fills, in MiB, at most, and the card's size, for a simulated card and a real
# one: two of the four fit, and one does so beside all that the others have shared with others,
# which stays on the card.
SIZES = {True: (24, "112MiB"), False: (192, "448MiB")}


def start(seed: int, environment: dict[str, str], seconds: float, megabytes: int,
          build: Path = ROOT / "libhook" / "build",
          errors: IO[bytes] | int = subprocess.PIPE) -> subprocess.Popen[bytes]:
    """One program. At SIGTERM, or after so many seconds, it compares everything and ends."""
    return subprocess.Popen(
        [str(build / "stress"), "--seed", str(seed), "--threads", "4", "--seconds", str(seconds),
         "--megabytes", str(megabytes), "--rest", str(RESTS[seed % PROGRAMS])],
        env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=errors)


def disk_options() -> list[str]:
    """Options of the daemon by which an idle program's memory moves to a disk, if there is one."""
    if disk.fault(DISK, 4 * GIB):
        return []
    return ["--disk", f"{DISK},4GiB", "--park-after", "200ms"]
