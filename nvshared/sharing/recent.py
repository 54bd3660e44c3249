# SPDX-License-Identifier: Apache-2.0
"""The last turns of a client, for people who look at it."""

from collections import deque
from dataclasses import dataclass

from nvshared.scheduler.snapshot import ClientView

KEPT = 16


@dataclass(slots=True)
class Turn:
    """A turn, also the present one."""

    began: int                          # when
    waited: int                         # for it
    bytes_in: int                       # brought in since the turn before
    held: int = 0
    reason: str = ""                    # of its end; "": it goes on


class RecentTurns:
    """The latest last. The cost of each is the growth of the client's totals since the last."""

    def __init__(self) -> None:
        self.turns: deque[Turn] = deque(maxlen=KEPT)
        self._waited = self._bytes_in = 0

    def began(self, now: int, view: ClientView) -> None:
        """A turn has begun."""
        self.turns.append(Turn(now, view.waited - self._waited, view.bytes_in - self._bytes_in))
        self._waited, self._bytes_in = view.waited, view.bytes_in

    def ended(self, reason: str, held: int) -> None:
        """Ends the present turn; no-op for a turn that an earlier daemon began."""
        if self.turns:
            self.turns[-1].reason, self.turns[-1].held = reason, held
