# SPDX-License-Identifier: Apache-2.0
"""The last turns of one client, for user interfaces."""

from collections import deque
from dataclasses import dataclass, field

from nvshared.scheduler.snapshot import ClientView

TURNS_KEPT = 16                         # last turns kept of each client


@dataclass(slots=True)
class _Turn:
    """One turn, past or current. Times are in microseconds."""

    began: int                          # time of the turn's beginning
    waited: int                         # time that the client waited for this turn
    bytes_in: int                       # bytes loaded since the previous turn began
    held: int = 0                       # its duration, once it has ended
    reason: str = ""                    # why the turn ended; "": it has not ended


@dataclass(slots=True)
class TurnLog:
    """Microseconds and bytes."""

    _turns: deque[_Turn] = field(default_factory=lambda: deque(maxlen=TURNS_KEPT))
    _waited: int = 0                    # from the client's join to the beginning of its last turn
    _loaded: int = 0

    def begin(self, view: ClientView, now: int) -> None:
        """A turn of the client begins."""
        loaded = view.counters.bytes_in
        self._turns.append(_Turn(now, view.waited - self._waited, loaded - self._loaded))
        self._waited, self._loaded = view.waited, loaded

    def end(self, reason: str, held: int) -> None:
        """Notes the end of the turn; no-op for a turn that an earlier daemon began."""
        if self._turns:
            self._turns[-1].reason, self._turns[-1].held = reason, held

    def latest(self, now: int) -> list[tuple[int, int, int, int, str]]:
        """The last turns, latest first: us since the start, us held, us waited, bytes, reason."""
        return [
            (now - one.began, one.held if one.reason else now - one.began, one.waited,
             one.bytes_in, one.reason)
            for one in reversed(self._turns)]
