# SPDX-License-Identifier: Apache-2.0
"""The simulated driver answers as the card did whose answers conformance.txt records."""

from pathlib import Path

import pytest

from libhook.tests.simulator import conformance
from libhook.tests.simulator.conftest import SIMULATOR

RUNS = [run for run in conformance.read_sections() if not run.endswith(conformance.HANDLER)]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return conformance.build(
        tmp_path_factory.mktemp("conformance"), f"-L{SIMULATOR}", "-l:libcuda.so.1")


@pytest.mark.parametrize("run", RUNS)
def test_simulated_driver_answers_as_the_recorded_card(
    program: Path, environment: dict[str, str], run: str,
) -> None:
    assert conformance.ask(program, run, environment) == conformance.questions(run)
