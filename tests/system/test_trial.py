# SPDX-License-Identifier: Apache-2.0
"""Trials of the installed service on simulated GPUs, by docs/trial.md, and their removal."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from nvshared.units import GIB, MIB
from tests import pages
from tests.system import card
from tests.system.card import Launch
from tests.system.conftest import install
from tests.system.container import Container
from tests.system.packages import Packages

FOLDER = "/run/nvshare-trial"
ENVIRONMENT = {"LD_LIBRARY_PATH": f"{card.HOME}/simulator", "NVSHARE_SIM_DIR": FOLDER}
APART = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
UNITS = "/run/systemd/system"
DROP_INS = [f"{UNITS}/nvshared.service.d", f"{UNITS}/nvshare-checkpoint@.service.d"]
START = pages.block("docs/trial.md", "nvsharectl trial start")
# As printed, but that the programs run until they are told: a busy machine may need longer than the
# page's minute for a few turns.
PROGRAM = pages.block("docs/trial.md", "export LD_LIBRARY_PATH").replace(
    "--seconds 60", "--until-told")
LOOK = pages.block("docs/trial.md", "nvsharectl  ")
STOP = pages.block("docs/trial.md", "nvsharectl trial stop")


@pytest.fixture(scope="module")
def machine(bare: Container, built: Packages) -> Container:
    install(bare, built)
    return bare


@contextmanager
def trial(machine: Container, start: str) -> Iterator[None]:
    """Runs a trial, started by the commands `start`; its end must remove all of its files."""
    machine.run("sh", "-ec", start)
    try:
        yield
    finally:
        machine.until(lambda: not card.clients(machine), "all programs have ended")
        machine.run("sh", "-ec", STOP)
    said = machine.output("journalctl", "--no-pager", "--unit=nvshared.service")
    assert "is not written" not in said
    for path in (FOLDER, "/run/cdi/nvshare-trial.json", *DROP_INS):
        assert machine.run("test", "-e", path, check=False).returncode == 1
    assert machine.output("find", "/var/lib/nvshare", "-type", "f") == ""
    state = machine.run("systemctl", "is-active", "nvshared.service", check=False).stdout.strip()
    assert state == "inactive"


def total(machine: Container) -> list[int]:
    """Returns the memory of each GPU in bytes, by `nvsharectl status`."""
    return [gpu["memory_total"] for gpu in card.status(machine)["gpus"]]


def test_trial_page_commands_run_two_programs_in_turns(machine: Container) -> None:
    with trial(machine, START):
        programs = [machine.start("sh", "-ec", PROGRAM, user=user, stdin=subprocess.PIPE)
                    for user in ("alice", "bob")]
        machine.until(lambda: len(card.clients(machine)) == 2, "both programs share the GPU")
        machine.until(lambda: card.status(machine)["gpus"][0]["turns"] > 3, "they take turns")
        machine.run("systemctl", "restart", "nvshared")
        machine.until(lambda: len(card.clients(machine)) == 2, "both programs are connected again")
        assert total(machine) == [2 * GIB]
        machine.until(lambda: "--device nvshare.com/gpu=0" in machine.run(
            "nvsharectl", "containers", check=False).stdout, "containers can have the GPU")
        said = machine.run("sh", "-ec", LOOK, user="alice")
        assert "the service shares simulated GPUs" in said.stdout
        assert "at boot, too" not in said.stdout        # a reboot ends the trial
        machine.run("nvsharectl", "limit", "user:alice", "--memory", "2GiB")
        for program in programs:
            output, _ = program.communicate()
            assert program.returncode == 0, output
        assert "user:alice" in machine.output("nvsharectl", "tenants")


def test_example_in_engines_md_runs_as_printed_in_a_trial(machine: Container) -> None:
    lines = pages.block("docs/engines.md", "cp -r").strip()
    with trial(machine, START):
        said = machine.run("sh", "-ec", f"cd\n{lines} --rounds 2", user="alice",
                           environment=ENVIRONMENT).stdout
        assert said.count("as computed alone") == 2, said


def test_trial_daemon_restarted_without_programs_keeps_number_and_memory_of_the_gpus(
    machine: Container
) -> None:
    with trial(machine, "nvsharectl trial start --gpus 2 --memory 256MiB"):
        # The first program that uses the GPUs asks for other simulated GPUs than the trial.
        stray = ENVIRONMENT | {"NVSHARE_SIM_MEMORY": "64M", "NVSHARE_SIM_GPUS": "1"}
        machine.run("systemctl", "stop", "nvshared.service")
        machine.run(card.WORKLOAD, "--steps", "1", user="alice", environment=stray)
        machine.run("systemctl", "start", "nvshared.service")
        assert total(machine) == [256 * MIB] * 2
        for device in ("--device=0", "--device=1"):
            machine.run(
                "nvsharectl", "run", "--", card.WORKLOAD, device, "--memory=70%", "--steps=2",
                user="alice", environment=ENVIRONMENT)


def test_trial_gpu_is_shared_by_users_and_containers(machine: Container, launch: Launch) -> None:
    with trial(machine, "nvsharectl trial start --memory 256MiB && nvsharectl set-tq 1"):
        programs = [
            launch(machine, user, memory=180, seed=seed, before=before, environment=ENVIRONMENT)
            for seed, (user, before) in enumerate(
                (("alice", ()), ("bob", ()), ("", APART), ("", APART)), 1)
        ]
        machine.until(lambda: len(card.clients(machine)) == 4, "all are there")
        machine.until(lambda: card.status(machine)["gpus"][0]["turns"] > 6, "they take turns")
        refused = machine.run("nvsharectl", "trial", "stop", check=False)
        assert refused.returncode == 1
        assert "a change of the GPUs would stop 4 programs" in refused.stderr
        card.finish(programs)


def test_trial_parks_moves_and_drains_programs_without_root(
    machine: Container, launch: Launch
) -> None:
    with trial(machine, "nvsharectl trial start --memory 256MiB --gpus 2"):
        program = launch(machine, "alice", memory=64, environment=ENVIRONMENT)
        program.await_memory()
        pid = str(card.clients(machine)[0]["pid"])

        def state() -> tuple[int, str]:
            (one,) = card.clients(machine)
            return one["gpu"], one["state"]

        # A suspended program wants no turn, so it stays parked.
        machine.run("nvsharectl", "suspend", "--wait", pid, user="alice")
        machine.run("nvsharectl", "park", pid, user="alice")
        assert state() == (0, "parked")
        helpers = machine.output("sh", "-c", "ps -o user= -p $(pgrep -d, -f '[c]heckpointer[.]py')")
        assert set(helpers.split()) == {"nvshare"}
        machine.run("nvsharectl", "resume", pid, user="alice")
        machine.run("nvsharectl", "move", pid, "--to", "1", user="alice")
        machine.until(lambda: card.clients(machine)[0]["gpu"] == 1, "it is on the other GPU")
        machine.run("nvsharectl", "drain", "--gpu", "1")
        machine.until(lambda: card.clients(machine)[0]["gpu"] == 0, "it is back")
        program.finish()


def test_package_removal_ends_the_trial(machine: Container, built: Packages) -> None:
    machine.run("sh", "-ec", START)
    machine.run("apt-get", "remove", "-y", "nvshared")
    for path in (FOLDER, *(f"{folder}/nvshare-trial.conf" for folder in DROP_INS)):
        assert machine.run("test", "-e", path, check=False).returncode == 1
    install(machine, built)
    with trial(machine, START):
        found = json.loads(machine.output("nvsharectl", "doctor", "--json", user="alice"))
        assert found["healthy"], found
