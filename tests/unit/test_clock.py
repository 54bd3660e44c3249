# SPDX-License-Identifier: Apache-2.0
import asyncio

import pytest

from nvshared.clock import repeat


async def test_repeat_logs_only_the_first_of_three_exceptions_and_continues(
        caplog: pytest.LogCaptureFixture) -> None:
    fourth_call = asyncio.Event()
    calls = 0

    async def act() -> None:
        nonlocal calls
        calls += 1
        if calls == 4:
            fourth_call.set()
        else:
            raise ZeroDivisionError

    running = asyncio.create_task(repeat(0, act))
    async with asyncio.timeout(60):
        await fourth_call.wait()
    running.cancel()
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 1
    assert "ZeroDivisionError" in caplog.text
