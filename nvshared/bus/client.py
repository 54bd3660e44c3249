# SPDX-License-Identifier: Apache-2.0
"""com.nvshare.Client: one process on one card."""

from typing import ClassVar, Protocol

from nvshared.bus.authority import Caller
from nvshared.bus.members import Changes, Interface, Owned, Property, method
from nvshared.names import ACTION_MANAGE_CLIENTS, CLIENT_INTERFACE, gpu_path
from nvshared.sharing.gpu import Client
from nvshared.sharing.manager import Manager


class Settable(Protocol):
    """An interface with methods for clients' settings."""

    def meant(self, *arguments: int) -> tuple[Client, *tuple[int, ...]]:
        """The client that a call is about, and the arguments besides."""


def owned(setting: str, implied: int | None = None) -> Owned:
    """For methods that take a value for a setting of a client, or imply one."""

    def found(interface: Settable, uid: int, *arguments: int) -> str | None:
        client, *values = interface.meant(*arguments)
        if client.peer.uid != uid:
            return ""
        value = values[0] if implied is None else implied
        return None if client.terms.allows(setting, value) else client.terms.bound(setting)

    return Owned(ACTION_MANAGE_CLIENTS, found)


class ClientInterface(Interface, name=CLIENT_INTERFACE):
    """Who it is, what it holds, and how much of the card's time it had."""

    _client: Client
    listed: ClassVar[tuple[Property["ClientInterface"], ...]] = (
        Property(
            "MemoryLimit", "t", Changes.ANNOUNCED,
            lambda self: self._client.terms.in_force.memory_limit,
        ),
        Property(
            "ComputeLimit", "u", Changes.ANNOUNCED,
            lambda self: self._client.terms.in_force.compute_limit,
        ),
        Property("Weight", "u", Changes.ANNOUNCED, lambda self: self._client.terms.in_force.weight),
        Property(
            "Suspended", "b", Changes.ANNOUNCED,
            lambda self: self._client.terms.in_force.suspended,
        ),
        Property("PID", "u", Changes.NEVER, lambda self: self._client.peer.pid),
        Property("UID", "u", Changes.NEVER, lambda self: self._client.peer.uid),
        Property("GPU", "o", Changes.NEVER, lambda self: gpu_path(self._client.gpu.facts.index)),
        Property("Name", "s", Changes.NEVER, lambda self: self._client.peer.name),
        Property("Command", "s", Changes.NEVER, lambda self: self._client.peer.command),
        Property("Unit", "s", Changes.NEVER, lambda self: self._client.peer.unit),
        Property("Pod", "s", Changes.NEVER, lambda self: self._client.peer.pod),
        Property("State", "s", Changes.ANNOUNCED, lambda self: str(self._client.view.state)),
        Property("Allocated", "t", Changes.SILENT, lambda self: self._client.memory.allocated),
        Property("Resident", "t", Changes.SILENT, lambda self: self._client.memory.resident),
        Property(
            "Swapped", "t", Changes.SILENT,
            lambda self: max(0, self._client.memory.allocated - self._client.memory.resident),
        ),
        Property("Pinned", "t", Changes.SILENT, lambda self: self._client.memory.pinned),
        Property("HeldUSec", "t", Changes.SILENT, lambda self: self._client.held_time),
        Property("WaitedUSec", "t", Changes.SILENT, lambda self: self._client.waited),
        Property("Turns", "t", Changes.SILENT, lambda self: self._client.view.turns),
        Property("BytesIn", "t", Changes.SILENT, lambda self: self._client.view.bytes_in),
        Property("BytesOut", "t", Changes.SILENT, lambda self: self._client.view.bytes_out),
    )

    def __init__(self, manager: Manager, client: Client) -> None:
        self._manager = manager
        self._client = client

    def meant(self, *values: int) -> tuple[Client, *tuple[int, ...]]:
        """This one."""
        return self._client, *values

    @method("SetMemoryLimit", "bytes:t", action=owned("memory_limit"))
    def set_memory_limit(self, caller: Caller, size: int) -> None:
        """How much it may allocate; 0 for no limit."""
        self._manager.set_terms(self._client.id, "memory_limit", size, by_owner=caller.as_owner)

    @method("SetComputeLimit", "percent:u", action=owned("compute_limit"))
    def set_compute_limit(self, caller: Caller, percent: int) -> None:
        """1 to 100 percent of the time; 100 for no limit."""
        self._manager.set_terms(self._client.id, "compute_limit", percent, by_owner=caller.as_owner)

    @method("SetWeight", "weight:u", action=owned("weight"))
    def set_weight(self, caller: Caller, weight: int) -> None:
        """1 to 1000."""
        self._manager.set_terms(self._client.id, "weight", weight, by_owner=caller.as_owner)

    @method("Suspend", action=owned("suspended", True))
    def suspend(self, caller: Caller) -> None:
        """It leaves the card and waits."""
        self._manager.set_terms(self._client.id, "suspended", True, by_owner=caller.as_owner)

    @method("Resume", action=owned("suspended", False))
    def resume(self, caller: Caller) -> None:
        """It queues again."""
        self._manager.set_terms(self._client.id, "suspended", False, by_owner=caller.as_owner)
