# SPDX-License-Identifier: Apache-2.0
"""The scheduler's decisions for recorded sequences of random events are unchanged.

A change that is meant to change decisions renews the record, one digest for each seed, and
its commit message says which decisions change and why:

    python -m tests.unit.test_scheduler_record 0 100 > tests/unit/scheduler_record.txt
"""

import sys
from hashlib import sha256
from pathlib import Path
from unittest import mock

import pytest

from nvshared.scheduler import Scheduler
from nvshared.scheduler.actions import Action
from nvshared.scheduler.events import Event
from tests.unit import scheduler_world
from tests.unit.scheduler_world import World
from tests.unit.test_scheduler_rows import Row

RECORD = Path(__file__).with_name("scheduler_record.txt")
DIGESTS = dict(line.split() for line in RECORD.read_text().splitlines())
AT_ONCE = 10
DIGITS = 16
NO_LOAN = ", loan=0, lender=''"         # fields added to orders after the digests were made


def record(seed: int) -> str:
    """Digest of all actions and deadlines of a sequence, without its teardown, with their times."""
    digest = sha256()

    class Recorded(Scheduler):
        def handle(self, event: Event, now: int) -> list[Action]:
            actions = super().handle(event, now)
            said = repr((now, actions, self.deadline())).replace(NO_LOAN, "")
            digest.update(said.encode())
            return actions

    # Other tests check the invariants; without these checks a sequence takes half of the time.
    with (
        mock.patch.object(scheduler_world, "Scheduler", Recorded),
        mock.patch.object(World, "check", return_value=None),
    ):
        Row(seed).happens()
    return digest.hexdigest()[:DIGITS]


@pytest.mark.parametrize("first", range(0, 100, AT_ONCE))
def test_scheduler_decisions_for_recorded_event_sequences_are_unchanged(first: int) -> None:
    seeds = list(map(str, range(first, first + AT_ONCE)))
    decided = {seed: record(int(seed)) for seed in seeds}
    assert decided == {seed: DIGESTS[seed] for seed in seeds}


if __name__ == "__main__":
    for seed in range(*map(int, sys.argv[1:3])):
        print(seed, record(seed), flush=True)
