# SPDX-License-Identifier: Apache-2.0
"""The installed service on simulated GPUs, shared by users and containers, and away again."""

import pytest

from tests.system import card
from tests.system.card import Launch
from tests.system.conftest import install
from tests.system.container import Container
from tests.system.packages import Packages

ENVIRONMENT = {
    "LD_LIBRARY_PATH": f"{card.HOME}/simulator", "NVSHARE_SIM_DIR": "/run/nvshare-trial",
}
APART = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
DROP_INS = "/run/systemd/system/nvshared.service.d"


@pytest.fixture(scope="module")
def machine(bare: Container, built: Packages) -> Container:
    """One without a GPU, on which a trial is on."""
    install(bare, built)
    said = bare.output("nvsharectl", "trial", "start", "--memory", "256MiB")
    assert "The service shares 1 simulated GPU of 256MiB now." in said
    for name, value in ENVIRONMENT.items():
        assert f"{name}={value}" in said
    return bare


def test_users_and_containers_share_it(machine: Container, launch: Launch) -> None:
    machine.run("nvsharectl", "set-tq", "1")
    programs = [
        launch(machine, user, memory=180, seed=seed, before=before, environment=ENVIRONMENT)
        for seed, (user, before) in enumerate(
            (("alice", ()), ("bob", ()), ("", APART), ("", APART)), 1)
    ]
    machine.until(lambda: len(card.clients(machine)) == 4, "all are there")
    machine.until(lambda: card.status(machine)["gpus"][0]["turns"] > 6, "they take turns")
    refused = machine.run("nvsharectl", "trial", "stop", check=False)
    assert refused.returncode == 1
    assert "4 programs would lose their GPU" in refused.stderr
    card.finish(programs)
    machine.until(lambda: not card.clients(machine), "all are gone")


def test_it_leaves_nothing_behind(machine: Container) -> None:
    machine.run("nvsharectl", "trial", "stop")
    for path in (ENVIRONMENT["NVSHARE_SIM_DIR"], DROP_INS):
        assert machine.run("test", "-e", path, check=False).returncode == 1
    state = machine.run("systemctl", "is-active", "nvshared.service", check=False).stdout.strip()
    assert state == "inactive"
