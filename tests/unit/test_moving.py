# SPDX-License-Identifier: Apache-2.0
"""What one account may cost by programs whose state no helper knows."""

import asyncio

import pytest

from nvshared.sharing import moving


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


def test_pacing_lets_an_account_ask_a_few_helpers_at_a_time() -> None:
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
