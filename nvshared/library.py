# SPDX-License-Identifier: Apache-2.0
"""Finds the compiled files in `nvshared/lib/` or, in a checkout, in `libhook/build/`."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from nvshared.errors import InvalidArgs, NvshareError

HOOK = "libnvshare.so"
PRELOAD = "LD_PRELOAD"
_PACKAGE = Path(__file__).resolve().parent
_INSTALLED = _PACKAGE / "lib"
_CHECKOUT = _PACKAGE.parent / "libhook" / "build"


def _find(name: str) -> Path:
    """The path of a compiled file. Raises NvshareError if it is not there."""
    folder = _INSTALLED if _INSTALLED.is_dir() else _CHECKOUT
    path = folder / name
    if not path.is_file():
        raise NvshareError(
            f"{path} is missing",
            "install nvshared again" if folder == _INSTALLED else "build it with: make build")
    return path


hook = partial(_find, HOOK)
workload = partial(_find, "nvshare-workload")           # run by the demonstration


def preloads(environment: Mapping[str, str]) -> list[str]:
    """The entries of LD_PRELOAD, without libnvshare.so of any directory."""
    entries = environment.get(PRELOAD, "").replace(":", " ").split()
    return [entry for entry in entries if Path(entry).name != HOOK]


def preloaded(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with libnvshare.so last in LD_PRELOAD: sanitizers must come first.

    Raises NvshareError if it is missing, InvalidArgs for a path that LD_PRELOAD cannot contain."""
    path = str(hook())
    if " " in path or ":" in path:
        raise InvalidArgs(f"{path!r} cannot be preloaded, its path has a blank or a colon",
                          "install nvshared elsewhere")
    return {**environment, PRELOAD: ":".join([*preloads(environment), path])}


def simulator() -> Path:
    """Folder with the simulated libcuda.so.1 and libnvidia-ml.so.1. Raises NvshareError."""
    return _find("simulator/libcuda.so.1").parent


def program() -> Path:
    """Folder of the modules that run in users' Python programs, for PYTHONPATH."""
    return _PACKAGE / "program"
