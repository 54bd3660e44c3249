# SPDX-License-Identifier: Apache-2.0
"""Containers of Podman on simulated cards, with nothing but --device nvshare.com/gpu."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import no_bus
from nvshared.control import Daemon as Control
from nvshared.control.snapshot import ClientSnapshot
from tests.integration.conftest import Site
from tests.integration.podman import WORK, Machine, root_file_system, why_not

pytestmark = pytest.mark.skipif(bool(why_not() or no_bus()), reason=why_not() or no_bus())

WORKLOAD = f"{WORK}/nvshare-workload"
LARGE = (WORKLOAD, "--memory", "140MiB", "--chunk", "20MiB", "--kernel-us", "5000", "--steps", "6")
SMALL = (WORKLOAD, "--memory", "8MiB", "--chunk", "8MiB", "--until-told")


@pytest.fixture
def machine(small_site: Site, tmp_path: Path) -> Iterator[Machine]:
    made = Machine(small_site, tmp_path)
    made.nvidias(card0="first", all="every", **{"GPU-0a": "first", "0:1": "a MIG device"})
    yield made
    made.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return root_file_system(tmp_path / "image")


def clients(control: Control) -> list[ClientSnapshot]:
    return list(control.snapshot().clients)


def test_two_containers_that_do_not_fit_together_take_turns_and_compute_right(
    machine: Machine, root: Path
) -> None:
    machine.site.start("--tq", "200ms", "--trace", str(machine.site.folder / "trace"))
    said = machine.nvsharectl("containers", "refresh")
    assert "--device nvshare.com/gpu=all\n" in said
    assert "0:1" not in said
    started = [machine.podman(root=root, command=(*LARGE, "--seed", seed)) for seed in (1, 2)]
    for one in started:
        out, _ = one.communicate()
        assert one.returncode == 0, out
        assert "right: all 7 chunks" in out
    assert len({line["client"] for line in machine.site.lines(report="turn-ended")}) == 2
