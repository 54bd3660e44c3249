# SPDX-License-Identifier: Apache-2.0
"""Runs a unittest suite of an installed package, test by test."""

import importlib
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.suites.absent import stand_in
from tests.gpu.suites.outcome import Outcome, chosen, first_line


def prepare_numba() -> None:
    """Makes the names available that numba-cuda's tests import."""
    import numpy

    stand_in("filecheck", "matcher", "options", "parser", "finput")
    # Numba asks for this name, which NumPy 2.5 no longer has.
    if not hasattr(numpy, "row_stack"):
        numpy.row_stack = numpy.vstack


def cases(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    """All tests of a suite and of the suites in it."""
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from cases(item)
        else:
            yield item


def found(package: str) -> dict[str, unittest.TestCase]:
    """The tests of a package by name; a module without a successful import is a failing test."""
    loader = unittest.TestLoader()
    tests: dict[str, unittest.TestCase] = {}
    for folder in importlib.import_module(package).__path__:
        for file in sorted(Path(folder).rglob("test_*.py")):
            module = ".".join((package, *file.relative_to(folder).with_suffix("").parts))
            try:
                suite = loader.loadTestsFromName(module)
            except (unittest.SkipTest, pytest.skip.Exception) as why:
                tests[module] = Skipped(str(why))
                continue
            tests.update((case.id(), case) for case in cases(suite))
    return tests


class Skipped(unittest.TestCase):
    """A skipped test in the place of a module that is skipped as a whole."""

    def __init__(self, why: str) -> None:
        super().__init__()
        self._why = why

    def runTest(self) -> None:  # noqa: N802
        """Skips."""
        self.skipTest(self._why)


class _Result(unittest.TestResult):
    """The outcome of one test: its first failure, error or skip."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.outcome = Outcome(name, "passed")

    def _went(self, kind: Any, reason: str) -> None:
        if self.outcome.outcome == "passed":
            self.outcome = Outcome(self.outcome.name, kind, first_line(reason))

    def addError(self, test: Any, err: Any) -> None:  # noqa: N802
        self._went("failed", f"{err[0].__name__}: {err[1]}")

    def addFailure(self, test: Any, err: Any) -> None:  # noqa: N802
        self._went("failed", f"{err[0].__name__}: {err[1]}")

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:  # noqa: N802
        if err is not None:
            self._went("failed", f"{err[0].__name__}: {err[1]}")

    def addSkip(self, test: Any, reason: str) -> None:  # noqa: N802
        self._went("skipped", reason)

    def addUnexpectedSuccess(self, test: Any) -> None:  # noqa: N802
        self._went("failed", "it was not expected to pass")


def run(package: str, count: int) -> Iterator[Outcome]:
    """The outcomes of `count` tests of a package."""
    tests = found(package)
    for name in chosen(tests, count):
        result = _Result(name)
        # Each test runs alone, so setUpClass() runs once for each test, not once for its class.
        unittest.TestSuite([tests[name]]).run(result)
        yield result.outcome
