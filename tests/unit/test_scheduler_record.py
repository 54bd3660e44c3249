# SPDX-License-Identifier: Apache-2.0
"""The scheduler's decisions for recorded sequences of random events are unchanged.

A change that is meant to change decisions renews the record and says which and why:

    python -m tests.unit.scheduler_record 0 100 > tests/unit/scheduler_record.txt
"""

from pathlib import Path

import pytest

from tests.unit.scheduler_record import record

RECORD = Path(__file__).with_name("scheduler_record.txt")
DIGESTS = dict(line.split() for line in RECORD.read_text().splitlines())
AT_ONCE = 10


def test_recorded_scheduler_decisions_cover_a_hundred_seeds() -> None:
    assert list(DIGESTS) == [str(seed) for seed in range(100)]


@pytest.mark.parametrize("first", range(0, len(DIGESTS), AT_ONCE))
def test_scheduler_decisions_for_recorded_event_sequences_are_unchanged(first: int) -> None:
    seeds = list(map(str, range(first, first + AT_ONCE)))
    decided = {seed: record(int(seed)) for seed in seeds}
    assert decided == {seed: DIGESTS[seed] for seed in seeds}
