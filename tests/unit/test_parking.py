# SPDX-License-Identifier: Apache-2.0
"""Replies that the daemon accepts as an answer to PARK."""

import asyncio
import os

import pytest

from nvshared.errors import NvshareError, ProtocolError
from nvshared.hook import parking
from nvshared.hook.parking import ParkedHook
from nvshared.hook.protocol import Park, ReportRecord, Type


def answer(number: int, park: int) -> ReportRecord:
    return ReportRecord(Type.PARKED, number=number, moved=park)


def test_park_order_ignores_a_late_reply_to_an_earlier_park_order(
        monkeypatch: pytest.MonkeyPatch) -> None:
    async def park_twice() -> None:
        hook = ParkedHook(lambda packet, page: None)
        with monkeypatch.context() as patched:
            patched.setattr(parking, "PATIENCE", 0)
            with pytest.raises(NvshareError, match="does not answer"):
                await hook.park(0, ahead=False)
        hook.unpark(bytes(16))
        second = asyncio.create_task(hook.park(0, ahead=False))
        await asyncio.sleep(0)
        hook.handle_parked(answer(1, Park.DONE))
        hook.handle_parked(answer(2, Park.BUSY))
        with pytest.raises(NvshareError, match=parking.REFUSALS[Park.BUSY]):
            await second

    asyncio.run(park_twice())


def test_park_order_with_an_unknown_reply_raises_a_protocol_error() -> None:
    hook = ParkedHook(lambda packet, page: None)
    with pytest.raises(ProtocolError, match="99"):
        hook.handle_parked(answer(1, 99))


def test_descriptor_of_an_order_held_back_during_a_park_is_closed_with_the_connection() -> None:
    parked = ParkedHook(lambda _, __: None)
    parked.take_over()
    read, write = os.pipe()
    parked.hold(b"", write, None)
    parked.end()
    assert os.read(read, 1) == b""      # the pipe has no writer any more
    os.close(read)
