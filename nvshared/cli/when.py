# SPDX-License-Identifier: Apache-2.0
"""Moments as people give them on the command line, and as they are shown."""

import re
import time
from datetime import datetime, timedelta

from nvshared import quantity
from nvshared.errors import InvalidArgs
from nvshared.units import SECOND

RIGHT = "give how long ago, as in 7d or 90min, or a date, as in 2026-11-01 or 2026-11-01T08:30"
STEPS = {"minute": 60 * SECOND, "hour": 3600 * SECOND, "day": 86400 * SECOND}
LONGEST_STEP = 366 * STEPS["day"]


def moment(text: str) -> int:
    """Microseconds since 1970; dates are of the local time zone. Raises InvalidArgs."""
    wrong = InvalidArgs(f"{text!r} is no moment since 1970", RIGHT)
    today = datetime.now().replace(hour=0, minute=0, second=0, microsecond=0)
    days = {"now": datetime.now(), "today": today, "yesterday": today - timedelta(days=1)}
    try:
        if re.fullmatch(r"[\d.]+ *[a-z]+", text, re.ASCII):
            usec = int(time.time() * SECOND) - quantity.duration(text)
        else:
            usec = int((days.get(text) or datetime.fromisoformat(text)).timestamp() * SECOND)
    except (ValueError, OverflowError, OSError):
        raise wrong from None
    if usec < 0:
        raise wrong
    return usec


def step(text: str) -> int:
    """Microseconds. Raises InvalidArgs."""
    if text in STEPS:
        return STEPS[text]
    try:
        found = quantity.duration(text)
    except ValueError:
        found = 0
    if not STEPS["minute"] <= found <= LONGEST_STEP:
        raise InvalidArgs(f"the step cannot be {text!r}",
                          "give minute, hour, day, or a time from 1min to 366d, as in 6h")
    return found


def aligned(usec: int, step: int) -> int:
    """The moment at or before this one at which a step begins in the local time zone."""
    offset = datetime.fromtimestamp(usec / SECOND).astimezone().utcoffset() or timedelta()
    return max(0, usec - (usec + int(offset.total_seconds()) * SECOND) % step)


def shown(usec: int, *, day_only: bool = False) -> str:
    """In the local time zone, to the minute."""
    then = datetime.fromtimestamp(usec / SECOND)
    return then.strftime("%Y-%m-%d" if day_only else "%Y-%m-%d %H:%M")
