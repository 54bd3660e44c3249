# SPDX-License-Identifier: Apache-2.0
"""Notebooks of ten users of a real JupyterHub, set up by docs/lab-server.md, share one GPU."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nvshared.units import MIB
from tests.system import card
from tests.system.conftest import install, leave_out
from tests.system.container import Container
from tests.system.lab import DEBIANS, FIRST, NOTEBOOK, PASSWORD, PEOPLE, PYPIS, STUDENTS, VENV, Lab
from tests.system.packages import Packages
from tests.system.tree import NoTree, prepared

MEMORY = 40  # MiB of each notebook; the card has room for a third of the notebooks
MUCH = 130  # MiB of a large notebook, beside which no other notebook fits
# A memory limit for this small card, in place of the limit in docs/lab-server.md.
RULE = (
    "/etc/nvshare/nvshared.conf.d/small.conf", "[tenant group:students]\nmemory-limit = 64MiB\n")


@pytest.fixture(scope="module")
def hub_tree(request: pytest.FixtureRequest) -> Path:
    try:
        return prepared(*DEBIANS, venv=VENV, pypi=PYPIS)
    except NoTree as error:
        leave_out(request.config, str(error))


@pytest.fixture(scope="module", params=["systemd", "localprocess"])
def lab(request: pytest.FixtureRequest, hub_tree: Path, built: Packages) -> Iterator[Lab]:
    """The hub with a spawner; each user has a notebook that has filled its memory."""
    with Container(hub_tree) as container:
        install(container, built)
        card.plug_in(container)
        container.write(*RULE)
        container.run("systemctl", "enable", "--now", "nvshared")
        lab = Lab(container, request.param)
        try:
            lab.each(PEOPLE, "log_in", PASSWORD)
            lab.each(PEOPLE, "start")
            lab.each(PEOPLE, "open", NOTEBOOK)
            lab.run(dict.fromkeys(PEOPLE, FIRST))
            lab.run({user: f"fill({MEMORY}, {seed})" for seed, user in enumerate(PEOPLE, 1)})
            yield lab
        finally:
            lab.close()


WORK = "train(3); print(right())"
FREE = 'call("cuMemFree_v2", words)'
LASTING = """
flag = c_void_p()
call("cuMemHostAlloc", byref(flag), 64, c_uint(3))
c_uint.from_address(flag.value).value = 0
launch(b"nvshare_wait_flag", flag.value, 1)
"""                                     # computes until the test ends the cell
ANEW = f"{FIRST}\nfill({MEMORY}, 1)"


def check(lab: Lab) -> None:
    assert lab.run(dict.fromkeys(PEOPLE, WORK)) == dict.fromkeys(PEOPLE, "True")


def clients(lab: Lab) -> dict[str, dict[str, Any]]:
    names = {lab.container.output("id", "-u", user): user for user in PEOPLE}
    return {names[str(one["uid"])]: one for one in card.clients(lab.container)}


def tenants(lab: Lab) -> dict[str, dict[str, int]]:
    found = json.loads(lab.container.output("nvsharectl", "tenants", "--json"))["tenants"]
    return {
        one["name"]: {term["name"]: term["value"] for term in one["terms"] if term["holds"]}
        for one in found}


def test_notebooks_computing_at_once_take_turns_with_right_results(lab: Lab) -> None:
    turns = card.status(lab.container)["gpus"][0]["turns"]
    check(lab)
    check(lab)
    assert card.status(lab.container)["gpus"][0]["turns"] > turns
    found = clients(lab)
    assert found.keys() == set(PEOPLE)
    assert all(one["command"].startswith(f"{NOTEBOOK}: ") for one in found.values())


def test_notebook_terms_come_from_rules_for_user_group_and_unit(lab: Lab) -> None:
    terms: dict[str, dict[str, int]] = {
        f"user:{user}": {"memory-limit": 64 * MIB, "weight": 50} if user in STUDENTS
        else {"memory-limit": 0} for user in PEOPLE}
    shown = {user: f"user:{user}" for user in PEOPLE}
    if lab.spawner == "systemd":
        shown = {user: f"unit:jupyter-{user}.service" for user in PEOPLE}
        terms |= {unit: {"weight": 200} for unit in shown.values()}
    assert tenants(lab) == terms
    assert {user: one["tenant"] for user, one in clients(lab).items()} == shown


def test_idle_notebooks_are_evicted_for_a_notebook_that_needs_the_card(lab: Lab) -> None:
    *others, one = PEOPLE
    context = 8
    assert lab.run({one: f"{FREE}\nfill({MUCH}, 5)\n{WORK}"}) == {one: "True"}
    away = sum(clients(lab)[user]["swapped"] for user in others)
    need = len(others) * MEMORY + MUCH + len(PEOPLE) * context
    assert away >= (need - card.MEMORY) * MIB
    lab.run({one: f"{FREE}\nfill({MEMORY}, 6)"})
    check(lab)


def test_waiting_cell_shows_that_the_notebook_waits(lab: Lab) -> None:
    waits, *_, holds = PEOPLE
    lab.container.run("nvsharectl", "set-tq", "600")
    lab.run({holds: f"{FREE}\nfill({MUCH}, 7)\n{LASTING}"})
    waiting = lab.ask(waits, "run", WORK)
    lab.container.until(lambda: clients(lab)[waits]["waiting_usec"] > 3_000_000, "the other waits")
    assert lab.run({holds: "c_uint.from_address(flag.value).value = 1; print(right())"}) == {
        holds: "True"}
    outcome = lab.answer(waiting)
    assert outcome["stdout"] == "True\n"
    assert "waits for its turn on GPU 0" in outcome["stderr"]
    lab.container.run("nvsharectl", "set-tq", "auto")
    lab.run({holds: f"{FREE}\nfill({MEMORY}, 6)"})


def test_killed_notebook_kernel_leaves_other_notebooks_running(lab: Lab) -> None:
    one, *others = PEOPLE
    before = clients(lab)
    at_work = {user: lab.ask(user, "run", WORK) for user in others}
    endless = lab.ask(one, "run", "while True: train(1)")
    lab.container.run("kill", "-KILL", str(before[one]["pid"]))
    assert lab.answer(endless)["lost"] == "the kernel"
    assert [lab.answer(number)["stdout"] for number in at_work.values()] == ["True\n"] * len(others)
    lab.container.until(lambda: one not in clients(lab), "it is gone")
    lab.each([one], "connect")          # the server has started another kernel
    lab.run({one: ANEW})
    check(lab)
    after = clients(lab)
    assert [after[user]["pid"] for user in others] == [before[user]["pid"] for user in others]


def test_notebooks_keep_running_when_hub_and_daemon_are_restarted(lab: Lab) -> None:
    before = clients(lab)
    lab.container.run("systemctl", "restart", "jupyterhub")
    lab.container.until(lab.answers, "JupyterHub answers")
    lab.each(PEOPLE, "connect")
    check(lab)
    at_work = {user: lab.ask(user, "run", WORK) for user in PEOPLE}
    lab.container.run("systemctl", "restart", "nvshared")
    assert [lab.answer(number)["stdout"] for number in at_work.values()] == ["True\n"] * len(PEOPLE)
    check(lab)
    after = clients(lab)
    assert {user: one["pid"] for user, one in after.items()} == {
        user: one["pid"] for user, one in before.items()}


def test_notebook_magic_shows_resident_and_swapped_memory(lab: Lab) -> None:
    said = lab.run({"ada": "%nvshare"})["ada"]
    found = re.fullmatch(
        r"gpu0: held by .+, \d+ waiting\n"
        r" +yours: (\d+) MiB on the GPU, (\d+) MiB swapped; held for \d+ s, waited for \d+ s", said)
    assert found, said
    assert int(found[1]) + int(found[2]) >= MEMORY
