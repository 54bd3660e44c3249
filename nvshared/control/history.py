# SPDX-License-Identifier: Apache-2.0
"""The reply of GetHistory: what users, tenants or GPUs used."""

from typing import Any, NamedTuple


class Used(NamedTuple):
    """One row of usage, in microseconds, bytes, and MiB times seconds."""

    start_usec: int                     # since 1970
    name: str                           # user, tenant, or UUID of a GPU; "": the sum of the others
    user: str                           # the tenant's user; "": several users, or not by tenant
    gpu_usec: int                       # GPU time, divided among clients that had turns at once
    held_usec: int                      # time with a turn, summed over programs
    waited_usec: int
    turns: int
    handovers: int                      # turns for which memory had to move
    handover_usec: int
    bytes_in: int
    bytes_out: int
    card_mib_sec: int                   # memory on GPUs
    host_mib_sec: int                   # host memory of swapped blocks


class History(NamedTuple):
    """A time span with its rows. Times in microseconds since 1970."""

    since_usec: int
    until_usec: int
    step_usec: int                      # length of a row; 0: one row for the whole time
    rows: tuple[Used, ...]
    missing: str                        # why the latest usage is missing; "": it is not

    def as_dict(self) -> dict[str, Any]:
        """What --json prints, and the text shows."""
        return {**self._asdict(), "rows": [row._asdict() for row in self.rows]}


def history(since: int, until: int, step: int, rows: list[list[Any]], missing: str) -> History:
    """Makes a History from GetHistory's reply. Fields that later versions append are ignored."""
    return History(
        since, until, step, tuple(Used(*row[:len(Used._fields)]) for row in rows), missing)
