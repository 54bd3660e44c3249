# SPDX-License-Identifier: Apache-2.0
"""The demonstration's own judgement: what it counts, and what it calls wrong."""

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest

from nvshared.demo.gpu import DemoGPU
from nvshared.demo.play import COLUMNS, Act, Report, tasks
from nvshared.demo.show import Handovers, Lines, Place
from nvshared.demo.workload import Outcome
from nvshared.tui.tables import plain
from nvshared.units import MIB

CARD = DemoGPU("a card", 512 * MIB, 512 * MIB, True, "in a test", 0, {})
A, B = tasks(CARD)


def memory(resident: int, allocated: int) -> dict[str, int]:
    """As in a trace."""
    return {"resident": resident, "allocated": allocated, "pinned": 1, "host": 1 << 40}


def write(trace: Path, *lines: dict[str, object]) -> None:
    """Appends to a trace."""
    with trace.open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def test_handovers_and_bytes_are_counted_from_the_trace(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    trace.touch()
    handovers = Handovers.of(trace)
    assert list(handovers.new()) == []
    write(trace,
          {"at": 1, "pid": 10, "event": "memory-changed", "memory": memory(5, 5)},
          {"at": 2, "pid": 10, "report": "turn-started", "client": 1},
          {"at": 3, "pid": 10, "event": "evicted", "bytes": 3, "memory": memory(2, 5)},
          {"at": 4, "pid": 11, "event": "loaded", "bytes": 4, "memory": memory(4, 4)},
          {"at": 5, "pid": 11, "report": "turn-started", "client": 2})
    first, second = handovers.new()
    assert (first.at, first.pid, first.places) == (2, 10, {10: Place(6, 0)})
    assert (second.pid, second.places) == (11, {10: Place(3, 3), 11: Place(5, 0)})
    # The same program again is a turn and no hand-over.
    write(trace, {"at": 6, "pid": 11, "report": "turn-started", "client": 2})
    assert len(list(handovers.new())) == 1
    handovers.close()
    assert (handovers.handovers, handovers.bytes_out, handovers.bytes_in) == (1, 3, 4)


def test_a_line_that_is_only_begun_is_read_when_it_is_whole(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    line = json.dumps({"at": 1, "pid": 10, "report": "turn-started"}) + "\n"
    trace.write_text(line[:9])
    handovers = Handovers.of(trace)
    assert list(handovers.new()) == []
    with trace.open("a") as file:
        file.write(line[9:])
    assert [turn.pid for turn in handovers.new()] == [10]
    handovers.close()


def test_the_two_programs_do_not_fit_together_but_each_alone() -> None:
    for capacity in (256 * MIB, 512 * MIB, 8 << 30):
        one, two = tasks(replace(CARD, capacity=capacity))
        assert one.memory == two.memory <= 0.7 * capacity
        assert one.memory + two.memory > capacity
        assert one.memory >= one.chunk
        assert one.seed != two.seed


RIGHT_A = Outcome(A, 0, "aa", True, 1.0, "")
RIGHT_B = Outcome(B, 0, "bb", True, 2.0, "")
REFUSED = Outcome(B, 3, "", False, 0.0, "out of memory: …")
SHARED = Act("shared", (RIGHT_A, RIGHT_B), 2.0, 7, 3 * MIB)
IN_TURN = Act("in turn", (RIGHT_A, RIGHT_B), 3.0)
UNSHARED = Act("unshared", (RIGHT_A, REFUSED), 1.0)
GOOD = Report(CARD, SHARED, IN_TURN, UNSHARED)


def test_all_is_well() -> None:
    assert GOOD.faults() == []
    assert json.loads(json.dumps(GOOD.as_dict()))["acts"][0]["hand_overs"] == 7


def with_outcomes(act: Act, one: Outcome, two: Outcome) -> Act:
    """The act, gone otherwise."""
    return replace(act, outcomes=(one, two))


@pytest.mark.parametrize(
    ("report", "fault"),
    [
        (replace(GOOD, shared=with_outcomes(SHARED, replace(RIGHT_A, right=False), RIGHT_B)),
         "shared: A WRONG"),
        (replace(GOOD, shared=with_outcomes(SHARED, RIGHT_A, REFUSED)), "shared: B out of memory"),
        (replace(GOOD, in_turn=with_outcomes(
            IN_TURN, RIGHT_A, Outcome(B, -11, "", False, 0.0, ""))),
         "in turn: B failed: status -11"),
        (replace(GOOD, in_turn=with_outcomes(IN_TURN, replace(RIGHT_A, checksum="cc"), RIGHT_B)),
         "A has the checksum aa together and cc alone"),
        (replace(GOOD, unshared=with_outcomes(UNSHARED, REFUSED, REFUSED)),
         "unshared: B out of memory"),
        (replace(GOOD, unshared=with_outcomes(
            UNSHARED, RIGHT_A, Outcome(B, 1, "", False, 0.0, "the driver failed"))),
         "unshared: B failed: the driver failed"),
    ],
)
def test_what_is_wrong_is_said(report: Report, fault: str) -> None:
    assert fault in report.faults()


def test_the_table() -> None:
    lines = [line.split("  ") for line in plain(COLUMNS, GOOD.acts).splitlines()]
    assert [line[0] for line in lines] == ["TWO PROGRAMS", "shared", "in turn", "unshared"]
    assert [line[-1] for line in lines] == [
        "RESULTS", "A right, B right", "A right, B right", "A right, B out of memory",
    ]


def test_in_a_pipe_each_turn_is_a_line(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    write(trace,
          {"at": 1, "pid": 11, "event": "evicted", "bytes": 1, "memory": memory(MIB, 3 * MIB)},
          {"at": 2, "pid": 10, "event": "loaded", "bytes": 1, "memory": memory(4 * MIB, 4 * MIB)},
          {"at": 3, "pid": 10, "report": "turn-started"})
    handovers = Handovers.of(trace)
    seen = StringIO()
    lines = Lines(seen)
    lines.act("An act.")
    lines.began(A, 10)
    lines.began(B, 11)
    for turn in handovers.new():
        lines.turned(turn)
    handovers.close()
    assert seen.getvalue().startswith("\nAn act.\n")
    last = seen.getvalue().splitlines()[-1].partition(" s  ")[2]
    assert last == "A holds the GPU; A has 4.0M on it, B has 1.0M on it and 2.0M in host memory"
