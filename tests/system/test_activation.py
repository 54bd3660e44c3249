# SPDX-License-Identifier: Apache-2.0
"""Whoever needs the daemon has it started: a program by the socket, a person by the bus."""

from collections.abc import Iterator

import pytest

from tests.system import card
from tests.system.card import Launch
from tests.system.container import Container

BROKEN = "/etc/nvshare/nvshared.conf.d/broken.conf"


def state(container: Container, unit: str) -> str:
    """active, inactive or failed."""
    return container.run("systemctl", "is-active", unit, check=False).stdout.strip()


@pytest.fixture
def machine(running: Container) -> Iterator[Container]:
    """A machine on which only the socket is there, as early at boot.

    However the test before ended, or its setup: a daemon that does not run takes no socket with
    it, so both are stopped, and what has failed is not inactive until that is forgotten.
    """
    try:
        running.run("rm", "-f", BROKEN)
        running.run("systemctl", "stop", "nvshared.service", "nvshared.socket")
        running.run("systemctl", "reset-failed")
        assert state(running, "nvshared.socket") == "inactive"
        running.run("systemctl", "start", "nvshared.socket")
        assert state(running, "nvshared") == "inactive"
        yield running
    finally:
        print(running.story())


def test_a_program_that_starts_first_starts_it_and_waits(
    machine: Container, launch: Launch
) -> None:
    program = launch(machine, "alice", memory=card.MEMORY // 2, cpu_ms=50)
    machine.until(lambda: state(machine, "nvshared") == "active", "the program has started it")
    machine.until(lambda: len(card.clients(machine)) == 1, "it knows the program")
    program.finish()


def test_a_program_does_not_wait_for_one_that_cannot_start(
    machine: Container, launch: Launch
) -> None:
    machine.write(BROKEN, "[gpu]\ntq = soon\n")
    launch(machine, "alice", memory=card.MEMORY // 2, steps=2).finish()
    assert state(machine, "nvshared") == "failed"
    # Mended and started, all is as it was.
    machine.run("rm", BROKEN)
    machine.run("systemctl", "reset-failed", "nvshared.service", "nvshared.socket")
    machine.run("systemctl", "start", "nvshared")
    assert state(machine, "nvshared.socket") == "active"
    launch(machine, "alice", memory=card.MEMORY // 2, steps=2).finish()


@pytest.mark.parametrize("user", ["", "alice"], ids=["root", "user"])
def test_whoever_asks_for_it_on_the_bus_starts_it(machine: Container, user: str) -> None:
    said = machine.output(
        "busctl", "get-property", "com.nvshare", "/com/nvshare", "com.nvshare.Manager", "TQ",
        user=user,
    )
    assert said == "u 30"
    assert state(machine, "nvshared") == "active"


def test_the_socket_outlives_the_daemon(machine: Container) -> None:
    machine.run("systemctl", "start", "nvshared")
    before = machine.output("stat", "--format=%i", "/run/nvshare/nvshare.sock")
    for signal in ("KILL", "SEGV"):
        pid = machine.output("systemctl", "show", "nvshared", "-P", "MainPID")
        machine.run("systemctl", "kill", f"--signal={signal}", "nvshared")
        machine.run("sh", "-c", f"while [ -e /proc/{pid} ]; do sleep 0.02; done")
        assert state(machine, "nvshared.socket") == "active"
        assert machine.output("stat", "--format=%i", "/run/nvshare/nvshare.sock") == before
        machine.until(lambda: state(machine, "nvshared") == "active", "there is another")
