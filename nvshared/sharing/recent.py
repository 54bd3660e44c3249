# SPDX-License-Identifier: Apache-2.0
"""The last turns of a client, for people who look at it."""

from collections import deque
from dataclasses import dataclass

from nvshared.scheduler.snapshot import ClientView

KEPT = 16


@dataclass(slots=True)
class Turn:
    """One, also the present one."""

    began: int                          # when
    waited: int                         # for it
    bytes_in: int                       # brought in since the turn before
    held: int = 0
    reason: str = ""                    # why it ended; "": it has not


class RecentTurns:
    """The latest last. What each cost is what the client's totals have grown by since."""

    def __init__(self) -> None:
        self.turns: deque[Turn] = deque(maxlen=KEPT)
        self._waited = self._bytes_in = 0

    def began(self, now: int, view: ClientView) -> None:
        """A turn has begun."""
        self.turns.append(Turn(now, view.waited - self._waited, view.bytes_in - self._bytes_in))
        self._waited, self._bytes_in = view.waited, view.bytes_in

    def ended(self, reason: str, held: int) -> None:
        """It is over. Of one that an earlier daemon began nothing is known."""
        if self.turns:
            self.turns[-1].reason, self.turns[-1].held = reason, held
