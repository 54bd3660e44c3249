# SPDX-License-Identifier: Apache-2.0
"""What programs may cost that cannot be parked."""

import asyncio

import pytest

from nvshared.errors import NvshareError
from nvshared.machine.checkpoint import Answer, Step
from nvshared.machine.nvml import Sample
from nvshared.sharing import moving
from nvshared.sharing.gpu import GPU
from nvshared.sharing.manager import Manager
from tests.unit.scripted import DEFAULTS, FACTS, Noted, Time, joined


class QuietHook:
    """A hook that keeps its threads out of the driver when it is told to."""

    wanted = False

    async def park(self, *, ahead: bool) -> None:
        """As Parkable.park."""

    def leave_card(self) -> None:
        """As Parkable.leave_card."""

    def stay(self) -> None:
        """As Parkable.stay."""

    def return_to(self, gpu: GPU) -> None:
        """As Parkable.return_to."""


def test_pacing_pauses_for_longer_with_each_failure_up_to_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    async def fail_often() -> None:
        pacing = moving._Pacing()
        for _ in range(9):
            async with pacing.next():
                pacing.failures += 1
        pacing.failures = 0
        async with pacing.next():
            pass

    monkeypatch.setattr(asyncio, "sleep", sleep)
    asyncio.run(fail_often())
    assert pauses == [2, 4, 8, 16, 32, 60, 60]


def test_pacing_bounds_simultaneous_calls_of_helpers() -> None:
    most: list[int] = []

    async def ask_many() -> None:
        pacing, asked = moving._Pacing(), 0

        async def ask() -> None:
            nonlocal asked
            async with pacing.next():
                asked += 1
                most.append(asked)
                await asyncio.sleep(0)
                asked -= 1

        await asyncio.gather(*[ask() for _ in range(100)])

    asyncio.run(ask_many())
    assert max(most) == moving.AT_ONCE


def test_idle_client_is_not_parked_again_soon_after_a_temporary_refusal() -> None:
    asked: list[str] = []

    async def refuse(command: str, *_: object) -> Answer:
        asked.append(command)
        steps = (Step("lock", 600, 0, "not ready"),) if command == "park" else ()
        return Answer("running", steps)

    async def park_and_idle() -> None:
        time = Time()
        manager = Manager(lambda: DEFAULTS, time.clock, time.timer)
        gpu = manager.add(FACTS, Sample(), gather=False)
        client = joined(gpu, 1, Noted())
        client.parkable = QuietHook()
        one = moving.Moving([gpu], refuse)
        one.deep_idle = 0
        with pytest.raises(NvshareError, match="not ready"):
            await one.park(client, ahead=True)
        assert not client.unparkable
        assert not one._is_idle_for_long(client)
        time.pass_by(moving.PASSES_IN)
        assert one._is_idle_for_long(client)

    asyncio.run(park_and_idle())
    assert asked == ["state", "park"]
