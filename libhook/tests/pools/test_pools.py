# SPDX-License-Identifier: Apache-2.0
"""Stream-ordered allocation in thousands of streams, on pools_double.c."""

from ctypes import c_uint64
from pathlib import Path

import pytest

from libhook.tests.doubles import Double, counting_double

FEW, MANY = 2_000, 8_000               # streams
MORE = 1.2                              # maximum of (steps for a stream of MANY) / (of FEW)


@pytest.fixture(scope="module", name="built")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return counting_double("pools", ["pool/pool.c"], tmp_path_factory.mktemp("pools"))


def test_steps_for_each_allocation_do_not_grow_with_the_streams_that_have_unfinished_frees(
    built: Path, tmp_path: Path
) -> None:
    taken = []
    for count in (FEW, MANY):
        program = Double(built, tmp_path)
        program.allocate_and_free(1, count // 2)
        before = program.variable("steps", c_uint64).value
        program.allocate_and_free(count // 2 + 1, count // 2)
        taken.append((program.variable("steps", c_uint64).value - before) / (count // 2))
        assert program.variable("made").value == count
    assert taken[1] <= MORE * taken[0], taken


def test_frees_behind_many_busy_streams_are_found_after_some_allocations(
    built: Path, tmp_path: Path
) -> None:
    program = Double(built, tmp_path)
    program.allocate_and_free(1000, FEW)            # these streams remain busy
    program.variable("reached").value = 1000
    program.allocate_and_free(1, 500)
    made = program.variable("made").value
    program.allocate_and_free(1, 500)
    assert program.variable("made").value == made
