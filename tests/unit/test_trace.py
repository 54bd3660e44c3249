# SPDX-License-Identifier: Apache-2.0
"""The trace says what moved and how fast, and a full disk ends it with one line."""

import json
from pathlib import Path

import pytest

from nvshared.report.trace import Trace
from nvshared.scheduler.actions import Evict, TurnEnd, TurnEnded, TurnStarted
from nvshared.scheduler.events import Evicted, Memory, Tick
from nvshared.sharing.gpu import GPU
from tests.unit.scripted import (
    FACTS,
    NO_RESERVE,
    SETTINGS,
    Noted,
    Scripted,
    Time,
    joined,
    script,
)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> GPU:
    script(monkeypatch)
    time = Time()
    return GPU(FACTS, SETTINGS, NO_RESERVE, time.clock, time.timer)


def test_orders_answers_and_turns_are_lines(gpu: GPU, tmp_path: Path) -> None:
    trace = Trace(tmp_path / "trace")
    trace.add(gpu)
    joined(gpu, 1, Noted())
    Scripted.latest.decide = lambda event: [
        Evict(1, 7, 0, 9), TurnStarted(1), TurnEnded(1, TurnEnd.QUANTUM, 5)
    ] if isinstance(event, Tick) else []
    gpu.tell(Tick())
    gpu.tell(Evicted(1, Memory(host=3), 7, 4096, 25))
    trace.close()
    gpu.tell(Tick())
    lines = [json.loads(line) for line in (tmp_path / "trace").read_text().splitlines()]
    head = {"at": 1_000_000_000, "gpu": 0, "client": 1, "pid": 4001}
    assert [next(iter(set(line) & {"event", "order", "report"})) for line in lines] == [
        "event", "order", "order", "report", "report", "event"
    ]
    assert lines[2] == {
        **head, "order": "evict", "number": 7, "room": 0, "host": 9, "ahead": False,
    }
    assert lines[3] == {**head, "report": "turn-started"}
    assert lines[4] == {**head, "report": "turn-ended", "reason": "quantum", "held_time": 5}
    assert lines[5].items() >= {
        **head, "event": "evicted", "number": 7, "bytes": 4096, "microseconds": 25
    }.items()
    assert lines[5]["memory"]["host"] == 3


def test_a_full_disk_ends_the_trace_and_nothing_else(
    gpu: GPU, caplog: pytest.LogCaptureFixture
) -> None:
    trace = Trace(Path("/dev/full"))
    trace.add(gpu)
    link = Noted()
    joined(gpu, 1, link)
    gpu.tell(Evicted(1, Memory(), 7, 4096, 25))
    trace.close()
    assert [r.getMessage() for r in caplog.records if r.levelname == "WARNING"] == [
        "the trace ends here, /dev/full takes no more: No space left on device"
    ]
    assert len(link.orders) == 1
