# SPDX-License-Identifier: Apache-2.0
"""What the driver and the kernel know of the processes of a card's clients.

The driver lists the processes that have anything on the card. Its list means something to us
only if it knows processes by the numbers that we know them by, which in a container it may not.
So who is not on the list has nothing on the card once the list has named one of our clients.
Of a process that it names without a figure, nobody can tell.

Memory that one process made and another has imported is shown with its maker while that has it, and
with nobody from then on (seen on an H200). So what all clients say that an earlier daemon gave them
(belief.py) is believed up to what the card has in use and no process shows.

Clients of one process share what it has: who came first has it first.
"""

from collections.abc import Iterable

from nvshared.machine.nvml import Process
from nvshared.scheduler.events import Evidence, Memory


class Witness:
    """Of one card."""

    def __init__(self) -> None:
        self._processes: dict[int, Process] = {}
        self._certain = False           # the driver's list has named a client
        self._hidden: int | None = None     # bytes in use that no process shows
        self._recalled = 0

    def hear(
        self, processes: Iterable[Process], pids: Iterable[int], used: int | None = None
    ) -> None:
        """The driver's list is this one, and these are the processes of our clients.

        `used`: bytes of the card, by the driver; None: it does not say.
        """
        self._processes = {process.pid: process for process in processes}
        shown = [process.memory for process in self._processes.values()]
        if used is not None and None not in shown:
            self._hidden = max(0, used - sum(memory or 0 for memory in shown))
        self._certain = self._certain or any(pid in self._processes for pid in pids)

    def imported(self, said: int) -> int:
        """What of so many bytes that an earlier daemon gave to a client may be true."""
        if self._hidden is None:
            return said
        given = min(said, max(0, self._hidden - self._recalled))
        self._recalled += given
        return given

    def evidence(self, claims: Iterable[tuple[int, int, Memory]]) -> dict[int, Evidence]:
        """For clients, each with its process and what it says, oldest first."""
        said: dict[int, tuple[int, int]] = {}
        found = {}
        for client, pid, memory in claims:
            card, host = said.get(pid, (0, 0))
            found[client] = self._less(pid, card, host)
            said[pid] = card + memory.filled, host + memory.host
        return found

    def _less(self, pid: int, card: int, host: int) -> Evidence:
        """What this process has, but for so much."""
        process = self._processes.get(pid)
        if process is None:
            return Evidence(0, 0) if self._certain else Evidence()
        left = max(0, process.host - host)
        if process.memory is None:
            return Evidence(None, left, hidden=True)
        return Evidence(max(0, process.memory - card), left)
