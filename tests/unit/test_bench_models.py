# SPDX-License-Identifier: Apache-2.0
"""make bench-models: its arithmetic, and its program on a simulated card."""

import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from bench.handover.card import Card, find
from bench.harness import ROOT
from bench.models import demand, rows
from bench.models.parts import PARTS, told
from bench.models.program import Answer, Weights, started, write
from bench.models.ways import alone, anew, by_hand, shared, weights
from nvshared.errors import NvshareError
from nvshared.units import MIB

ME, OTHER = 11, 12
SIZE = 64 * MIB
REQUESTS = [demand.Request(0.02 * number, number % 3) for number in range(9)]


def test_the_same_is_asked_again() -> None:
    for asked in (demand.each(3, 2, 2.5), demand.zipf(8, 1, 1), demand.bursts(8, 4, 3, 0.1)):
        assert asked(60) == asked(60) == sorted(asked(60))
    number = [one.model for one in demand.zipf(8, 0.01, 1)(60)].count
    assert number(0) > number(1) > number(3) > number(7) > 0
    assert [one.due for one in demand.bursts(8, 4, 3, 0.5)(8)] == [0, 0.5, 1, 4, 4.5, 5]
    dues = [one.due for one in demand.each(3, 2, 2.5)(60) if one.model == 1]
    assert all(2 <= late - early <= 2.5 for early, late in pairwise(dues))


def line(at: int, pid: int, **more: Any) -> dict[str, Any]:
    """Of a trace."""
    return {"at": at, "pid": pid, **more}


def memory(resident: int) -> dict[str, Any]:
    """Of a client with 100 bytes."""
    return {"memory": {"allocated": 100, "resident": resident}}


def test_where_the_time_of_a_request_goes() -> None:
    trace = [
        line(50, ME, event="evicted", microseconds=10, **memory(60)),
        line(115, ME, event="memory-changed", wants=True, **memory(60)),
        line(150, OTHER, order="stop"),
        line(180, OTHER, event="stopped", microseconds=20, **memory(100)),
        line(220, OTHER, event="evicted", microseconds=35, **memory(60)),
        line(300, ME, event="loaded", microseconds=90, **memory(100)),
        line(307, ME, report="turn-started"),
        line(390, OTHER, event="memory-changed", wants=True, **memory(60)),
    ]
    answers = [Answer(0, 90, 100, 350, True), Answer(0, 340, 351, 380, True)]
    waited, went_on = told(answers, trace, [ME, OTHER], alone=25)
    assert waited.parts == {
        "queue": 10, "ask": 15, "turn": 35, "stop": 10, "drain": 20, "out": 25, "in": 90,
        "order": 12, "start": 18, "result": 25,
    }
    assert (waited.missing, waited.kind) == (40, "partly")
    assert {part for part, value in went_on.parts.items() if value} == {"queue", "start", "result"}
    assert went_on.kind == "resident"
    for one in (waited, went_on):
        assert sum(one.parts.values()) == one.took
    drawn = rows.drawing([waited, went_on])
    assert drawn["queue"] == [11 / 260, 10 / 260]
    assert list(drawn) == list(PARTS)
    assert rows.marks([1.0, 2.0, 3.0])[0] == (0.5, "50 %: 2 ms")


@pytest.fixture(scope="module")
def program() -> None:
    """That which is measured, compiled."""
    subprocess.run(["make", "-C", "bench/models", "-s"], cwd=ROOT, check=True)


@pytest.fixture
def card(tmp_path: Path, program: None) -> Card:
    """A small one."""
    large = find(tmp_path, True, 1.0, None)
    environment = {**large.environment, "NVSHARE_SIM_MEMORY": str(SIZE)}
    return replace(large, total=SIZE, environment=environment)


def test_requests_under_the_daemon(card: Card) -> None:
    models = [weights(card, 0.394, seed) for seed in (1, 2, 3)]
    found = shared(card, models, REQUESTS, "100%")
    assert found.wrong == ()
    assert sorted(one.model for one in found.answers) == sorted(one.model for one in REQUESTS)
    requests = told(found.answers, found.trace, found.pids, alone=1000)
    assert {one.size for one in requests} <= {one.size + 2 * MIB for one in models} | {
        one.size for one in models}
    assert any(one.missing and one.parts["in"] for one in requests)
    for one in requests:
        assert sum(one.parts.values()) == pytest.approx(one.took, abs=1)


def test_the_other_ways(card: Card) -> None:
    model = weights(card, 0.3, 1)
    assert len(alone(card, model)) == 5
    for found in (
        by_hand(card, model, REQUESTS, 60, fit=2, count=3), anew(card, model, REQUESTS, 60, fit=2)
    ):
        assert [one.model for one in found] == [one.model for one in REQUESTS]
        assert all(one.right for one in found)


def test_wrong_weights_are_found(card: Card) -> None:
    model = Weights(2 * MIB, MIB, 0, file=str(card.log.parent / "weights"))
    write(model)
    with Path(model.file).open("r+b") as file:
        file.seek(MIB + 12345)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 64]))
    with started(model, card.environment) as process:
        process.ask(0, 0)
        assert not process.answer().right
        assert not process.conclude()
    Path(model.file).write_bytes(b"")
    with pytest.raises(NvshareError, match="is too short"), started(model, card.environment):
        pass


@pytest.mark.long
def test_from_beginning_to_end(tmp_path: Path, program: None) -> None:
    output = tmp_path / "kept.json"
    done = subprocess.run(
        [sys.executable, "-m", "bench.models.measure", "--simulate", "--seconds", "2",
         "--variant", "absent", "--output", str(output)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "where it goes: in" in done.stdout
    assert output.exists()
    assert (tmp_path / "kept-absent-shared.svg").read_text().startswith("<svg")
