# SPDX-License-Identifier: Apache-2.0
"""No file of the simulator uses a room above its own, and no two files use each other."""

from libhook.tests.rooms import Rooms
from libhook.tests.simulator.conftest import LIBHOOK, SIMULATOR

ROOMS = Rooms(
    ["nvml", "table", "context", "stream", "graph", "module", "memory", "engine", "space",
     "driver", "shared"],
    sources=LIBHOOK / "simulator",
    objects=SIMULATOR)


def test_source_file_is_in_a_listed_layer() -> None:
    assert not ROOMS.homeless()


def test_simulator_source_file_includes_and_calls_no_higher_layer() -> None:
    assert not ROOMS.upward()


def test_source_files_have_no_dependency_cycle() -> None:
    assert not ROOMS.circles()


def test_simulated_nvml_depends_only_on_its_own_and_shared_source_files() -> None:
    used = {name for user, used in ROOMS.uses.items() if user.startswith("nvml/") for name in used}
    assert {name.split("/")[0] for name in used} == {"nvml", "shared"}
