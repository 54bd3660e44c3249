# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C, a closed terminal and `kill` all end the demonstration in the same orderly way.

The signal cancels the one task there is. Cancellation arrives where that task
waits and nowhere else, so whatever was made is known to the block that
removes it again. More signals change nothing: what ends is ending already.
"""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):
    """A signal ended it."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.number = number


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """asyncio.run(), with Interrupted raised for a signal, once everything is cleared away."""
    return asyncio.run(_guarded(main))


async def _guarded(main: Coroutine[Any, Any, Result]) -> Result:
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    received: list[signal.Signals] = []

    def interrupt(number: signal.Signals) -> None:
        if not received:
            task.cancel()
        received.append(number)

    for number in SIGNALS:
        loop.add_signal_handler(number, interrupt, number)
    try:
        return await main
    except asyncio.CancelledError:
        if received:
            raise Interrupted(received[0]) from None
        raise
