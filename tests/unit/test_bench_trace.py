# SPDX-License-Identifier: Apache-2.0
"""How the duration of hand-overs is found in a daemon's trace."""

from bench.handover.passage import handovers
from bench.trace import Line, TurnChange, turn_changes

STOP: Line = {"at": 1_000, "client": 1, "order": "stop"}
STOPPED: Line = {"at": 1_400, "client": 1, "event": "stopped", "microseconds": 300, "wants": False}


def wants(at: int, client: int, whether: bool = True) -> Line:
    return {"at": at, "client": client, "event": "memory-changed", "wants": whether}


def started(at: int, client: int) -> Line:
    return {"at": at, "client": client, "report": "turn-started"}


def test_turn_change_after_a_client_wanted_the_gpu_begins_at_stop() -> None:
    trace = [wants(500, 2), STOP, STOPPED, started(9_000, 2)]
    assert list(turn_changes(trace)) == [TurnChange(2, 1_000, 1_300, 9_000)]


def test_turn_change_to_a_client_that_wants_the_gpu_after_stop_begins_then() -> None:
    trace = [STOP, STOPPED, wants(6_000_000, 2), started(6_008_000, 2)]
    one, = turn_changes(trace)
    assert (one.began, one.drained, one.ms) == (6_000_000, 6_000_000, 8.0)
    assert [found.stop_to_run_ms for found in handovers(
        [{**line, "bytes": 0} for line in trace])] == [8.0]


def test_turn_change_to_a_client_that_wanted_the_gpu_again_begins_at_its_last_wish() -> None:
    trace = [wants(100, 2), wants(200, 2, False), STOP, STOPPED, wants(5_000, 2), wants(5_500, 2),
             started(7_000, 2)]
    assert [one.began for one in turn_changes(trace)] == [5_000]


def test_turn_changes_without_another_clients_turn_are_none() -> None:
    reopened: Line = {"at": 1_200, "client": 1, "event": "reopened"}
    assert not list(turn_changes([STOP, STOPPED, started(2_000, 1)]))
    assert not list(turn_changes([wants(500, 2), STOP, reopened, started(2_000, 2)]))


def test_hand_over_from_a_client_that_did_not_drain_is_no_passage() -> None:
    trace = [wants(500, 2), STOP, started(9_000, 2)]
    assert [one.drained for one in turn_changes(trace)] == [None]
    assert handovers(trace) == []
