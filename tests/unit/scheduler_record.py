# SPDX-License-Identifier: Apache-2.0
"""Records the scheduler's decisions for sequences of random events, one digest for each seed.

    python -m tests.unit.scheduler_record 0 100

prints the digests of seeds 0 to 99. A change that is meant to keep all decisions keeps all digests.
"""

import sys
from hashlib import sha256
from unittest import mock

from nvshared.scheduler import Scheduler
from nvshared.scheduler.actions import Action
from nvshared.scheduler.events import Event
from tests.unit import scheduler_world
from tests.unit.scheduler_world import World
from tests.unit.test_scheduler_rows import Row

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


if __name__ == "__main__":
    for seed in range(*map(int, sys.argv[1:3])):
        print(seed, record(seed), flush=True)
