# SPDX-License-Identifier: Apache-2.0
"""Finds the compiled files: the preloaded library and the programs that belong to it.

They are in `nvshared/lib/` in an installed package, and in `libhook/build/` in a checkout, where
`make build` writes them.
"""

from collections.abc import Mapping
from pathlib import Path

from nvshared.errors import InvalidArgs, NvshareError

HOOK = "libnvshare.so"
PRELOAD = "LD_PRELOAD"
_PACKAGE = Path(__file__).resolve().parent
_INSTALLED = _PACKAGE / "lib"
_CHECKOUT = _PACKAGE.parent / "libhook" / "build"


def hook() -> Path:
    """Path of libnvshare.so, for LD_PRELOAD. Raises NvshareError if it is not there."""
    return _find(HOOK)


def preloads(environment: Mapping[str, str]) -> list[str]:
    """Returns the entries of LD_PRELOAD, without libnvshare.so of any directory."""
    entries = environment.get(PRELOAD, "").replace(":", " ").split()
    return [entry for entry in entries if Path(entry).name != HOOK]


def preloaded(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment with libnvshare.so added to LD_PRELOAD.

    libnvshare.so is the last entry, because sanitizers must be the first. Raises NvshareError if
    libnvshare.so is missing, InvalidArgs for a path that LD_PRELOAD cannot contain.
    """
    path = str(hook())
    if " " in path or ":" in path:
        raise InvalidArgs(
            f"{path!r} cannot be preloaded, its path has a blank or a colon",
            "install nvshared elsewhere")
    return {**environment, PRELOAD: ":".join([*preloads(environment), path])}


def workload() -> Path:
    """Path of the program that the demonstration runs. Raises NvshareError if it is not there."""
    return _find("nvshare-workload")


def checkpoint() -> Path:
    """Path of nvshare-checkpoint. Raises NvshareError if it is not there."""
    return _find("nvshare-checkpoint")


def simulator() -> Path:
    """Folder with the simulated libcuda.so.1 and libnvidia-ml.so.1, for LD_LIBRARY_PATH.

    Raises NvshareError if it is not there.
    """
    return _find("simulator/libcuda.so.1").parent


def program() -> Path:
    """Folder of the modules that run in users' Python programs, for PYTHONPATH."""
    return _PACKAGE / "program"


def _find(name: str) -> Path:
    folder = _INSTALLED if _INSTALLED.is_dir() else _CHECKOUT
    path = folder / name
    if not path.is_file():
        raise NvshareError(
            f"{path} is missing",
            hint="install nvshared again" if folder == _INSTALLED else "build it with: make build")
    return path
