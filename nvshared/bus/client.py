# SPDX-License-Identifier: Apache-2.0
"""com.nvshare.Client: one process on one card."""

from nvshared.bus.authority import Caller
from nvshared.bus.members import Changes, Interface, Owned, method, readable
from nvshared.names import ACTION_MANAGE_CLIENTS, CLIENT_INTERFACE, gpu_path
from nvshared.sharing.gpu import Client
from nvshared.sharing.manager import Manager


def owned(**setting: bool | None) -> Owned:
    """For methods of a client's own object that take a value for a setting, or imply one."""

    def found(interface: "ClientInterface", uid: int, *values: int) -> str | None:
        ((name, implied),) = setting.items()
        return interface.obstacle(uid, name, values[0] if implied is None else implied)

    return Owned(ACTION_MANAGE_CLIENTS, found)


def obstacle(client: Client, uid: int, setting: str, value: int) -> str | None:
    """None if this user may set this for a client without being asked about; else why not."""
    if client.peer.uid != uid:
        return ""
    terms = client.terms
    return None if terms.allows(setting, value) else terms.bound(setting)


class ClientInterface(Interface, name=CLIENT_INTERFACE):
    """Who it is, what it holds, and how much of the card's time it had."""

    def __init__(self, manager: Manager, client: Client) -> None:
        self._manager = manager
        self._client = client

    def obstacle(self, uid: int, setting: str, value: int) -> str | None:
        """What keeps this user from setting this without being asked about."""
        return obstacle(self._client, uid, setting, value)

    @method("SetMemoryLimit", "bytes:t", action=owned(memory_limit=None))
    def set_memory_limit(self, caller: Caller, size: int) -> None:
        """How much it may allocate; 0 for no limit."""
        self._manager.set_memory_limit(self._client.id, size, by_owner=caller.as_owner)

    @method("SetComputeLimit", "percent:u", action=owned(compute_limit=None))
    def set_compute_limit(self, caller: Caller, percent: int) -> None:
        """1 to 100 percent of the time; 100 for no limit."""
        self._manager.set_compute_limit(self._client.id, percent, by_owner=caller.as_owner)

    @method("SetWeight", "weight:u", action=owned(weight=None))
    def set_weight(self, caller: Caller, weight: int) -> None:
        """1 to 1000."""
        self._manager.set_weight(self._client.id, weight, by_owner=caller.as_owner)

    @method("Suspend", action=owned(suspended=True))
    def suspend(self, caller: Caller) -> None:
        """It leaves the card and waits."""
        self._manager.suspend(self._client.id, by_owner=caller.as_owner)

    @method("Resume", action=owned(suspended=False))
    def resume(self, caller: Caller) -> None:
        """It queues again."""
        self._manager.resume(self._client.id, by_owner=caller.as_owner)

    @readable("MemoryLimit", "t", Changes.ANNOUNCED)
    def memory_limit(self) -> int:
        """Bytes, or 0."""
        return self._client.terms.in_force.memory_limit

    @readable("ComputeLimit", "u", Changes.ANNOUNCED)
    def compute_limit(self) -> int:
        """Percent of the time, or 100."""
        return self._client.terms.in_force.compute_limit

    @readable("Weight", "u", Changes.ANNOUNCED)
    def weight(self) -> int:
        """1 to 1000."""
        return self._client.terms.in_force.weight

    @readable("Suspended", "b", Changes.ANNOUNCED)
    def suspended(self) -> bool:
        """By the administrator or by its user."""
        return self._client.terms.in_force.suspended

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
        """idle, waiting, limited, loading, running, draining, evicting or suspended."""
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
        return self._client.held

    @readable("WaitedUSec", "t", Changes.SILENT)
    def waited(self) -> int:
        """Time at its closed gate."""
        return self._client.waited

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
