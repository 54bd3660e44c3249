# SPDX-License-Identifier: Apache-2.0
"""How the fake hook finds that its program is idle, or busy at all times, as RUN asks for."""

from typing import TYPE_CHECKING

from nvshared.scheduler.events import Busy, WentIdle
from nvshared.units import MILLISECOND, SECOND

if TYPE_CHECKING:
    from tests.unit.scheduler_hookmodel import Hook

BUSY = SECOND // 10                     # always at it for so long, or with nothing for as long as
GAP = 10 * MILLISECOND


def idleness(hook: "Hook") -> None:
    """It has nothing to do: looks again when the window is over."""
    if hook.open and hook.reports_idle and hook.work == 0 and not hook.idle_reported:
        computed, window = hook.computed, hook.idle_window
        hook.world.at(hook.world.now + window, lambda: _idle(hook, computed, window))


def _idle(hook: "Hook", computed: int, window: int) -> None:
    quiet = hook.computed == computed and hook.work == 0 and not hook.flying
    quiet = quiet and window == hook.idle_window
    if hook.open and hook.reports_idle and quiet and not hook.stopping and not hook.idle_reported:
        hook.idle_reported = True
        hook.say(WentIdle(hook.id, hook.memory))


def busyness(hook: "Hook") -> None:
    """It has work, or none: looks whether that lasts."""
    now = hook.runs, hook.work > 0
    if hook.open and hook.reports_busy and now != hook.busy_state:
        hook.busy_state = now
        hook.world.at(hook.world.now + (BUSY if hook.work else GAP), lambda: _busy(hook, now))


def _busy(hook: "Hook", found: tuple[int, bool]) -> None:
    if hook.open and hook.reports_busy and not hook.stopping and found == hook.busy_state:
        if found != hook.busy_reported:
            hook.say(Busy(hook.id, hook.memory, gaps=not found[1]))
        hook.busy_reported = found
