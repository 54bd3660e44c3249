# SPDX-License-Identifier: Apache-2.0
"""Programs keep right results when the daemon is killed, hangs, is restarted or is stopped."""

from collections.abc import Iterator

import pytest

from tests.system import card
from tests.system.card import Launch, Program
from tests.system.container import Container

MOST_OF_IT = card.MEMORY * 7 // 10
CPU_MS = 5  # shorter than the idle window: each turn lasts a whole quantum
# Bytes per second between host and card: so slow that some move is nearly always under way.
COPY_RATE = {"NVSHARE_SIM_COPY_RATE": "400M"}


@pytest.fixture
def machine(running: Container) -> Iterator[Container]:
    running.run("systemctl", "reset-failed")
    running.run("systemctl", "start", "nvshared")
    running.run("nvsharectl", "set-tq", "1")
    running.until(lambda: not card.clients(running), "those of the last test are gone")
    yield running
    print(running.story())


def pids(container: Container) -> set[int]:
    return {one["pid"] for one in card.clients(container)}


def turns(container: Container) -> int:
    found: int = card.status(container)["gpus"][0]["turns"]
    return found


def main_pid(container: Container) -> str:
    return container.output("systemctl", "show", "nvshared", "-P", "MainPID")


def until_another(container: Container, pid: str) -> None:
    """Waits until a daemon with another pid than `pid` runs."""

    def there() -> bool:
        state = container.output("systemctl", "show", "nvshared", "-P", "ActiveState")
        return state == "active" and main_pid(container) not in ("0", pid)

    container.until(there, f"systemd has started another daemon than {pid}")


def kept(container: Container) -> int:
    """Returns the number of connections that systemd keeps for the next daemon."""
    return int(container.output("systemctl", "show", "nvshared", "-P", "NFileDescriptorStore"))


def ten(container: Container, launch: Launch) -> list[Program]:
    """Ten long programs, of which three fit on the card: each hand-over moves memory."""
    programs = [
        launch(
            container, user, memory=card.MEMORY // 4, cpu_ms=CPU_MS, seed=seed,
            environment=COPY_RATE)
        for seed, user in enumerate(("alice", "bob") * 5, 1)
    ]
    container.until(lambda: len(pids(container)) == 10, "all ten are there")
    return programs


@pytest.mark.parametrize("command", [("restart", "--no-block"), ("kill", "--signal=KILL")])
def test_killed_or_restarted_daemon_keeps_all_clients_and_shares_the_gpu_with_a_new_program(
    machine: Container, launch: Launch, command: tuple[str, str]
) -> None:
    programs = ten(machine, launch)
    all_pids = pids(machine)
    before = main_pid(machine)
    machine.until(lambda: kept(machine) == 10, "systemd keeps ten connections")
    machine.until(lambda: turns(machine) >= 2, "they take turns")
    machine.run("systemctl", *command, "nvshared")
    # The program may start while the daemon is down; then it must wait for the daemon.
    late = launch(machine, "alice", memory=card.MEMORY // 4, seed=99)
    programs.append(late)
    until_another(machine, before)
    machine.until(
        lambda: len(pids(machine)) == 11 and all_pids < pids(machine), "it knows all of them")
    card.finish(programs)


def test_watchdog_restarts_a_daemon_that_hangs(machine: Container, launch: Launch) -> None:
    card.drop_in(machine, "watchdog", "WatchdogSec=5s\nTimeoutAbortSec=2s\n")
    machine.run("systemctl", "restart", "nvshared")
    programs = [
        launch(machine, user, memory=MOST_OF_IT, cpu_ms=100, seed=seed)
        for seed, user in enumerate(("alice", "bob"), 1)
    ]
    machine.until(lambda: len(pids(machine)) == 2, "both are there")
    all_pids = pids(machine)
    before = main_pid(machine)
    machine.run("systemctl", "kill", "--signal=STOP", "nvshared")
    until_another(machine, before)
    assert "watchdog" in machine.output("journalctl", "-u", "nvshared", "-o", "cat", "-n", "50")
    machine.until(lambda: pids(machine) == all_pids, "it knows both again")
    card.finish(programs)
    machine.run("rm", "/etc/systemd/system/nvshared.service.d/watchdog.conf")
    machine.run("systemctl", "daemon-reload")


def test_stopped_daemon_leaves_the_holder_running_and_others_waiting(
    machine: Container, launch: Launch
) -> None:
    machine.run("nvsharectl", "set-tq", "300")
    # The holder keeps the GPU busy: an idle holder's turn would end before the daemon stops.
    holder = launch(machine, "alice", memory=MOST_OF_IT, kernel_us=5000, seed=1)
    machine.until(
        lambda: [one["state"] for one in card.clients(machine)] == ["running"], "one holds the GPU")
    waiter = launch(machine, "bob", memory=MOST_OF_IT, steps=5, seed=2)
    machine.until(
        lambda: sorted(one["state"] for one in card.clients(machine)) == ["running", "waiting"],
        "the other waits")
    pid = next(one["pid"] for one in card.clients(machine) if one["state"] == "waiting")
    machine.run("systemctl", "stop", "nvshared")
    journal = machine.output("journalctl", "-u", "nvshared", "-o", "cat", "-n", "20")
    assert f"nvshare-workload[{pid}] of bob stands still" in journal
    machine.until(
        lambda: "nvshared is not running, and this program waits" in waiter.said, "it is told")
    assert waiter.said.count("nvshared is not running") == 1
    assert "nvshared is not running" not in holder.said
    # Waiting programs look for the daemon's socket repeatedly, which does not start the daemon.
    holder.finish()
    assert waiter.runs
    for unit in ("nvshared.service", "nvshared.socket"):
        assert machine.run("systemctl", "is-active", unit, check=False).stdout == "inactive\n"
    assert machine.run("test", "-e", "/run/nvshare/nvshare.sock", check=False).returncode == 1
    # A new program without NVSHARE_REQUIRED uses the GPU unshared.
    other = {"NVSHARE_REQUIRED": "0"}
    launch(machine, "alice", memory=16, steps=2, environment=other).finish()
    machine.run("systemctl", "start", "nvshared")
    waiter.finish()
