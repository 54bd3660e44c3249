# SPDX-License-Identifier: Apache-2.0
"""The measured GPU: the machine's own, or a simulated GPU, on which times have no meaning."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.harness import Sharing, sharing
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
    total: int                          # bytes of its memory
    simulated: bool
    budget: int                         # bytes of host memory for the daemon
    seconds: float                      # seconds for which programs compute
    block: int                          # bytes of a block of the library
    log: Path                           # log of the daemons
    environment: Mapping[str, str]      # environment of every process that uses the card

    @property
    def plain(self) -> dict[str, str]:
        """The environment of programs without the library."""
        return {**self.environment, **unshared()}

    @contextmanager
    def sharing(self, *options: str, **variables: str) -> Iterator[Sharing]:
        """Runs a daemon for the card while the `with` block runs. `variables`: added to the
        environment."""
        with self.log.open("ab") as log, sharing(
                "--swap-budget", str(self.budget), *options,
                environment={**self.environment, **variables}, log=log) as daemon:
            yield daemon

    def share(self, share: float) -> int:
        """The bytes of this share (0 to 1) of its memory, rounded to whole blocks."""
        return max(1, round(share * self.total / self.block)) * self.block

    def quantum(self, seconds: float) -> str:
        """A quantum for --tq; shorter on a simulated card, where the run is shorter, too."""
        return f"{round(1000 * (seconds / 5 if self.simulated else seconds))}ms"


def unshared() -> dict[str, str]:
    ours = library.hook().name
    preloaded = os.environ.get("LD_PRELOAD", "").replace(" ", ":").split(":")
    return {
        "LD_PRELOAD": ":".join(one for one in preloaded if Path(one).name != ours),
        # No daemon listens at this path: the library may be preloaded by /etc/ld.so.preload.
        "NVSHARE_SOCKET": "/nonexistent/nvshare.sock"}


def locks_too_much(size: int, what: str) -> bool:
    """Whether the host lacks memory for programs that page-lock `size` bytes of it. Says then that
    `what` is left out: the kernel would end such programs."""
    free = host.free()
    if size <= HOST_SHARE * free:
        return False
    print(f"{what} is left out: it page-locks {size >> 30} GiB of host memory, and {free >> 30} GiB"
          " are free", file=sys.stderr)
    return True


def find(folder: Path, simulate: bool, seconds: float | None, budget: int | None) -> Card:
    """Returns the machine's GPU, or a simulated GPU with its state in `folder`.

    `simulate`: ignore a real GPU. `seconds`, `budget` None: defaults for the card.
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
        # A context takes about the same part of the card as on a real card.
        "NVSHARE_SIM_CONTEXT": str(MIB),
        # New memory is cleared, as on a real card.
        "NVSHARE_SIM_ZERO": "1"})
