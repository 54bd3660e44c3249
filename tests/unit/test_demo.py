# SPDX-License-Identifier: Apache-2.0
"""The figures and the faults that the demonstration reports."""

import json
from pathlib import Path

import pytest

from nvshared import demo
from nvshared.demo import Act, DemoGPU, Handovers, Outcome, Report, play, tasks
from nvshared.errors import NvshareError
from nvshared.units import MIB

CARD = DemoGPU("a card", 512 * MIB, 512 * MIB, True, "in a test", 0, {})
A, B = tasks(CARD)


def memory(resident: int, allocated: int) -> dict[str, int]:
    return {"resident": resident, "allocated": allocated, "pinned": 1, "host": 1 << 40}


def write(trace: Path, *lines: dict[str, object]) -> None:
    with trace.open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def test_demo_counts_hand_overs_and_moved_bytes_in_the_trace_of_the_daemon(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    trace.touch()
    handovers = Handovers(trace.open())
    assert list(handovers.new()) == []
    write(trace,
          {"at": 1, "pid": 10, "event": "memory-changed", "memory": memory(5, 5)},
          {"at": 2, "pid": 10, "report": "turn-started", "client": 1},
          {"at": 3, "pid": 10, "event": "evicted", "bytes": 3, "memory": memory(2, 5)},
          {"at": 4, "pid": 11, "event": "loaded", "bytes": 4, "memory": memory(4, 4)},
          {"at": 5, "pid": 11, "report": "turn-started", "client": 2})
    assert [(pid, dict(handovers.memory)) for pid in handovers.new()] == [
        (10, {10: (6, 0)}), (11, {10: (3, 3), 11: (5, 0)})]
    # The same program again is a turn and no hand-over.
    write(trace, {"at": 6, "pid": 11, "report": "turn-started", "client": 2})
    assert len(list(handovers.new())) == 1
    handovers.trace.close()
    assert (handovers.handovers, handovers.bytes_out, handovers.bytes_in) == (1, 3, 4)


def test_demo_reads_only_complete_lines_of_the_trace(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    line = json.dumps({"at": 1, "pid": 10, "report": "turn-started"}) + "\n"
    trace.write_text(line[:9])
    handovers = Handovers(trace.open())
    assert list(handovers.new()) == []
    with trace.open("a") as file:
        file.write(line[9:])
    assert list(handovers.new()) == [10]
    handovers.trace.close()


async def test_demo_on_a_small_gpu_fails_at_once_and_names_the_memory_needed(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    """On such a GPU, nvshared's reserve would leave too little for the two programs."""
    monkeypatch.setattr(demo, "SIMULATED_MEMORY", 64 * MIB)
    with pytest.raises(NvshareError, match="64 MiB of memory can be used, and 256 MiB are needed"):
        await play(simulate=True)


RIGHT_A = Outcome(A, 0, "aa", True, 1.0, "")
RIGHT_B = Outcome(B, 0, "bb", True, 2.0, "")
REFUSED = Outcome(B, 3, "", False, 0.0, "out of memory: …")
SHARED = Act("shared", (RIGHT_A, RIGHT_B), 2.0, 7, 3 * MIB)
IN_TURN = Act("in turn", (RIGHT_A, RIGHT_B), 3.0)
UNSHARED = Act("unshared", (RIGHT_A, REFUSED), 1.0)
GOOD = Report(CARD, SHARED, IN_TURN, UNSHARED)


@pytest.mark.parametrize(("act", "outcomes", "fault"), [
    ("shared", (RIGHT_A._replace(right=False), RIGHT_B), "shared: A WRONG"),
    ("shared", (RIGHT_A, REFUSED), "shared: B out of memory"),
    ("in_turn", (RIGHT_A, Outcome(B, -11, "", False, 0.0, "")), "in turn: B failed: status -11"),
    ("in_turn", (RIGHT_A._replace(checksum="cc"), RIGHT_B),
     "A has the checksum aa together and cc alone"),
    ("unshared", (REFUSED, REFUSED), "unshared: B out of memory"),
    ("unshared", (RIGHT_A, Outcome(B, 1, "", False, 0.0, "the driver failed")),
     "unshared: B failed: the driver failed"),
])
def test_demo_report_names_each_fault_of_the_run(
        act: str, outcomes: tuple[Outcome, Outcome], fault: str) -> None:
    assert GOOD.faults() == []
    assert json.loads(json.dumps(GOOD.as_dict()))["acts"][0]["hand_overs"] == 7
    wrong: Act = getattr(GOOD, act)._replace(outcomes=outcomes)
    assert fault in GOOD._replace(**{act: wrong}).faults()      # type: ignore[arg-type]
