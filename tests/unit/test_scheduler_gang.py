# SPDX-License-Identifier: Apache-2.0
"""Members of a gang on one card: whose memory leaves while they are kept out."""

import pytest

from nvshared.scheduler.actions import TurnEnd, TurnEnded
from nvshared.scheduler.events import Ganged, Standing
from nvshared.units import GIB
from tests.unit.scheduler_talk import Talk, runs

ONE, OTHER = ("user:1",), ("user:2",)
SHARED = [("user:1", f"job:{number}") for number in range(3)]


@pytest.mark.parametrize(
    "tenants", [(ONE, OTHER, OTHER), SHARED], ids=["its own line", "a line with others"])
def test_evict_takes_memory_of_a_client_that_waits_for_the_gang(
    tenants: list[tuple[str, ...]],
) -> None:
    talk = Talk(100)
    for client, whose in enumerate(tenants, 1):
        talk.obey(talk.join(client, 60, tenants=whose))
    talk.obey(talk.want(1))
    talk.tell(Ganged((1,), 1, Standing.APART))
    said = talk.stopped(1, wants=True)
    assert TurnEnd.GANG in [one.reason for one in said if isinstance(one, TurnEnded)]
    assert 2 in runs(talk.obey(talk.want(2)))
    talk.obey(talk.want(3))
    assert talk.memory[1].resident < 60 * GIB
