# SPDX-License-Identifier: Apache-2.0
"""nvshared: several programs share one NVIDIA GPU, each as if it were alone."""

__version__ = "1.0.0"                   # read by pyproject.toml and the packages
