# SPDX-License-Identifier: Apache-2.0
"""A client's process on its way off its GPU and back; moving.py decides."""

from dataclasses import dataclass, field

ERRORS_KNOWN = 16                       # most errors of a helper that are logged for a client


@dataclass(slots=True)
class Parking:
    """Bytes and microseconds."""

    state: str = ""                     # in moving.py, such as parked; "": the process runs
    context: int = 0                    # host bytes of the context while the client is parked
    context_size: int = 0               # bytes of a card that the context took at the last park
    suspended: bool = False             # the client is suspended until it is parked
    impossible: str = ""                # why the driver can never checkpoint it; "": no reason
    after: int = 0                      # earliest time to park it under the setting deep-idle
    refusals: int = 0                   # restores in a row that the driver has refused
    moved: str = ""                     # why balancing.py moved it to its card; "": it did not
    moves: int = 0                      # attempts of balancing.py to move it
    # Errors of nvshare-checkpoint that were logged since its last success for this client.
    _errors: set[str] = field(default_factory=set)

    def follow(self, before: "Parking") -> None:
        """Takes over the figures that hold on another card, too."""
        self.impossible, self.moved, self.moves = before.impossible, before.moved, before.moves

    def enter(self, state: str) -> None:
        self.state = state

    def hold(self, context: int) -> int:
        """Sets the host memory for the context. Returns how much more that is."""
        more, self.context = context - self.context, context
        return more

    def measure(self, context_size: int) -> None:
        """Records how much of a card the context takes."""
        self.context_size = context_size

    def suspend(self, suspended: bool) -> None:
        self.suspended = suspended

    def forbid(self, why: str) -> None:
        """The driver can never checkpoint or restore the process."""
        self.impossible = why

    def retry_after(self, moment: int) -> None:
        self.after = moment

    def refuse(self, *, refused: bool) -> None:
        """Counts a restore that the driver has refused."""
        self.refusals += refused

    def accept(self) -> None:
        """The driver has refused no restore since."""
        self.refusals = 0

    def try_move(self) -> None:
        """balancing.py tries to move the client."""
        self.moves += 1

    def move(self, why: str) -> None:
        """The client is on another card now."""
        self.moved = why

    def is_new(self, error: str) -> bool:
        """Whether an error of nvshare-checkpoint was not logged since its last success; "": it has
        succeeded."""
        if not error:
            self._errors.clear()
        new = bool(error) and error not in self._errors
        if new and len(self._errors) < ERRORS_KNOWN:
            self._errors.add(error)
        return new
