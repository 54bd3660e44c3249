# SPDX-License-Identifier: Apache-2.0
"""com.nvshare.Client: one process on one card."""

from nvshared.bus.members import Changes, Interface, readable
from nvshared.clock import monotonic
from nvshared.gpu import Client
from nvshared.names import CLIENT_INTERFACE, gpu_path


class ClientInterface(Interface, name=CLIENT_INTERFACE):
    """Who it is, what it holds, and how much of the card's time it had."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @readable("PID", "u", Changes.NEVER)
    def pid(self) -> int:
        """As the daemon sees it."""
        return self._client.peer.pid

    @readable("UID", "u", Changes.NEVER)
    def uid(self) -> int:
        """Of the process when it connected."""
        return self._client.peer.uid

    @readable("GPU", "o", Changes.NEVER)
    def gpu(self) -> str:
        """Path of its card."""
        return gpu_path(self._client.gpu.facts.index)

    @readable("Name", "s", Changes.NEVER)
    def process(self) -> str:
        """15 characters at most."""
        return self._client.peer.name

    @readable("Command", "s", Changes.NEVER)
    def command(self) -> str:
        """With its arguments."""
        return self._client.peer.command

    @readable("Unit", "s", Changes.NEVER)
    def unit(self) -> str:
        """Of systemd, or empty."""
        return self._client.peer.unit

    @readable("Pod", "s", Changes.NEVER)
    def pod(self) -> str:
        """UID in Kubernetes, or empty."""
        return self._client.peer.pod

    @readable("State", "s", Changes.ANNOUNCED)
    def state(self) -> str:
        """idle, waiting, loading, running, draining or evicting."""
        return str(self._client.view.state)

    @readable("Allocated", "t", Changes.SILENT)
    def allocated(self) -> int:
        """Swappable bytes."""
        return self._client.memory.allocated

    @readable("Resident", "t", Changes.SILENT)
    def resident(self) -> int:
        """Of these, on the card."""
        return self._client.memory.resident

    @readable("Swapped", "t", Changes.SILENT)
    def swapped(self) -> int:
        """Of these, in host memory."""
        return max(0, self._client.memory.allocated - self._client.memory.resident)

    @readable("Pinned", "t", Changes.SILENT)
    def pinned(self) -> int:
        """Bytes on the card that cannot be swapped."""
        return self._client.memory.pinned

    @readable("HeldUSec", "t", Changes.SILENT)
    def held(self) -> int:
        """Time with its gate open."""
        since = self._since(self._client.gpu.snapshot().holders)
        return self._client.view.held + since

    @readable("WaitedUSec", "t", Changes.SILENT)
    def waited(self) -> int:
        """Time at its closed gate."""
        since = self._since(self._client.gpu.snapshot().queue)
        return self._client.view.waited + since

    @readable("Turns", "t", Changes.SILENT)
    def turns(self) -> int:
        """Begun since it connected."""
        return self._client.view.turns

    @readable("BytesIn", "t", Changes.SILENT)
    def bytes_in(self) -> int:
        """Brought onto the card."""
        return self._client.view.bytes_in

    @readable("BytesOut", "t", Changes.SILENT)
    def bytes_out(self) -> int:
        """Moved out to host memory."""
        return self._client.view.bytes_out

    def _since(self, counting: tuple[int, ...]) -> int:
        """The scheduler's times are as of its last event; they went on for who is in `counting`."""
        if self._client.id not in counting:
            return 0
        return max(0, monotonic() - self._client.gpu.snapshot().now)
