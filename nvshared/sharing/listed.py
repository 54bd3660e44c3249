# SPDX-License-Identifier: Apache-2.0
"""The processes that NVML lists on one card: strangers, and evidence of clients' memory."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from nvshared.machine.nvml import Process
from nvshared.scheduler.events import Evidence, Memory


@dataclass(slots=True)
class Listed:
    """NVML's last known list of a card's processes, and conclusions from two lists in a row."""

    # NVML has listed a client, so it knows all pids: unlisted clients have nothing on the card.
    lists_clients: bool = False
    _by_pid: dict[int, Process] = field(default_factory=dict)
    _strangers: frozenset[int] = frozenset()    # pids in the last list that belong to no client

    def lasting(self, strangers: Iterable[int]) -> list[int]:
        """The strangers that this list and the last one show. A new pid may be a client before its
        HELLO: only the next list shows that it is none."""
        before, self._strangers = self._strangers, frozenset(strangers)
        return sorted(before & self._strangers)

    def keep(self, processes: Iterable[Process], clients: Iterable[int]) -> None:
        """Replaces the list. `clients`: pids."""
        self._by_pid = {process.pid: process for process in processes}
        self.lists_clients = self.lists_clients or any(pid in self._by_pid for pid in clients)

    def evidence(self, clients: Iterable[tuple[int, int, Memory]]) -> dict[int, Evidence]:
        """NVML's and the kernel's figures by client. `clients`: id, pid, memory; a process's oldest
        client is served first."""
        covered: dict[int, tuple[int, int]] = {}    # bytes on the card and the host, by pid
        found = {}
        for id, pid, memory in clients:
            card, host = covered.get(pid, (0, 0))
            covered[pid] = card + memory.filled, host + memory.host
            if (process := self._by_pid.get(pid)) is None:
                found[id] = Evidence(0, 0) if self.lists_clients else Evidence()
            else:
                size = None if process.memory is None else max(0, process.memory - card)
                found[id] = Evidence(size, max(0, process.host - host), hidden=size is None)
        return found
