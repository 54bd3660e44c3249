# SPDX-License-Identifier: Apache-2.0
"""Prints a digest of the scheduler's decisions for each of some sequences of random events:

    python -m tests.unit.scheduler_digests 0 100

Before and after a change that is to keep all decisions, the output is equal.
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


def digest(seed: int) -> str:
    """Digest of all actions and deadlines of a sequence, without its teardown, with their times."""
    found = sha256()

    class Recorded(Scheduler):
        def handle(self, event: Event, now: int) -> list[Action]:
            actions = super().handle(event, now)
            found.update(repr((now, actions, self.deadline())).encode())
            return actions

    # Other tests check the invariants; without these checks a sequence takes half of the time.
    with (
        mock.patch.object(scheduler_world, "Scheduler", Recorded),
        mock.patch.object(World, "check", return_value=None),
    ):
        Row(seed).happens()
    return found.hexdigest()[:DIGITS]


if __name__ == "__main__":
    for seed in range(*map(int, sys.argv[1:3])):
        print(seed, digest(seed), flush=True)
