# SPDX-License-Identifier: Apache-2.0
"""The daemon is started on demand: by a program's connection, or by a call on the bus."""

from collections.abc import Iterator

import pytest

from tests.system import card
from tests.system.card import Launch
from tests.system.container import Container

BROKEN = "/etc/nvshare/nvshared.conf.d/broken.conf"
DROP_INS = [f"/etc/systemd/system/nvshared.service.d/{name}.conf" for name in ("limit", "crash")]
TRIES = 10                              # more starts than systemd once allowed in a minute
WAY_OUT = ("systemctl reset-failed nvshared.socket nvshared.service && systemctl start nvshared")


def failures(container: Container) -> int:
    journal = container.output("journalctl", "-u", "nvshared", "-o", "cat")
    return journal.count("status=6/NOTCONFIGURED")


def stderr_of(container: Container, command: str) -> str:
    done = container.run("nvsharectl", command, user="alice", check=False)
    return done.stdout + done.stderr


def state(container: Container, unit: str) -> str:
    return container.run("systemctl", "is-active", unit, check=False).stdout.strip()


@pytest.fixture
def machine(running: Container) -> Iterator[Container]:
    """A machine on which only nvshared.socket is active, as early at boot.

    The previous test may have ended in any state. The socket stays when the daemon stops, so both
    units are stopped; a failed unit becomes inactive only by reset-failed.
    """
    try:
        running.run("rm", "-f", BROKEN, *DROP_INS)
        running.run("systemctl", "daemon-reload")
        running.run("systemctl", "stop", "nvshared.service", "nvshared.socket")
        running.run("systemctl", "reset-failed")
        assert state(running, "nvshared.socket") == "inactive"
        running.run("systemctl", "start", "nvshared.socket")
        assert state(running, "nvshared") == "inactive"
        yield running
    finally:
        print(running.story())


def test_first_program_starts_the_daemon_by_socket_activation_and_becomes_its_client(
    machine: Container, launch: Launch
) -> None:
    program = launch(machine, "alice", memory=card.MEMORY // 2, cpu_ms=50)
    machine.until(lambda: state(machine, "nvshared") == "active", "the program has started it")
    machine.until(lambda: len(card.clients(machine)) == 1, "it knows the program")
    program.finish()


def test_program_waits_for_a_daemon_that_cannot_start_unless_nvshare_required_is_0(
    machine: Container, launch: Launch
) -> None:
    machine.write(BROKEN, "[gpu]\ntq = soon\n")
    other = {"NVSHARE_REQUIRED": "0"}
    launch(machine, "alice", memory=card.MEMORY // 2, steps=2, environment=other).finish()
    assert state(machine, "nvshared") != "active"
    program = launch(machine, "bob", memory=card.MEMORY // 2, steps=2)
    machine.until(lambda: "waits for nvshared, which does not answer" in program.said, "it waits")
    # With the wrong file removed, the waiting program starts the daemon and runs.
    machine.run("rm", BROKEN)
    machine.until(lambda: state(machine, "nvshared") == "active", "it is tried again")
    assert state(machine, "nvshared.socket") == "active"
    program.finish()
    launch(machine, "alice", memory=card.MEMORY // 2, steps=2).finish()


def test_daemon_restart_with_a_wrong_configuration_loses_no_client(
    machine: Container, launch: Launch
) -> None:
    machine.run("systemctl", "start", "nvshared")
    pid = machine.output("systemctl", "show", "nvshared", "-P", "MainPID")
    programs = [
        launch(machine, user, memory=card.MEMORY * 7 // 10, cpu_ms=50, seed=seed)
        for seed, user in enumerate(("alice", "bob"), 1)
    ]
    machine.until(lambda: len(card.clients(machine)) == 2, "both are there")
    machine.write(BROKEN, "[gpu]\ntq = soon\n")
    checked = machine.run("nvshared", "--check", check=False)
    assert (checked.returncode, f"{BROKEN}:2" in checked.stderr) == (6, True)
    assert machine.run("systemctl", "reload", "nvshared", check=False).returncode != 0
    assert machine.output("systemctl", "show", "nvshared", "-P", "MainPID") == pid
    # The restart fails. The waiting programs then start the daemon by the socket again and again,
    # slowly enough that systemd's start limit is not reached.
    assert machine.run("systemctl", "restart", "nvshared", check=False).returncode != 0
    machine.until(lambda: failures(machine) > TRIES, "they have tried again and again")
    assert state(machine, "nvshared.socket") == "active"
    assert all(program.runs for program in programs)
    machine.until(lambda: f"{BROKEN}:2" in stderr_of(machine, "status"), "one is told why")
    assert f"{BROKEN}:2" in stderr_of(machine, "doctor")
    said: list[str] = []                # while a start is under way, no result is shown

    def is_shown() -> bool:
        shown = machine.run("systemctl", "status", "nvshared", check=False).stdout
        said[:] = [line for line in shown.splitlines() if "SUCCESS" not in line]
        return "status=6/NOTCONFIGURED" in "".join(said)

    machine.until(is_shown, "systemd shows why it failed")
    assert "ExecStopPost" not in "".join(said)
    machine.until(
        lambda: any("this program waits for it" in program.said for program in programs),
        "who waits is told")
    # Without the wrong file, a waiting program starts the daemon: no further command is needed.
    machine.run("rm", BROKEN)
    machine.until(lambda: state(machine, "nvshared") == "active", "a program has started it")
    card.finish(programs)


def test_start_limit_of_systemd_is_reported_with_the_command_that_resets_it(
    machine: Container
) -> None:
    limit, crash = DROP_INS
    machine.write(limit, "[Unit]\nStartLimitIntervalSec=1h\nStartLimitBurst=3\n")
    card.drop_in(machine, "crash", "ExecStart=\nExecStart=/bin/sh -c 'kill -KILL $$$$'\n")
    machine.run("systemctl", "start", "nvshared", check=False)
    machine.until(lambda: state(machine, "nvshared.socket") == "failed", "systemd has given up")
    assert machine.run("systemctl", "start", "nvshared", check=False).returncode != 0
    for command in ("status", "doctor"):
        assert WAY_OUT in stderr_of(machine, command)
    machine.run("rm", crash)
    machine.run("systemctl", "daemon-reload")
    machine.run("sh", "-c", WAY_OUT)
    assert state(machine, "nvshared") == "active"
    machine.run("rm", limit)
    machine.run("systemctl", "daemon-reload")


@pytest.mark.parametrize("user", ["", "alice"], ids=["root", "user"])
def test_d_bus_call_starts_the_daemon(machine: Container, user: str) -> None:
    said = machine.output(
        "busctl", "get-property", "com.nvshare", "/com/nvshare", "com.nvshare.Manager", "TQ",
        user=user)
    assert said == "u 30"
    assert state(machine, "nvshared") == "active"


def test_daemons_socket_stays_the_same_file_when_the_daemon_is_killed(machine: Container) -> None:
    machine.run("systemctl", "start", "nvshared")
    before = machine.output("stat", "--format=%i", "/run/nvshare/nvshare.sock")
    for signal in ("KILL", "SEGV"):
        pid = machine.output("systemctl", "show", "nvshared", "-P", "MainPID")
        machine.run("systemctl", "kill", f"--signal={signal}", "nvshared")
        machine.run("sh", "-c", f"while [ -e /proc/{pid} ]; do sleep 0.02; done")
        assert state(machine, "nvshared.socket") == "active"
        assert machine.output("stat", "--format=%i", "/run/nvshare/nvshare.sock") == before
        machine.until(lambda: state(machine, "nvshared") == "active", "there is another")
