# SPDX-License-Identifier: Apache-2.0
"""Usage totals, compared with sums made at each event, and the forecast of waits."""

from collections import Counter

import pytest

from nvshared.scheduler.actions import ClientState, Run, Stop
from nvshared.scheduler.events import (
    AntiThrash,
    Event,
    Left,
    Settings,
    Terms,
    TermsChanged,
    Tick,
    WentIdle,
)
from nvshared.scheduler.snapshot import Forecast
from nvshared.scheduler.tenants import MIB_SECOND
from nvshared.scheduler.turn import OTHERS_IDLE
from nvshared.units import MIB, SECOND
from tests.unit.scheduler_talk import Talk
from tests.unit.scheduler_world import World

NEAR = 2                                # us: rounding error of a sum of thousands of parts
WANTING = {ClientState.WAITING, ClientState.LIMITED, ClientState.LOADING, ClientState.CROWDED}


class Watched(World):
    def __init__(self, settings: Settings, seed: int) -> None:
        self.seen = 1_000_000
        self.gpu: Counter[int] = Counter()
        self.parts: dict[int, float] = {}
        self.waited: Counter[int] = Counter()
        self.card: Counter[int] = Counter()
        self.busy = 0
        self.gone = 0.0                 # time held by disconnected clients
        super().__init__(settings, seed, jobs=True)

    def tell(self, event: Event) -> None:
        self.sum_up()
        if isinstance(event, Left):
            self.compare(event.client)
            self.gone += self.parts.pop(event.client, 0)
        super().tell(event)

    def sum_up(self) -> None:
        passed, self.seen = self.now - self.seen, self.now
        now = self.scheduler.snapshot()
        using = [holder for holder in now.holders if now.clients[holder].idle is None]
        for holder in using:
            self.parts[holder] = self.parts.get(holder, 0) + passed / len(using)
        self.busy += passed if using else 0
        for id, client in self.scheduler._card.clients.items():
            self.card[id] += passed * client.memory.filled
            self.waited[id] += passed if client.phase.value in WANTING else 0

    def compare(self, id: int) -> None:
        found = self.scheduler.usage(id, self.now)
        assert found.gpu == pytest.approx(self.parts.get(id, 0), abs=NEAR)
        assert found.card_memory == self.card[id] // MIB_SECOND
        assert found.waited == self.waited[id]
        assert found.gpu <= found.held + NEAR
        assert found.handovers <= found.turns


@pytest.mark.parametrize("seed", range(2))
def test_usage_divides_the_cards_time_among_holders(seed: int) -> None:
    world = Watched(Settings(
        capacity=1024 * MIB, total=1024 * MIB, host_budget=4096 * MIB, step=128 * MIB,
        tq=SECOND // 2, anti_thrash=AntiThrash.AUTO, gather=0), seed)
    hooks = [world.join() for _ in range(5)]
    world.advance(SECOND // 10)
    for number, hook in enumerate(hooks):
        hook.allocate((100 + 150 * number) * MIB)
    for second in range(12):
        for hook in [*world.hooks.values()]:
            hook.compute(world.random.randint(1, SECOND))
        world.advance(SECOND)
        if second == 6:
            world.kill(hooks[1])
    world.advance(5 * SECOND)
    world.sum_up()
    for id in world.hooks:
        world.compare(id)
    used = [world.scheduler.usage(id, world.now) for id in world.hooks]
    assert sum(one.gpu for one in used) + world.gone == pytest.approx(world.busy, abs=10 * NEAR)
    assert world.busy > 5 * SECOND
    assert sum(one.handovers for one in used) > 0
    assert sum(one.handover for one in used) <= world.scheduler.snapshot().counters.handover
    assert not any(world.scheduler.usage(hooks[1].id, world.now))       # it has left


def test_holder_without_work_is_shown_as_idle_and_uses_no_gpu_time() -> None:
    talk = Talk(capacity=100)
    talk.run(1, 40)
    talk.run(2, 40)
    talk.wait(10)
    talk.idle(1)
    before = talk.scheduler.usage(1, int(talk.now)).gpu
    talk.wait(20)
    talk.tell(Tick())
    assert talk.view(1).state is ClientState.RUNNING
    assert talk.view(1).idle == 20 * SECOND + OTHERS_IDLE
    assert talk.view(2).idle is None
    assert talk.scheduler.usage(1, int(talk.now)).gpu == before
    assert talk.scheduler.usage(2, int(talk.now)).gpu == before + 20 * SECOND
    talk.tell(WentIdle(1, talk.memory[1], resumed=True))
    assert talk.view(1).idle is None
    talk.wait(10)
    assert talk.scheduler.usage(1, int(talk.now)).gpu == before + 5 * SECOND


def test_holder_idle_before_others_wait_is_stopped_only_if_its_hook_says_so_again() -> None:
    talk = Talk(capacity=100)
    talk.run(1, 70)
    talk.idle(1)
    talk.join(2, 70, commit=70)
    actions = talk.want(2)
    assert not any(isinstance(one, Stop) for one in actions)
    assert any(isinstance(one, Run) and one.idle_window < OTHERS_IDLE for one in actions)
    assert Stop(1) in talk.idle(1)


TQ = 30
COST = 4                                # seconds to load 70 GiB at the assumed speed, and a margin


def waits(talk: Talk) -> dict[int, Forecast]:
    return dict(talk.scheduler.snapshot().waits)


def seconds(talk: Talk, client: int) -> int:
    """The remaining time of the client's wait, rounded to seconds."""
    left = talk.scheduler.snapshot().waits[client].left
    assert left is not None
    return round(left / SECOND)


def test_expected_wait_of_a_client_is_the_sum_of_the_turns_ahead_in_the_queue() -> None:
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


def test_expected_wait_with_anti_thrash_on_includes_a_turn_for_each_client_ahead() -> None:
    talk = Talk(mode=AntiThrash.ON)
    talk.run(1, 10)
    for client in (2, 3):
        talk.run(client, 10)
    assert seconds(talk, 3) >= seconds(talk, 2) + TQ


def test_expected_wait_of_a_client_that_never_fits_is_unknown() -> None:
    talk = Talk()
    talk.join(1, 0, pinned=60)
    talk.run(2, 30)
    talk.run(3, 70)
    assert waits(talk)[3] == Forecast(1, None)


def test_expected_wait_is_unknown_while_the_holder_finishes_work_that_takes_long() -> None:
    talk = Talk()
    talk.run(1, 70)
    talk.run(2, 70)
    talk.run(3, 70)
    talk.wait(TQ)
    talk.tell(Tick())
    assert talk.view(1).state is ClientState.DRAINING
    assert waits(talk)[2].left is not None
    talk.wait(5)
    talk.tell(Tick())
    assert waits(talk) == {2: Forecast(1, None), 3: Forecast(2, None)}


def test_expected_wait_of_a_compute_limited_client_ends_with_the_next_accounting_window() -> None:
    talk = Talk()
    talk.run(1, 10)
    talk.tell(TermsChanged(1, Terms(compute_limit=50)))
    talk.wait(1.5)
    talk.stopped(1)
    wait = waits(talk)[1]
    assert wait.position == 0
    assert wait.left == SECOND * 3 // 2
