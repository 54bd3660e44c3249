# SPDX-License-Identifier: Apache-2.0
"""What hand-overs between two engines are measured by."""

from bench.rl.measure import Phase, until_stop


def test_until_stop_a_phase_without_a_stop_before_the_next_one_ends_is_left_out() -> None:
    found = [Phase(0, 1000, 1), Phase(0, 5000, 1), Phase(0, 9000, 1), Phase(0, 12000, 1)]
    trace = [{"at": at, "order": order} for at, order in (
        (900, "stop"), (1500, "run"), (3000, "stop"), (9250, "stop"), (13000, "stop"))]
    assert until_stop(found, trace) == [2.0, 0.25]
