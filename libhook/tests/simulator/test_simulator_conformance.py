# SPDX-License-Identifier: Apache-2.0
"""The simulated driver answers as conformance.txt, recorded from a card, and flight.txt say."""

import subprocess
from pathlib import Path

import pytest

from libhook.tests.simulator.conformance import HANDLER, Runs, ask, build, questions, read_sections
from libhook.tests.simulator.conftest import LIBHOOK, SIMULATOR

RECORDED, FLIGHT = read_sections(), read_sections("flight")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(RECORDED, tmp_path_factory.mktemp("conformance"), SIMULATOR)


@pytest.fixture(scope="module", params=[
    "", *(pytest.param(one, marks=pytest.mark.long) for one in ("thread", "address")),
])
def flight(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
           ) -> tuple[Path, Path]:
    """The program of flight.txt, and the folder of its driver, both with a sanitizer or none."""
    if not (sanitizer := request.param):
        return built(FLIGHT, tmp_path_factory.mktemp("flight"), SIMULATOR), SIMULATOR
    subprocess.run(["make", "-C", LIBHOOK, "-s", "simulator", f"SANITIZE={sanitizer}"], check=True)
    driver = LIBHOOK / f"build-{sanitizer}" / "simulator"
    folder = tmp_path_factory.mktemp(sanitizer)
    return built(FLIGHT, folder, driver, f"-fsanitize={sanitizer}"), driver


def built(runs: Runs, folder: Path, driver: Path, *flags: str) -> Path:
    return build(runs, folder, f"-L{driver}", "-l:libcuda.so.1", *flags)


@pytest.mark.parametrize("run", [run for run in RECORDED if not run.endswith(HANDLER)])
def test_simulated_driver_returns_the_results_recorded_from_a_card(
    recorded: Path, environment: dict[str, str], run: str,
) -> None:
    assert ask(recorded, RECORDED, run, environment) == questions(RECORDED, run)


@pytest.mark.parametrize("run", FLIGHT)
def test_simulated_driver_with_work_in_flight_returns_the_results_listed_in_the_test(
    flight: tuple[Path, Path], environment: dict[str, str], run: str,
) -> None:
    program, driver = flight
    variables = environment | {"LD_LIBRARY_PATH": str(driver)}
    assert ask(program, FLIGHT, run, variables) == questions(FLIGHT, run)
