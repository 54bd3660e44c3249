# SPDX-License-Identifier: Apache-2.0
"""The GPU that is measured: the machine's own, or a simulated one whose figures mean nothing."""

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nvshared import library
from nvshared.errors import NvshareError
from nvshared.machine import host
from nvshared.units import GIB, MIB

NO_DRIVER = 5                           # nvshare-workload's exit status
HOST_SHARE = 0.86                       # part of host memory for swapped blocks
HOST_MOST = 108 * GIB                   # most bytes for swapped blocks
SIMULATED = 256 * MIB
SIMULATED_COPIES = 2 * GIB              # bytes per second in each direction


@dataclass(frozen=True, slots=True, eq=False)
class Card:
    name: str
    total: int                          # bytes
    simulated: bool
    budget: int                         # bytes of host memory for the daemon
    seconds: float                      # seconds for which programs compute
    block: int                          # bytes of a block of the library
    log: Path                           # log of the daemons
    environment: Mapping[str, str]      # environment of every process that uses the card

    def share(self, share: float) -> int:
        """So much of its memory, in bytes, of whole blocks."""
        return max(1, round(share * self.total / self.block)) * self.block

    def quantum(self, seconds: float) -> str:
        """A quantum that keeps the same number of turns in a run, however long that is."""
        return f"{round(1000 * (seconds / 5 if self.simulated else seconds))}ms"


def unshared() -> dict[str, str]:
    ours = library.hook().name
    preloaded = os.environ.get("LD_PRELOAD", "").replace(" ", ":").split(":")
    return {
        "LD_PRELOAD": ":".join(one for one in preloaded if Path(one).name != ours),
        # No daemon listens there, in case the library is preloaded in all programs.
        "NVSHARE_SOCKET": "/nonexistent/nvshare.sock"}


def find(folder: Path, simulate: bool, seconds: float | None, budget: int | None) -> Card:
    """The machine's GPU, or a simulated one. What is kept of them lies in `folder`.

    `simulate`: do not look for a real one. `seconds` and `budget` None: as fits the card.
    Raises NvshareError if there is a GPU that does not work.
    """
    log = folder / "log"
    if budget is None:
        budget = min(HOST_MOST, int(HOST_SHARE * host.total()))
    if not simulate:
        done = subprocess.run([library.workload(), "--json", "--memory", "1MiB", "--steps", "1"],
                              env={**os.environ, **unshared()}, capture_output=True, text=True,
                              check=False)
        if done.returncode == 0:
            said = json.loads(done.stdout.splitlines()[0])
            return Card(said["gpu"], said["total"], False, budget, seconds or 25.0, 32 * MIB, log,
                        {})
        if done.returncode != NO_DRIVER:
            raise NvshareError(f"the GPU of this machine does not work: {done.stderr.strip()}",
                               "try the benchmark itself with --simulate")
    path = [str(library.simulator()), os.environ.get("LD_LIBRARY_PATH", "")]
    return Card("a simulated GPU", SIMULATED, True, budget, seconds or 6.0, 4 * MIB, log, {
        "LD_LIBRARY_PATH": ":".join(filter(None, path)),
        "NVSHARE_SIM_DIR": str(folder / "simulator"),
        "NVSHARE_SIM_GPUS": "1",
        "NVSHARE_SIM_MEMORY": str(SIMULATED),
        "NVSHARE_SIM_COPY_RATE": str(SIMULATED_COPIES),
        # About the same part of the card as a real context.
        "NVSHARE_SIM_CONTEXT": str(MIB),
        # New memory is cleared, as on a real card.
        "NVSHARE_SIM_ZERO": "1"})
