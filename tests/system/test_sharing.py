# SPDX-License-Identifier: Apache-2.0
"""Programs of two users that do not fit together share the GPU, and programs of systemd units."""

import re

from tests.system import card
from tests.system.card import Launch
from tests.system.container import Container

MOST_OF_IT = card.MEMORY * 7 // 10
STATUS = re.compile(r"1 GPU, 2 clients, gpu0: nvshare-worklo\w*\[\d+\]")


def status_line(container: Container) -> str:
    """Returns the line with the daemon's status in the output of `systemctl status`."""
    return container.output("systemctl", "show", "nvshared", "-P", "StatusText")


def test_programs_of_two_users_take_turns_with_right_results(
    running: Container, launch: Launch
) -> None:
    running.run("nvsharectl", "set-tq", "1")
    turns = card.status(running)["gpus"][0]["turns"]
    programs = [
        # Both programs want the GPU all the time, so one of the two always has a turn.
        launch(running, user, memory=MOST_OF_IT, seed=seed)
        for seed, user in enumerate(("alice", "bob"), 1)
    ]
    running.until(lambda: len(card.clients(running)) == 2, "both are there")
    users = running.output("id", "-u", "alice"), running.output("id", "-u", "bob")
    assert {str(one["uid"]) for one in card.clients(running)} == set(users)
    running.until(lambda: STATUS.fullmatch(status_line(running)), "systemd's status names a holder")
    table = running.output("nvsharectl", "status", user="alice")
    assert "alice" in table
    assert "bob" in table
    running.until(lambda: card.status(running)["gpus"][0]["turns"] - turns > 2, "they take turns")
    card.finish(programs)
    running.until(lambda: not card.clients(running), "both are gone")


def test_program_of_a_unit_is_shown_under_the_units_name(running: Container) -> None:
    settings = [f"--setenv={name}={value}" for name, value in card.ENVIRONMENT.items()]
    running.run(
        "systemd-run", "--unit=training", "--collect", *settings,
        "nvsharectl", "run", "--", card.WORKLOAD, "--memory", "16MiB", "--steps", "100000")
    running.until(lambda: card.clients(running), "it is there")
    assert [one["tenant"] for one in card.clients(running)] == ["unit:training.service"]
    running.run("systemctl", "stop", "training")
    running.until(lambda: not card.clients(running), "it is gone")
