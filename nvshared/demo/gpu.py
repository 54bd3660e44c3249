# SPDX-License-Identifier: Apache-2.0
"""The GPU of the demonstration: a real one if one works, else a simulated one."""

import json
import os
from pathlib import Path
from typing import NamedTuple

from nvshared import library
from nvshared.demo.workload import OUT_OF_MEMORY, Event, running
from nvshared.errors import NvshareError
from nvshared.quantity import rounded
from nvshared.units import GIB, KIB, MIB

SIMULATED_MEMORY = 256 * MIB
SIMULATED_COPY_RATE = 4 * GIB           # bytes a second each way
MOST = 8 * GIB                          # bytes used of a real card; more would only take longer
LEAST = 256 * MIB                       # bytes; below, a context alone would fill the card
HOST_SHARE = 0.5                        # part of the free host memory that swapped memory may use
NO_DRIVER = 5                           # exit status of nvshare-workload without a driver


class DemoGPU(NamedTuple):
    """A GPU, and the environment for programs that use it."""

    name: str
    total: int                          # bytes
    capacity: int                       # bytes of `total` that the programs share
    simulated: bool
    why: str                            # why it is simulated, or how much of it is used
    ballast: int                        # free bytes to occupy so that `capacity` bytes stay free
    environment: dict[str, str]         # of a program that uses the GPU without nvshared

    def sharing(self) -> dict[str, str]:
        """The environment of a program that shares the GPU; keeps other preloaded libraries."""
        return library.preloaded(self.environment)


async def find(folder: Path, simulate: bool) -> DemoGPU:
    """The real GPU, or a simulated one whose state lies in `folder`.

    `simulate`: do not even look for a real one. Raises NvshareError if a real
    one works but has too little memory left.
    """
    # A socket without a daemon: programs must not find the machine's own nvshared.
    environment = {**os.environ, "NVSHARE_SOCKET": str(folder / "nvshare.sock")}
    environment[library.PRELOAD] = ":".join(library.preloads(environment))
    if simulate:
        return _simulated(environment, folder, "as requested")
    status, answer, words = await _try(environment)
    if status == OUT_OF_MEMORY:
        raise NvshareError(
            "the GPU has no memory left for a demonstration", "try again with --simulate"
        )
    if status != 0:
        return _simulated(
            environment, folder, "this machine has no NVIDIA driver" if status == NO_DRIVER else
            f"the GPU of this machine does not work: {words}")
    return _real(environment, str(answer["gpu"]), int(answer["total"]), int(answer["free"]))


def _simulated(environment: dict[str, str], folder: Path, why: str) -> DemoGPU:
    path = [str(library.simulator()), environment.get("LD_LIBRARY_PATH", "")]
    return DemoGPU("a simulated GPU", SIMULATED_MEMORY, SIMULATED_MEMORY, True, why, 0, {
        **environment,
        "LD_LIBRARY_PATH": ":".join(filter(None, path)),
        "NVSHARE_SIM_DIR": str(folder / "simulator"),
        "NVSHARE_SIM_GPUS": "1",
        "NVSHARE_SIM_MEMORY": str(SIMULATED_MEMORY),
        "NVSHARE_SIM_COPY_RATE": str(SIMULATED_COPY_RATE),
    })


def _real(environment: dict[str, str], name: str, total: int, free: int) -> DemoGPU:
    capacity = min(free, MOST, int(HOST_SHARE * _free_host_memory())) // MIB * MIB
    if capacity < LEAST:
        raise NvshareError(
            f"{name} and this machine have only {capacity // MIB} MiB left for a demonstration",
            "try again with --simulate",
        )
    why = f"{rounded(capacity)} of its {rounded(total)} are "
    why += "free" if capacity > free - GIB else "used, so that it is over soon"
    return DemoGPU(name, total, capacity, False, why, free - capacity, environment)


def _free_host_memory() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * KIB
    raise NvshareError("/proc/meminfo does not say how much memory is available")


async def _try(environment: dict[str, str]) -> tuple[int, Event, str]:
    """Runs nvshare-workload: its exit status, "allocated" event, and last line on stderr."""
    command = [str(library.workload()), "--json", "--memory", "1MiB", "--steps", "1"]
    async with running(command, environment) as process:
        output, errors = await process.communicate()
        words = errors.decode(errors="replace").strip().splitlines() or [""]
        answer: Event = json.loads(output.splitlines()[0]) if output else {}
        return await process.wait(), answer, words[-1]
