# SPDX-License-Identifier: Apache-2.0
"""What the daemon's trace tells about requests to models."""

from bench.models.parts import moved
from bench.models.program import Answer


def test_moved_writebacks_of_the_same_bytes_are_no_evictions() -> None:
    trace = [
        {"at": at, "event": event, "bytes": size} for at, event, size in (
            (5, "evicted", 1000), (12, "written-back", 40), (13, "written-back", 80),
            (14, "evicted", 80), (15, "loaded", 70), (25, "loaded", 1000))]
    answer = Answer(0, due=10, began=11, ended=20, right=True)
    assert moved(trace, [answer]) == (80, 70)
