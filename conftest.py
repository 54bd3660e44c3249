# SPDX-License-Identifier: Apache-2.0
"""Skips the levels of tests (folders under tests/) that this machine does not allow, with reasons.

With --require=LEVEL such a level fails. Tests marked `long` need -m long or -m "".
"""

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from tests.kubernetes import programs

# Hypothesis tries the same examples in every run, so that a test fails on all machines or on none.
# No deadline, as a busy machine is slow. HYPOTHESIS_PROFILE=explore tries other examples.
slow = [HealthCheck.too_slow]           # a busy machine is no fault of a test
settings.register_profile("repeat", derandomize=True, deadline=None, suppress_health_check=slow)
settings.register_profile("explore", deadline=None, suppress_health_check=slow)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeat"))

# Hypothesis would try numbers found in imported sources, which differ between test processes.
vars(providers)["_get_local_constants"] = lambda: providers._local_constants

# Tests that share a card or compiled programs: one process runs all tests of each entry.
TOGETHER = (
    "tests/gpu/", "tests/unit/test_packaging.py", "libhook/tests/blocks/",
    "libhook/tests/activity/", "libhook/tests/commit/", "libhook/tests/hook/",
    "libhook/tests/pace/", "libhook/tests/inflight/",
    "libhook/tests/simulator/test_simulator_conformance.py",
)

# The longest tests start first: at the end of a run they would keep one processor busy alone.
FIRST = (
    "libhook/tests/simulator/test_simulator_conformance.py",
    "tests/unit/test_style.py::test_mypy_finds_no_type_errors",
    "tests/integration/test_demo.py::test_demo_has_right_results_and_leaves_no_process_or_file",
    "tests/integration/test_random_calls.py", "tests/integration/test_undrainable.py",
)


def no_bus() -> str:
    """Why the bus level cannot run, or an empty string."""
    return "" if shutil.which("dbus-daemon") else "there is no dbus-daemon on this machine"


def no_real_systemd() -> str:
    """Why the system level cannot run, or an empty string."""
    if os.geteuid() != 0:
        return "a container with its own systemd needs root"
    missing = [name for name in ("debootstrap", "systemd-nspawn") if not shutil.which(name)]
    return f"there is no {' and no '.join(missing)} on this machine" if missing else ""


def no_kubernetes() -> str:
    """Why the kubernetes level cannot run, or an empty string."""
    return no_real_systemd() or programs.missing()


def no_gpu() -> str:
    """Why the gpu level cannot run, or an empty string. Asks the driver in a process of its own."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "there is no NVIDIA driver on this machine (libcuda.so.1 does not load)"
    start = "import ctypes, sys; sys.exit(ctypes.CDLL('libcuda.so.1').cuInit(0) != 0)"
    if subprocess.run([sys.executable, "-c", start], check=False).returncode != 0:
        return "the NVIDIA driver finds no GPU that works"
    return ""


OBSTACLES: dict[str, Callable[[], str]] = {
    "bus": no_bus,
    "system": no_real_systemd,
    "kubernetes": no_kubernetes,
    "gpu": no_gpu,
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """--require LEVEL."""
    parser.addoption("--require", metavar="LEVEL", help="fail if this level cannot run here")


def pytest_configure(config: pytest.Config) -> None:
    """Finds out what this machine lacks, and stops at once if just that was asked for."""
    left_out = {level: why for level, find in OBSTACLES.items() if (why := find())}
    config.stash[LEFT_OUT] = left_out
    required = config.getoption("--require")
    for level in {"system", "kubernetes"} - {required}:
        left_out.setdefault(level, f"it takes many minutes; make test-{level} runs it")
    if required in left_out:
        raise pytest.UsageError(f"the level '{required}' cannot run: {left_out[required]}")


LEVELS = Path(__file__).parent / "tests"
LEFT_OUT = pytest.StashKey[dict[str, str]]()
LONG = pytest.StashKey[int]()           # how many tests were left out because they are long


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Gives all tests of an entry of TOGETHER to one process, and does so first."""
    from xdist.scheduler import LoadScopeScheduling

    scheduler = LoadScopeScheduling(config, log)
    scheduler._split_scope = lambda test: next(filter(test.startswith, TOGETHER), test)
    return scheduler


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves out the levels that cannot run: each process takes a second to import these tests."""
    return collection_path in {LEVELS / level for level in config.stash[LEFT_OUT]} or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begins with the longest, and skips the named tests of the levels that cannot run."""
    items.sort(key=lambda item: not item.nodeid.startswith(FIRST))
    left_out = {f"tests/{level}/": why for level, why in config.stash[LEFT_OUT].items()}
    for item in items:
        for folder, why in left_out.items():
            if item.nodeid.startswith(folder):
                item.add_marker(pytest.mark.skip(reason=why))


def pytest_deselected(items: list[pytest.Item]) -> None:
    """Counts the long tests left out. Each test process of pytest-xdist finds the same number."""
    if items:
        config = items[0].config
        config.stash[LONG] = sum(item.get_closest_marker("long") is not None for item in items)
        getattr(config, "workeroutput", {})["long"] = config.stash[LONG]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Takes the number of long tests that a test process of pytest-xdist has left out."""
    node.config.stash[LONG] = getattr(node, "workeroutput", {}).get("long", 0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter,
                            config: pytest.Config) -> None:
    """Prints which levels and how many long tests were left out, also for a level without tests."""
    cannot_run = config.stash[LEFT_OUT]
    left_out = {} if config.getoption("--require") else {**cannot_run}
    if number := config.stash.get(LONG, 0):
        left_out["long"] = f"{number} that take many minutes; make test-long runs them"
    if left_out:
        terminalreporter.section("levels left out")
        for level, why in left_out.items():
            terminalreporter.write_line(f"{level}: {why}")
