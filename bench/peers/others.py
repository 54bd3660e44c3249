# SPDX-License-Identifier: Apache-2.0
"""Runs programs under other projects that are installed: nvshare, HAMi-core, MPS.

NVSHARE_PEERS names a folder with the built files of these projects:

    nvshare/libnvshare.so, nvshare/nvshare-scheduler
    hami/libvgpu.so

MPS is part of the driver, and is used if nvidia-cuda-mps-control is in PATH. nvshare uses
/var/run/nvshare, so nvshared must not be installed; it needs root, and a file libcuda.so.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from bench.handover.card import Card
from nvshared.errors import NvshareError

VARIABLE = "NVSHARE_PEERS"
NVSHARE_SOCKET = Path("/var/run/nvshare/scheduler.sock")
SOON = 10.0                             # seconds for a server to be ready

# A context manager that runs a project's server and returns the environment of programs under it.
# The number is a compute limit in percent, or None.
Way = Callable[[Card, int | None], AbstractContextManager[Mapping[str, str]]]


def there() -> dict[str, Way]:
    folder = os.environ.get(VARIABLE)
    found: dict[str, Way] = {}
    if folder and Path(folder, "nvshare", "libnvshare.so").is_file():
        found["nvshare"] = lambda card, limit: _nvshare(card, Path(folder, "nvshare"))
    if folder and Path(folder, "hami", "libvgpu.so").is_file():
        found["HAMi-core"] = lambda card, limit: _hami(card, Path(folder, "hami"), limit)
    if shutil.which("nvidia-cuda-mps-control"):
        found["MPS"] = _mps
    return found


@contextmanager
def _nvshare(card: Card, folder: Path) -> Iterator[Mapping[str, str]]:
    NVSHARE_SOCKET.parent.mkdir(parents=True, exist_ok=True)
    NVSHARE_SOCKET.unlink(missing_ok=True)
    with card.log.open("ab") as log, subprocess.Popen([folder / "nvshare-scheduler"], stdout=log,
                                                      stderr=log) as scheduler:
        try:
            _await(NVSHARE_SOCKET.exists, "nvshare-scheduler")
            yield {**card.plain, "LD_PRELOAD": str(folder / "libnvshare.so")}
        finally:
            scheduler.kill()
            NVSHARE_SOCKET.unlink(missing_ok=True)


@contextmanager
def _hami(card: Card, folder: Path, limit: int | None) -> Iterator[Mapping[str, str]]:
    """Each program may allocate all memory; `limit`: its percentage of the multiprocessors."""
    terms = {} if limit is None else {
        "CUDA_DEVICE_SM_LIMIT": str(limit), "GPU_CORE_UTILIZATION_POLICY": "force"}
    yield {
        **card.plain, **terms, "LD_PRELOAD": str(folder / "libvgpu.so"),
        "CUDA_DEVICE_MEMORY_LIMIT": f"{card.total >> 20}m", "LIBCUDA_LOG_LEVEL": "0",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(card.log.with_name("hami.cache"))}


@contextmanager
def _mps(card: Card, limit: int | None) -> Iterator[Mapping[str, str]]:
    folder = card.log.with_name("mps")
    folder.mkdir(exist_ok=True)
    where = {"CUDA_MPS_PIPE_DIRECTORY": str(folder), "CUDA_MPS_LOG_DIRECTORY": str(folder)}
    control = ["nvidia-cuda-mps-control"]
    started = subprocess.run(
        [*control, "-d"], env={**os.environ, **where}, capture_output=True, text=True, check=False)
    if started.returncode != 0:
        raise NvshareError("MPS does not start here", started.stderr.strip() or "it says nothing")
    try:
        _await((folder / "control").exists, "MPS")
        share = {} if limit is None else {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(limit)}
        yield {**card.plain, **where, **share}
    finally:
        subprocess.run(control, input="quit\n", text=True, env={**os.environ, **where}, check=False)


def _await(ready: Callable[[], bool], name: str) -> None:
    limit = time.monotonic() + SOON
    while not ready():
        if time.monotonic() > limit:
            raise NvshareError(f"{name} did not start within {SOON:.0f} s", "the log may say why")
        time.sleep(0.02)
