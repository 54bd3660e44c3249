# SPDX-License-Identifier: Apache-2.0
"""Replacements for packages that a framework's tests import and that are not installed."""

import importlib.util
import sys
import types
import unittest


class _Absent(types.ModuleType):
    """Replaces a package that the suite's support modules import and that few tests use.

    The few tests fail in each run; without a replacement no test could be imported.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []              # marks a package: imports search it for submodules

    def __getattr__(self, name: str) -> type[unittest.TestCase] | None:
        if name.startswith("__"):
            raise AttributeError(name)
        return unittest.TestCase if name == "TestCase" else None


def stand_in(package: str, *modules: str) -> None:
    """Replaces the package and these modules of the package, if it is not installed."""
    if importlib.util.find_spec(package) is None:
        for name in (package, *(f"{package}.{module}" for module in modules)):
            sys.modules[name] = _Absent(name)
