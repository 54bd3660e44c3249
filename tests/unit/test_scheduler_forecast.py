# SPDX-License-Identifier: Apache-2.0
"""Where those who wait stand, and about how much longer they wait."""

from nvshared.scheduler.events import TermsChanged, Tick
from nvshared.scheduler.settings import AntiThrash, Terms
from nvshared.scheduler.snapshot import Wait
from nvshared.units import SECOND
from tests.unit.scheduler_talk import Talk

TQ = 30
COST = 4                                # to bring in 70 GiB at the usual pace, and more


def waits(talk: Talk) -> dict[int, Wait]:
    return dict(talk.scheduler.snapshot().waits)


def seconds(talk: Talk, client: int) -> int:
    """What is left, to the second."""
    left = talk.scheduler.snapshot().waits[client].left
    assert left is not None
    return round(left / SECOND)


def test_forecast_where_no_client_waits_is_empty() -> None:
    talk = Talk()
    talk.run(1, 70)
    talk.join(2, 70)
    assert waits(talk) == {}
    assert talk.view(2).waiting is None


def test_forecast_sums_the_turns_that_come_before() -> None:
    talk = Talk()
    talk.run(1, 70)
    for client in (2, 3, 4):
        talk.run(client, 70)
    talk.wait(10)
    talk.tell(Tick())
    assert [waits(talk)[client].position for client in (2, 3, 4)] == [1, 2, 3]
    first, second, third = (seconds(talk, client) for client in (2, 3, 4))
    assert TQ - 10 < first <= TQ - 10 + COST
    assert first + TQ < second <= first + TQ + COST
    assert second + TQ < third <= second + TQ + COST
    assert talk.view(4).waiting == 10 * SECOND
    assert talk.view(1).waiting is None


def test_forecast_is_equal_for_waiting_clients_that_fit_together() -> None:
    talk = Talk()
    talk.run(1, 90)
    for client in (2, 3):
        talk.run(client, 45)
    assert [waits(talk)[client].position for client in (2, 3)] == [1, 2]
    assert abs(seconds(talk, 2) - seconds(talk, 3)) <= COST


def test_forecast_with_anti_thrash_on_adds_a_turn_per_client() -> None:
    talk = Talk(mode=AntiThrash.ON)
    talk.run(1, 10)
    for client in (2, 3):
        talk.run(client, 10)
    assert seconds(talk, 3) >= seconds(talk, 2) + TQ


def test_forecast_of_a_client_that_never_fits_is_unknown() -> None:
    talk = Talk()
    talk.join(1, 0, pinned=60)
    talk.run(2, 30)
    talk.run(3, 70)
    assert waits(talk)[3] == Wait(1, None)


def test_forecast_of_a_limited_client_is_the_next_window() -> None:
    talk = Talk()
    talk.run(1, 10)
    talk.tell(TermsChanged(1, Terms(compute_limit=50)))
    talk.wait(1.5)
    talk.stopped(1)
    wait = waits(talk)[1]
    assert wait.position == 0
    assert wait.left == SECOND * 3 // 2
