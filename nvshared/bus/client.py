# SPDX-License-Identifier: Apache-2.0
"""com.nvshare.Client: one process on one card."""

from collections.abc import Callable
from typing import Any, ClassVar, Protocol

from nvshared.bus.authority import Caller
from nvshared.bus.members import ANYONE, Changes, Interface, Owned, Property, method
from nvshared.names import ACTION_MANAGE_CLIENTS, CLIENT_INTERFACE, UNKNOWN, gpu_path
from nvshared.sharing.gpu import Client
from nvshared.sharing.manager import Manager


class Settable(Protocol):
    """An interface with methods for clients' settings."""

    _manager: Manager

    def meant(self, *arguments: int) -> tuple[Client, *tuple[int, ...]]:
        """The client that a call is about, and the arguments besides."""


def setter(name: str, takes: str, setting: str, implied: int | None = None) -> Callable[..., None]:
    """A method that gives a setting of a client the value that it takes, or the implied one."""

    def obstacle(interface: Settable, uid: int, *arguments: int) -> str | None:
        client, *values = interface.meant(*arguments)
        if not client.peer.is_of(uid):
            return ""
        value = values[0] if implied is None else implied
        return None if client.terms.allows(setting, value) else client.terms.bound(setting)

    @method(name, takes, action=Owned(ACTION_MANAGE_CLIENTS, obstacle))
    def put(interface: Settable, caller: Caller, *arguments: int) -> None:
        client, *values = interface.meant(*arguments)
        value = values[0] if implied is None else implied
        interface._manager.set_terms(client.id, setting, value, by_owner=caller.as_owner)

    return put


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
        Property("Name", "s", Changes.ANNOUNCED, lambda self: self._client.name),
        Property("Tenant", "s", Changes.ANNOUNCED, lambda self: self._client.tenant),
        Property("Gang", "s", Changes.SILENT, lambda self: self._client.gang),
        Property("State", "s", Changes.ANNOUNCED, lambda self: str(self._client.view.state)),
        Property("Stays", "s", Changes.ANNOUNCED, lambda self: str(self._client.memory.stays)),
        Property("Allocated", "t", Changes.SILENT, lambda self: self._client.memory.allocated),
        Property("Resident", "t", Changes.SILENT, lambda self: self._client.memory.resident),
        Property(
            "Swapped", "t", Changes.SILENT,
            lambda self: max(0, self._client.memory.allocated - self._client.memory.resident),
        ),
        Property("Pinned", "t", Changes.SILENT, lambda self: self._client.memory.pinned),
        Property("HeldUSec", "t", Changes.SILENT, lambda self: self._client.held),
        Property("WaitedUSec", "t", Changes.SILENT, lambda self: self._client.waited),
        Property("WaitingUSec", "t", Changes.SILENT, lambda self: self._client.waiting),
        Property("IdleUSec", "t", Changes.SILENT, lambda self: self._client.idle),
        Property(
            "ExpectedUSec", "t", Changes.SILENT,
            lambda self: UNKNOWN if self._client.expected is None else self._client.expected,
        ),
        Property("Position", "u", Changes.SILENT, lambda self: self._client.position),
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

    @method("ListTurns", gives="turns:a(ttttsa{sv})", action=ANYONE)
    def list_turns(self, _caller: Caller) -> list[list[Any]]:
        """Its last turns."""
        return [[*turn, {}] for turn in self._client.turns]

    set_memory_limit = setter("SetMemoryLimit", "bytes:t", "memory_limit")      # 0: none
    set_compute_limit = setter("SetComputeLimit", "percent:u", "compute_limit")  # 100: none
    set_weight = setter("SetWeight", "weight:u", "weight")
    suspend = setter("Suspend", "", "suspended", True)
    resume = setter("Resume", "", "suspended", False)
