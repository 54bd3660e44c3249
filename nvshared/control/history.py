# SPDX-License-Identifier: Apache-2.0
"""What nvshared says of what was used of its GPUs."""

from typing import Any, NamedTuple


class Used(NamedTuple):
    """Microseconds, bytes, and mebibytes times seconds."""

    start_usec: int                     # since 1970
    name: str                           # of a user or tenant, UUID of a GPU; "": of others together
    user: str                           # of a tenant, if it is of one alone
    gpu_usec: int                       # of the GPUs' time, divided among those who held them
    held_usec: int                      # by each program by itself
    waited_usec: int
    turns: int
    handovers: int                      # turns for which memory had to move
    handover_usec: int
    bytes_in: int
    bytes_out: int
    card_mib_sec: int                   # memory on GPUs
    host_mib_sec: int                   # host memory for what is away


class History(NamedTuple):
    """Times in microseconds, since 1970."""

    since_usec: int
    until_usec: int
    step_usec: int                      # of a row; 0: all in one
    rows: tuple[Used, ...]
    missing: str                        # why what was used lately is not among it

    def as_dict(self) -> dict[str, Any]:
        """What --json prints, and the text shows."""
        return {**self._asdict(), "rows": [row._asdict() for row in self.rows]}


def history(since: int, until: int, step: int, rows: list[list[Any]], missing: str) -> History:
    """From what GetHistory answers. What later versions may add to a row is left out."""
    return History(
        since, until, step, tuple(Used(*row[:len(Used._fields)]) for row in rows), missing)
