# SPDX-License-Identifier: Apache-2.0
"""nvshared: several programs share one NVIDIA GPU, each as if it were alone."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("nvshared")
except PackageNotFoundError:            # run from a checkout that was never installed
    __version__ = "0+uninstalled"
