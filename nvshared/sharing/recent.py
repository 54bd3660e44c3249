# SPDX-License-Identifier: Apache-2.0
"""The last turns of a client, for user interfaces."""

from collections import deque
from dataclasses import dataclass

from nvshared.scheduler.snapshot import ClientView

KEPT = 16


@dataclass(slots=True)
class Turn:
    """One turn, past or current. Times are in microseconds."""

    began: int                          # time of the turn's beginning
    waited: int                         # for this turn
    bytes_in: int                       # loaded since the turn before
    held: int = 0
    reason: str = ""                    # why the turn ended; "": it has not ended


class RecentTurns:
    """Turns, the latest last. `waited` and `bytes_in` are differences of the client's totals."""

    def __init__(self) -> None:
        self.turns: deque[Turn] = deque(maxlen=KEPT)
        self._waited = self._bytes_in = 0

    def began(self, now: int, view: ClientView) -> None:
        """Records that a turn has begun."""
        self.turns.append(Turn(now, view.waited - self._waited, view.bytes_in - self._bytes_in))
        self._waited, self._bytes_in = view.waited, view.bytes_in

    def ended(self, reason: str, held: int) -> None:
        """Ends the current turn; no-op for a turn that an earlier daemon began."""
        if self.turns:
            self.turns[-1].reason, self.turns[-1].held = reason, held
