# SPDX-License-Identifier: Apache-2.0
"""Figures of NVML and the kernel about the processes of a card's clients.

NVML lists the processes that have memory on the card. In a container, NVML's pids may be of another
pid namespace than the daemon's. Once the list has contained the pid of a client, both are known to
be the same, and a process that is not listed has no memory on the card. For a process that is
listed without a figure, the memory on the card is unknown.

Clients of one process share its figures: the oldest client's claims are covered first.
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
        """Stores NVML's list of processes; `pids` are those of the card's clients."""
        self._processes = {process.pid: process for process in processes}
        self._certain = self._certain or any(pid in self._processes for pid in pids)

    def evidence(self, claims: Iterable[tuple[int, int, Memory]]) -> dict[int, Evidence]:
        """Returns evidence by client; `claims`: client, pid and reported memory, oldest first."""
        said: dict[int, tuple[int, int]] = {}
        found = {}
        for client, pid, memory in claims:
            card, host = said.get(pid, (0, 0))
            found[client] = self._less(pid, card, host)
            said[pid] = card + memory.filled, host + memory.host
        return found

    def _less(self, pid: int, card: int, host: int) -> Evidence:
        """Returns the memory of a process, less `card` and `host` bytes of its older clients."""
        process = self._processes.get(pid)
        if process is None:
            return Evidence(0, 0) if self._certain else Evidence()
        left = max(0, process.host - host)
        if process.memory is None:
            return Evidence(None, left, hidden=True)
        return Evidence(max(0, process.memory - card), left)
