# SPDX-License-Identifier: Apache-2.0
"""nvshared: several programs share one NVIDIA GPU, each as if it were alone."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    __version__: str
else:

    def __getattr__(name: str) -> str:
        """`__version__`, looked up when somebody asks: a fifth of the time that a command takes."""
        if name != "__version__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("nvshared")
        except PackageNotFoundError:    # run from a checkout that was never installed
            return "0+uninstalled"
