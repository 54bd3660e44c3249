# SPDX-License-Identifier: Apache-2.0
"""Figures of NVML and the kernel about the processes of a card's clients.

The driver lists the processes that have anything on the card. Its list means something to us
only if it knows processes by the numbers that we know them by, which in a container it may not.
So who is not on the list has nothing on the card once the list has named one of our clients.
Of a process that it names without a figure, nobody can tell.

Clients of one process share what it has: who came first has it first.
"""

from collections.abc import Iterable

from nvshared.machine.nvml import Process
from nvshared.scheduler.events import Evidence, Memory


class Witness:
    """NVML's list of processes of one card."""

    def __init__(self) -> None:
        self._processes: dict[int, Process] = {}
        # The driver's list has contained a client's pid, so its pids are of our pid namespace: a
        # client that is not listed has nothing on the card.
        self._certain = False

    def hear(self, processes: Iterable[Process], pids: Iterable[int]) -> None:
        """Takes a list from NVML, and the processes of the card's clients."""
        self._processes = {process.pid: process for process in processes}
        self._certain = self._certain or any(pid in self._processes for pid in pids)

    def evidence(self, claims: Iterable[tuple[int, int, Memory]]) -> dict[int, Evidence]:
        """Evidence by client, from clients with their processes and figures, oldest first."""
        said: dict[int, tuple[int, int]] = {}
        found = {}
        for client, pid, memory in claims:
            card, host = said.get(pid, (0, 0))
            found[client] = self._less(pid, card, host)
            said[pid] = card + memory.filled, host + memory.host
        return found

    def _less(self, pid: int, card: int, host: int) -> Evidence:
        """The memory of a process, less bytes that other clients of it claim."""
        process = self._processes.get(pid)
        if process is None:
            return Evidence(0, 0) if self._certain else Evidence()
        left = max(0, process.host - host)
        if process.memory is None:
            return Evidence(None, left, hidden=True)
        return Evidence(max(0, process.memory - card), left)
