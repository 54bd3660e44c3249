# SPDX-License-Identifier: Apache-2.0
"""Passes a scheduler its events in the order of arrival, and carries out what it decides.

The scheduler has no clock, timer or socket. Its orders are sent before any signal is emitted.
Events that arrive meanwhile wait."""

import logging
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from nvshared.clock import Clock, Timer
from nvshared.scheduler import Scheduler, actions, events
from nvshared.scheduler.snapshot import CardSnapshot
from nvshared.signal import Signal
from nvshared.units import MILLISECOND, SECOND

OVERDUE = 5 * SECOND                    # a deadline missed by this time means that the timer failed
DECISION_BOUNDS = (
    # us: upper bounds of the histogram of the time that the scheduler takes for an event
    MILLISECOND // 10, MILLISECOND, 10 * MILLISECOND, 100 * MILLISECOND, SECOND)

logger = logging.getLogger(__name__)


class Dispatcher:
    def __init__(self, scheduler: Scheduler, clock: Clock, timer: Timer) -> None:
        self.scheduler = scheduler
        self.changed: Signal[()] = Signal("changed")    # some property may have changed
        # With the time and the event: emitted before and after the scheduler handles the event.
        self.happens: Signal[int, events.Event] = Signal("happens")
        self.happened: Signal[int, events.Event] = Signal("happened")
        # Emitted after `happened`, with all actions that the event caused; no action if it failed.
        self.decided: Signal[int, events.Event, Sequence[actions.Action]] = Signal("decided")
        # Number of events by the time that the scheduler took: one entry per bound, one above all.
        self.decisions = [0] * (len(DECISION_BOUNDS) + 1)
        self.decision_time = 0          # us that the scheduler has taken for all events so far
        self._clock, self._timer = clock, timer
        self._snapshot: CardSnapshot | None = None
        self._events: deque[events.Event] = deque()
        self._handling = False
        self._broken = False
        self._disarm: Callable[[], None] = lambda: None     # cancels the timer of the deadline
        self._news = False              # `changed` must be emitted after this event
        self._arm()

    def _send(self, order: actions.Order) -> None:
        """Sends an order to its client."""
        raise NotImplementedError

    def _report(self, now: int, action: actions.Action) -> None:
        """Reports an action, once all orders are sent."""
        raise NotImplementedError

    def _fail(self) -> None:
        """The scheduler has failed, and handles no event any more."""
        raise NotImplementedError

    def decides(self) -> bool:
        """Whether the scheduler still handles events: tries a Tick, which changes nothing."""
        deadline = self.scheduler.deadline()
        if deadline is not None and deadline + OVERDUE < self._clock():
            return False
        handled = sum(self.decisions)
        self._decide(events.Tick())     # not tell(), which always emits `changed`
        return sum(self.decisions) > handled

    def snapshot(self) -> CardSnapshot:
        """Returns the scheduler's state after the last event; cached until the next one."""
        if self._snapshot is None:
            self._snapshot = self.scheduler.snapshot()
        return self._snapshot

    @property
    def now(self) -> int:
        """The current time in microseconds."""
        return self._clock()

    def since(self) -> int:
        """Microseconds since the last event, at which the snapshot was taken."""
        return max(0, self.now - self.snapshot().now)

    def tell(self, event: events.Event) -> None:
        """Passes an event to the scheduler and carries out its decisions."""
        self._news = True
        self._decide(event)

    def _decide(self, event: events.Event) -> None:
        if self._broken:
            return
        self._events.append(event)
        if self._handling:
            return
        self._handling = True
        try:
            while self._events:
                self._handle(self._events.popleft())
        finally:
            self._handling = False
        self._arm()
        if self._news:
            self._news = False
            self.changed.emit()

    def _handle(self, event: events.Event) -> None:
        now = self._clock()
        self._snapshot = None
        self.happens.emit(now, event)
        try:
            decided = self.scheduler.handle(event, now)
        except Exception:
            self.happened.emit(now, event)
            self.decided.emit(now, event, ())
            # A bug: the daemon ends, and the next one rebuilds the state from the HELLOs.
            logger.exception("the scheduler of %s failed at %s", self, event)
            self._broken = True
            self._events.clear()
            self._fail()
            return
        took = self._clock() - now
        self.decisions[bisect_left(DECISION_BOUNDS, took)] += 1
        self.decision_time += took
        self._news = self._news or bool(decided)
        for action in decided:
            if isinstance(action, actions.Order):
                self._send(action)
        self.happened.emit(now, event)
        self.decided.emit(now, event, decided)
        for action in decided:
            self._report(now, action)

    def _arm(self) -> None:
        self._disarm()
        deadline = self.scheduler.deadline()
        if deadline is not None:
            self._disarm = self._timer(deadline, partial(self.tell, events.Tick()))
