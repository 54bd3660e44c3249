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
# seconds, by program: the period at the end of which the program is idle for one second
RESTS = (5.0, 5.0, 4.0, 4.0)
# Most MiB of each program, and the card's capacity, by whether the card is simulated. Two programs
# fit, or one beside the pinned memory of the other three, which they share between processes.
SIZES = {True: (24, "112MiB"), False: (192, "448MiB")}


def start(seed: int, environment: dict[str, str], seconds: float, megabytes: int,
          build: Path = ROOT / "libhook" / "build",
          errors: IO[bytes] | int = subprocess.PIPE) -> subprocess.Popen[bytes]:
    """Starts a program. At SIGTERM or after `seconds` it compares all its memory, and ends."""
    return subprocess.Popen(
        [str(build / "stress"), "--seed", str(seed), "--threads", "4", "--seconds", str(seconds),
         "--megabytes", str(megabytes), "--rest", str(RESTS[seed % PROGRAMS])],
        env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=errors)


def disk_options() -> list[str]:
    """The daemon's options for the disk tier; none if DISK cannot hold swapped memory."""
    if disk.fault(DISK, 4 * GIB):
        return []
    return ["--disk", f"{DISK},4GiB", "--park-after", "200ms"]
