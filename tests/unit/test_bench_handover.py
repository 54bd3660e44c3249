# SPDX-License-Identifier: Apache-2.0
"""What the benchmark of hand-overs reads out of a trace, and what it calls right."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.handover import measure
from bench.handover.card import Card
from bench.handover.first import ways_out
from bench.handover.goal import Goal, Result
from bench.handover.passage import common, figures, handovers, shared, union
from bench.handover.program import Outcome, Task
from bench.handover.undisturbed import Pace, Paces, paces, percent
from bench.handover.unused import Absence, absences
from bench.trace import moves, summary, written
from nvshared.units import MIB

MS = 1000
A, B = 1, 2
HOST = 100
Line = dict[str, Any]


def told(
    at: int, client: int, event: str, *, host: int = 0, resident: int = 0, **more: int
) -> Line:
    """An event; times in ms."""
    if "ms" in more:
        more["microseconds"] = more.pop("ms") * MS
    memory = {"resident": resident, "host": host}
    return {"at": at * MS, "client": client, "pid": 10 * client, "event": event,
            "memory": memory, **more}


def order(at: int, client: int, name: str) -> Line:
    """An order."""
    return {"at": at * MS, "client": client, "pid": 10 * client, "order": name}


def turn(at: int, client: int) -> Line:
    """The start of one."""
    return {"at": at * MS, "client": client, "pid": 10 * client, "report": "turn-started"}


HANDOVER = [
    order(1000, A, "stop"),
    told(1010, A, "stopped", ms=10, host=HOST),
    told(1050, A, "evicted", ms=40, bytes=80 * 10**6, host=HOST),
    told(1070, B, "loaded", ms=40, bytes=40 * 10**6, host=HOST),
    turn(1080, B),
]
# Both have host memory already.
EARLIER = [told(900, A, "memory-changed", host=HOST), told(900, B, "memory-changed", host=HOST)]


def test_a_line_that_is_being_written_is_not_there_yet(tmp_path: Path) -> None:
    whole = "".join(json.dumps(line) + "\n" for line in HANDOVER)
    for size in range(len(whole) + 1):
        (tmp_path / "trace").write_text(whole[:size])
        assert written(tmp_path / "trace") == HANDOVER[:whole[:size].count("\n")]


def test_a_hand_over_begins_when_the_work_in_flight_is_done() -> None:
    one, = handovers([*EARLIER, *HANDOVER])
    assert (one.stop_to_run_ms, one.drain_ms, one.less_drain_ms) == (80, 10, 70)
    assert (one.out_bytes, one.in_bytes) == (80 * 10**6, 40 * 10**6)
    # From 1030 to 1050 both were moving: half of what left, and half of what came.
    assert (one.both_ms, one.both_out_bytes, one.both_in_bytes) == (20, 40 * 10**6, 20 * 10**6)
    found = figures([one])
    assert found["out_gbps_both"]["median"] == 2.0
    assert found["in_gbps_both"]["median"] == 1.0
    assert found["stop_to_run_less_drain_ms"] == {"median": 70, "least": 70, "most": 70}


def test_what_moved_before_or_after_counts_in_part() -> None:
    one, = handovers([
        *EARLIER, order(1000, A, "stop"), told(1000, A, "stopped", ms=0, host=HOST),
        told(1010, A, "evicted", ms=20, bytes=2000, host=HOST), turn(1020, B),
        told(1040, B, "loaded", ms=40, bytes=4000, host=HOST),
    ])
    assert (one.out_bytes, one.in_bytes, one.both_ms) == (1000, 2000, 10)


def test_one_that_made_host_memory_is_no_measure() -> None:
    first = [order(500, A, "stop"), told(510, A, "stopped", ms=10),
             told(550, A, "evicted", ms=40, bytes=1000, host=HOST), turn(580, B)]
    found = handovers([*first, told(900, B, "memory-changed", host=HOST), *HANDOVER])
    assert [one.warmed_up for one in found] == [False, True]
    assert figures(found)["warmed_up"] == 1
    assert figures(found)["stop_to_run_less_drain_ms"]["median"] == 70
    assert figures(handovers(first))["stop_to_run_less_drain_ms"] is None


def test_host_memory_that_grew_while_it_moved_was_made_for_it() -> None:
    trace = [
        told(100, A, "memory-changed", host=50),
        told(130, A, "memory-changed", host=70),
        told(150, A, "evicted", ms=40, bytes=1000, host=70),
        told(200, A, "evicted", ms=40, bytes=1000, host=70),
    ]
    assert [move["host_grew"] for move in moves(trace, least=1)] == [True, False]
    assert summary(trace, least=1)["out_gbps"] == 1000 / 40_000 / 1000
    assert summary(trace)["out_gbps"] is None   # too small to say anything


def test_a_program_that_could_not_stop_or_goes_on_hands_nothing_over() -> None:
    assert handovers([
        *EARLIER,
        order(1000, A, "stop"), told(1010, A, "reopened"), turn(1020, B),
        order(2000, B, "stop"), told(2010, B, "stopped", ms=10), turn(2020, B),
    ]) == []


def test_what_follows_the_end_of_a_program_is_left_out() -> None:
    left = {"at": 1100 * MS, "client": A, "event": "left"}
    assert shared([*HANDOVER, left, *HANDOVER]) == HANDOVER


def test_spans() -> None:
    assert union([(5, 7), (1, 3), (2, 4)]) == [(1, 4), (5, 7)]
    assert union([(5, 7), (1, 4)], gap=1) == [(1, 7)]
    assert common([(1, 4), (5, 7)], [(3, 6)]) == [(3, 4), (5, 6)]
    assert common([(1, 4)], [(4, 6)]) == []


def test_steps_are_told_apart_by_what_moved_meanwhile() -> None:
    trace = [
        turn(1000, A),
        # B comes in from 1000 to 1050 while A runs.
        told(1050, B, "loaded", ms=50, bytes=1000, host=HOST, resident=1000),
        # What A itself brings in does not count as others'.
        told(1080, A, "loaded", ms=20, bytes=1000, host=HOST, resident=1000),
        order(1100, A, "stop"),
        told(3050, B, "loaded", ms=50, bytes=1000, host=HOST, resident=1000),
    ]
    ends = [
        *range(0, 501, 10),             # alone: 100 a second
        1000, 1020, 1040,               # while B came in: 50 a second
        1060,                           # in part
        1070, 1080, 1090,               # quiet: 100 a second
        1110,                           # began before STOP and ended after it
        3000, 3040,                     # not in its turn
    ]
    steps = tuple(end * MS for end in ends)
    found = paces(trace, Outcome(Task(1, 1, 1, 1), 10 * A, 0, steps, True, ""), 500 * MS)
    assert found == Paces(
        alone=Pace(25, 10, 10, 10, 0, 0), quiet=Pace(3, 10, 10, 10, 0, 0),
        moving=Pace(2, 20, 20, 20, 0, 0), turns=Pace(6, 15, 15, 20, 3, 15),
    )
    assert percent(found, "alone", "mean", of="turns") == pytest.approx(200 / 3)
    assert percent(found, "alone", "mean") == 50
    assert percent(Paces(None, None, found.moving), "alone", "mean") is None


def test_what_crossed_from_one_stop_to_the_next() -> None:
    def absence(at: int, out: int, into: int, left: int) -> list[Line]:
        return [
            told(at, A, "evicted", bytes=out, resident=100 - left),
            told(at + 1, A, "loaded", bytes=into, resident=100),
            told(at + 2, A, "stopped", resident=100),
        ]

    trace = [told(0, A, "stopped", resident=100), *absence(10, 60, 60, 60)]
    assert absences(trace) == []                # the first way out copies everything
    trace += absence(20, 5, 60, 60)
    assert absences(trace) == [Absence(out=5, into=60, left=60, resident=100)]


@pytest.mark.parametrize(
    ("goal", "met"),
    [
        (Goal("", 45.0, "", least=45), True), (Goal("", 44.9, "", least=45), False),
        (Goal("", 10.0, "", most=10), True), (Goal("", 10.1, "", most=10), False),
        (Goal("", None, "", most=10), False), (Goal("", 1.0, ""), None),
    ],
)
def test_goals(goal: Goal, met: bool | None) -> None:
    assert goal.met is met


@pytest.mark.parametrize("wrong", [(), ("program 2: WRONG RESULT",)])
def test_wrong_data_is_said_and_is_a_failure(
    wrong: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    log = tmp_path / "log"
    log.write_text("what the daemon said")
    card = Card("a card", 256 * MIB, True, 1, 1.0, MIB, log, {})

    def variant(_: Card) -> Iterator[Result]:
        yield Result("two-large", "", (Goal("speed", 50.0, "GB/s", least=45),), {}, wrong)

    monkeypatch.setattr(measure, "find", lambda *_: card)
    output = tmp_path / "kept"
    command = ["measure", "--variant", "two-large", "--output", str(output)]
    monkeypatch.setattr("sys.argv", command)
    assert measure.main("handover", "", {"two-large": variant}) == (1 if wrong else 0)
    said = capsys.readouterr()
    assert ("WRONG DATA" in said.out) is bool(wrong)
    assert ("program 2" in said.out) is bool(wrong)
    assert ("what the daemon said" in said.err) is bool(wrong)
    report = json.loads(output.read_text())
    assert report["machine"]["simulated"] is True
    assert report["results"][0]["right"] is not bool(wrong)
    assert report["results"][0]["goals"][0]["met"] is True


def test_a_way_out_is_what_leaves_between_two_turns() -> None:
    def out(at: int, host: int, size: int = 10**7) -> Line:
        return {**told(at, A, "evicted", ms=10, bytes=size, host=host), "number": at}

    trace = [
        turn(0, A), told(500, A, "memory-changed", host=HOST // 2),
        order(1000, A, "stop"), out(1010, HOST), out(1020, HOST), turn(1030, B),
        out(1500, HOST, 5), turn(2000, A), order(3000, A, "stop"), out(3020, HOST, 4 * 10**7),
    ]
    first, second = ways_out(trace, 1000)[10 * A]
    assert (first.bytes, first.gbps, first.had) == (2 * 10**7 + 5, (2 * 10**7 + 5) / 3e7, HOST // 2)
    assert (second.bytes, second.gbps, second.had) == (4 * 10**7, 4.0, HOST)
