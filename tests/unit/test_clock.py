# SPDX-License-Identifier: Apache-2.0
import asyncio

import pytest

from nvshared.clock import repeat


async def test_repeat_logs_an_exception_and_makes_the_next_call(
        caplog: pytest.LogCaptureFixture) -> None:
    second_call = asyncio.Event()
    calls = 0

    async def act() -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ZeroDivisionError
        second_call.set()

    running = asyncio.create_task(repeat(0, act))
    async with asyncio.timeout(60):
        await second_call.wait()
    running.cancel()
    assert "ZeroDivisionError" in caplog.text
