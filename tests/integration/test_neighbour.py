# SPDX-License-Identifier: Apache-2.0
"""Programs of one card swap to another card. Clients of that card get memory back on demand."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nvshared.hook.protocol import Flag, ReportRecord, Type
from nvshared.scheduler.events import Memory
from nvshared.units import MIB
from tests.integration.conftest import Site, kill
from tests.integration.fakedaemon import begin
from tests.integration.fakehook import PATIENCE, Hook
from tests.integration.test_kills import PROGRAMS, SETTINGS, finish, follow, program
from tests.records import encode_report

LINKED = {"NVSHARE_SIM_NVLINK": "1"}
CAPACITY = 60 * MIB                     # bytes of each card, as in SETTINGS


def start(site: Site, *options: str, trace: str = "trace") -> tuple[subprocess.Popen[str], Path]:
    path = site.folder / trace
    return site.start(*SETTINGS, "--trace", str(path), *options, **LINKED), path


def on_second(site: Site, seed: int, steps: int | None = 12) -> subprocess.Popen[str]:
    """A program to which only the second card is visible."""
    return program(site, seed, steps, CUDA_VISIBLE_DEVICES="1")


def borrow(site: Site, trace: Path) -> list[subprocess.Popen[str]]:
    """Programs on the first card. When this returns, a program has memory on the second card."""
    programs = [program(site, seed, None) for seed in range(1, PROGRAMS + 1)]
    await_loan(trace)
    return programs


def borrowed(line: dict[str, Any]) -> int:
    return int(line["memory"]["borrowed"]) if "memory" in line else 0


def await_loan(trace: Path) -> int:
    return next(int(line["pid"]) for line in follow(trace) if "pid" in line and borrowed(line))


def most_lent(trace: Path) -> int:
    """The maximum of the bytes of the second card that clients could fill or borrow at once.

    Until an order is answered, the larger of the client's bytes before and after it counts.
    """
    had: dict[int, int] = {}
    orders: dict[int, list[tuple[int, int]]] = {}
    most = 0
    for line in map(json.loads, trace.read_text().splitlines()):
        client, own = line.get("client", 0), line["gpu"] == 1
        if line.get("order") in ("evict", "writeback", "load"):
            allowed = line["room"] if own else line["loan"]
            orders.setdefault(client, []).append((line["number"], allowed))
        elif line.get("event") in ("joined", "evicted", "written-back", "loaded"):
            left = orders[client] = [
                one for one in orders.get(client, []) if one[0] > line.get("number", 0)]
            if own and not left:
                had[client] = line["memory"]["room"]
        elif line.get("event") == "left":
            had.pop(client, None)
            orders.pop(client, None)
        if "memory" in line and not own:
            had[client] = borrowed(line)
        most = max(most, sum(
            max([had[id], *(allowed for _, allowed in orders.get(id, []))]) for id in had))
    return most


@pytest.mark.parametrize(("linked", "visible"), [("0", "0,1"), ("1", "0")],
                         ids=["without a link", "out of reach"])
def test_hand_over_without_a_card_that_can_lend_moves_memory_to_the_host(
    site: Site, linked: str, visible: str
) -> None:
    trace = site.folder / "trace"
    site.start(*SETTINGS, "--trace", str(trace), NVSHARE_SIM_NVLINK=linked)
    lines: list[dict[str, Any]] = []
    # On a busy machine a program may end before the next one begins: then nothing is evicted.
    while not any(line.get("event") == "evicted" and line["bytes"] for line in lines):
        finish([program(site, seed, 10, CUDA_VISIBLE_DEVICES=visible) for seed in (1, 2, 3)])
        lines = [json.loads(line) for line in trace.read_text().splitlines()]
    assert not any(map(borrowed, lines))


@pytest.mark.parametrize("visible", ["0,1", "0,2"])
def test_eviction_of_a_program_that_sees_one_of_two_lenders_borrows_of_that_one(
    site: Site, visible: str
) -> None:
    trace, cards = site.folder / "trace", {"NVSHARE_SIM_GPUS": "3"}
    site.start(*SETTINGS, "--trace", str(trace), **cards, **LINKED)
    # Only one of the two is evicted at a time, so neither card has lent the other anything then.
    programs = [
        site.workload("--memory", "40MiB", "--chunk", "2MiB", "--until-told", "--seed", seed,
                      "--json", CUDA_VISIBLE_DEVICES=visible, **cards) for seed in "12"]
    await_loan(trace)
    finish(programs)


def test_client_of_the_lending_card_gets_lent_memory_back(site: Site) -> None:
    _, trace = start(site)
    programs = borrow(site, trace)
    own = [on_second(site, seed) for seed in (7, 8)]    # 48 MiB of the 60 MiB of card 1
    finish(own)
    finish(programs)
    recalled = [
        line for line in map(json.loads, trace.read_text().splitlines())
        if line.get("order") == "evict" and line["gpu"] == 0 and line["loan"] < 12 * MIB
    ]
    assert recalled
    assert most_lent(trace) <= CAPACITY


def test_idle_client_returns_borrowed_memory_of_which_the_host_has_a_copy(site: Site) -> None:
    _, trace = start(site)
    idle = site.workload(
        "--memory", "24MiB", "--chunk", "2MiB", "--until-told", "--cpu-ms", "3000", "--seed", "1",
        "--json")
    programs = [idle, *[program(site, seed, None) for seed in (2, 3)]]
    lines = follow(trace)
    next(line for line in lines if line.get("pid") == idle.pid and borrowed(line))
    finish(programs[1:])
    copied = next(line for line in lines if line.get("pid") == idle.pid
                  and line.get("event") == "written-back" and not line["memory"]["dirty"])
    assert borrowed(copied)
    own = [on_second(site, seed, None) for seed in (7, 8)]
    returned = next(line for line in lines if line.get("pid") == idle.pid
                    and line.get("event") == "evicted" and not borrowed(line))
    assert returned["memory"]["host"] < copied["memory"]["host"]
    finish([idle, *own])


def test_killed_client_of_the_lending_card_loses_no_bytes_of_other_programs(site: Site) -> None:
    _, trace = start(site)
    programs = borrow(site, trace)
    victim = on_second(site, 7, None)
    next(line for line in follow(trace) if line.get("pid") == victim.pid)
    victim.kill()
    finish([on_second(site, seed) for seed in (8, 9)])
    finish(programs)


def test_restarted_daemon_keeps_own_and_lent_memory_within_the_lending_cards_capacity(
    site: Site
) -> None:
    daemon, trace = start(site)
    programs = borrow(site, trace)
    kill(daemon)
    _, second = start(site, trace="second")
    joined = follow_until(second, "joined", PROGRAMS)
    if any(map(borrowed, joined)):
        assert {line["lender"] for line in joined if borrowed(line)} == {
            "GPU-763a7c0e-9d42-4b86-a15f-6e7673686101"}
    own = [on_second(site, seed) for seed in (7, 8)]
    finish(own)
    finish(programs)
    assert most_lent(second) <= CAPACITY


def follow_until(trace: Path, event: str, number: int) -> list[dict[str, Any]]:
    found = []
    for line in follow(trace):
        if line.get("event") == event:
            found.append(line)
        if len(found) == number:
            break
    return found


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_loan_that_a_client_reports_but_nvml_does_not_show_takes_no_memory_of_the_lender(
    public_site: Site
) -> None:
    """A restarted daemon learns of loans that an earlier daemon ordered."""
    site = public_site
    daemon, _ = start(site)
    site.hook().hello()
    kill(daemon)
    start(site, "--stuck-after", "1h", trace="second")
    liar = hook_of(site, 65_534, 0)
    liar.memory = Memory(host=CAPACITY)
    liar.send(encode_report(
        ReportRecord(Type.BORROWED, uuid=site.uuids[1], moved=liar.memory.host)))
    assert liar.hello() is not None
    other = hook_of(site, 65_533, 1)
    assert other.hello() is not None
    assert other.allocate(CAPACITY)
    other.want()
    other.obey_until(Type.RUN)


def hook_of(site: Site, uid: int, card: int) -> Hook:
    os.seteuid(uid)
    try:
        return site.hook(card)
    finally:
        os.seteuid(0)


# Conditions on a line of the trace and the bytes that its program had borrowed before the line.
MOMENTS: dict[str, Callable[[dict[str, Any], int], bool]] = {
    "borrows": lambda line, held: line.get("order") == "evict" and line["loan"] > held,
    "loads": lambda line, held: line.get("order") == "load" and held > 0,
    "returns": lambda line, held: line.get("order") == "evict" and line["loan"] < held,
}


@pytest.mark.parametrize(("moment", "role"), [
    ("borrows", "daemon"), ("loads", "borrower"), ("returns", "daemon"),
    *(pytest.param(*one, marks=pytest.mark.long) for one in (
        ("borrows", "borrower"), ("loads", "daemon"), ("returns", "borrower")))])
def test_kill_while_borrowed_memory_moves_loses_no_bytes_of_other_programs(
    site: Site, moment: str, role: str
) -> None:
    daemon, trace = start(site)
    programs = borrow(site, trace)
    own = [on_second(site, seed) for seed in (7, 8)] if moment == "returns" else []
    held: dict[int, int] = {}
    for line in follow(trace):
        pid = line.get("pid", 0)
        if line["gpu"] == 0 and pid and MOMENTS[moment](line, held.get(pid, 0)):
            break
        if "memory" in line:
            held[pid] = borrowed(line)
    victim = daemon
    if role == "borrower":
        victim = next(one for one in programs if one.pid == pid)
        programs.remove(victim)
    kill(victim)
    if role == "daemon":
        start(site, trace="second")
    finish(own or [on_second(site, seed) for seed in (7, 8)])
    finish(programs)


ONE_BLOCK = '''
address = allocate(4 * MIB)
put(address, b"same" * MIB)
away()
assert get(address, 4 * MIB) == b"same" * MIB
'''


def test_copy_to_the_lending_card_that_fails_at_its_end_leaves_no_memory_on_that_card(
    site: Site
) -> None:
    site.environment |= {"NVSHARE_SIM_FAIL": "cuEventSynchronize:1", **LINKED}
    daemon, program = begin(site, ONE_BLOCK, room=CAPACITY)
    daemon.stop()
    failed = daemon.move(Type.EVICT, loan=CAPACITY, lender=site.uuids[1])
    assert failed.flags == Flag.DRIVER_ERROR
    assert failed.memory.resident > 0
    assert failed.memory.host == 0
    evicted = daemon.move(Type.EVICT, loan=CAPACITY, lender=site.uuids[1])
    assert not evicted.flags
    assert evicted.memory.resident == 0
    borrowed = [report.moved for report in daemon.said if report.type is Type.BORROWED]
    assert borrowed[-1:] in ([], [0])
    daemon.let_return(program)


@pytest.mark.parametrize("failure", ["cuMemcpyDtoDAsync:1+", "cuMemcpyDtoDAsync:40"])
def test_driver_errors_of_copies_between_cards_change_no_results(site: Site, failure: str) -> None:
    _, trace = start(site)
    finish([program(site, seed, 12, NVSHARE_SIM_FAIL=failure) for seed in (1, 2, 3)])
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    moved = [line for line in lines if line.get("event") == "evicted" and line["bytes"]]
    assert moved
    if "+" in failure:
        assert not any(map(borrowed, moved))


def test_context_failure_by_an_nvlink_error_ends_only_the_failed_program(site: Site) -> None:
    _, trace = start(site)
    broken = program(site, 1, 100_000, NVSHARE_SIM_FAIL="nvlink:5:220")
    others = [program(site, seed, None) for seed in (2, 3)]
    broken.communicate(timeout=PATIENCE)
    assert broken.returncode > 0
    follow_until(trace, "left", 1)
    own = [on_second(site, seed) for seed in (7, 8)]
    finish(own)
    finish(others)
