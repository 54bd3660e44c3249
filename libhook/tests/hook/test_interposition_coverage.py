# SPDX-License-Identifier: Apache-2.0
"""COVERAGE.md is up to date, and lists every function that a driver exports."""

import os
from pathlib import Path

import pytest

from libhook import coverage
from libhook.tests.hook import recorded_driver as recorded
from libhook.tests.hook.wrappers import Wrappers

CUDA = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
SIMULATOR = Path(__file__).parents[2] / "build" / "simulator" / "libcuda.so.1"


def installed_drivers() -> list[Path]:
    """Drivers of this machine, and the CUDA toolkit's stub libraries of the driver."""
    folders = [*Path("/usr/lib").glob("*-linux-gnu"), Path("/usr/lib64"), Path("/usr/lib/wsl/lib")]
    found = [folder / "libcuda.so.1" for folder in folders]
    found += [CUDA / "lib64" / "stubs" / "libcuda.so", *CUDA.glob("targets/*/lib/stubs/libcuda.so")]
    return [path for path in found if path.exists()]


def test_coverage_table_is_up_to_date() -> None:
    assert coverage.TABLE.read_text() == coverage.table(), (
        f"{coverage.TABLE.name} is out of date: make -C libhook coverage"
    )


def test_coverage_table_names_every_hooked_function_once() -> None:
    named = [hook for section in coverage.sections() for hook in section.hooks]
    assert sorted(named) == sorted(recorded.hooks())
    for section in coverage.sections():
        for hook in section.hooks:
            file = coverage.file_of(section, hook)
            assert hook in coverage.bodies(file), f"no wrapper {hook} in {section.file}"


def test_gated_wrapper_enters_the_gate_calls_the_driver_once_and_leaves_the_gate(
    wrappers: Wrappers
) -> None:
    gated = [
        hook
        for section in coverage.sections()
        for hook in section.hooks
        if coverage.only_gated(coverage.does(section, hook))
    ]
    assert len(gated) > 170
    wrappers(f"""
for name in {gated!r}:
    before = entered(), left(), calls(name)
    call(name, *[0] * 12)
    assert (entered(), left(), calls(name)) == tuple(n + 1 for n in before), name
""")


@pytest.mark.parametrize("driver", [SIMULATOR, *installed_drivers()], ids=str)
def test_every_function_that_a_driver_exports_has_a_hook_or_a_listed_reason(driver: Path) -> None:
    """A driver exports an unknown function: hook it, write a reason into unhooked.def, or record
    the driver's answers again in entry_points.txt."""
    assert len(coverage.exported(driver)) > 300
    assert coverage.unknown(coverage.exported(driver)) == []
