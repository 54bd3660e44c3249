# SPDX-License-Identifier: Apache-2.0
"""com.nvshare.Client: one process on one card."""

from nvshared.bus.authority import caller
from nvshared.bus.interface import ANYONE, Emits, Interface, dbus_property, method
from nvshared.names import ACTION_MANAGE_CLIENTS, CLIENT_INTERFACE, UNKNOWN, gpu_path
from nvshared.sharing.gpu import Client
from nvshared.sharing.manager import Manager


async def set_term(manager: Manager, client: Client, term: str, value: int) -> None:
    """Sets a term of a client: its owner may within the administrator's, others ask polkit."""
    who = caller.get()
    owned = client.peer.is_of(await who.uid())
    as_owner = owned and not await who.administers() and client.terms.allows(term, value)
    if not as_owner:
        await who.authorise(ACTION_MANAGE_CLIENTS, client.terms.bound(term) if owned else "")
    manager.set_terms(client.id, term, value, by_owner=as_owner)


class ClientInterface(Interface):
    """Who it is, what it holds, and how much of the card's time it had."""

    def __init__(self, manager: Manager, client: Client) -> None:
        super().__init__(CLIENT_INTERFACE)
        self._manager = manager
        self._client = client

    @dbus_property()
    def MemoryLimit(self) -> "t":
        return self._client.terms.in_force.memory_limit

    @dbus_property()
    def ComputeLimit(self) -> "u":
        return self._client.terms.in_force.compute_limit

    @dbus_property()
    def Weight(self) -> "u":
        return self._client.terms.in_force.weight

    @dbus_property()
    def Suspended(self) -> "b":
        return self._client.terms.in_force.suspended

    @dbus_property(Emits.CONST)
    def PID(self) -> "u":
        return self._client.peer.pid

    @dbus_property(Emits.CONST)
    def UID(self) -> "u":
        return self._client.peer.uid

    @dbus_property(Emits.CONST)
    def GPU(self) -> "o":
        return gpu_path(self._client.gpu.facts.index)

    @dbus_property()
    def Name(self) -> "s":
        return self._client.name

    @dbus_property()
    def Tenant(self) -> "s":
        return self._client.tenant

    @dbus_property(Emits.NOTHING)
    def Gang(self) -> "s":
        return self._client.gang

    @dbus_property()
    def State(self) -> "s":
        return str(self._client.view.state)

    @dbus_property()
    def Stays(self) -> "s":
        return str(self._client.memory.stays)

    @dbus_property(Emits.NOTHING)
    def Allocated(self) -> "t":
        return self._client.memory.allocated

    @dbus_property(Emits.NOTHING)
    def Resident(self) -> "t":
        return self._client.memory.resident

    @dbus_property(Emits.NOTHING)
    def Swapped(self) -> "t":
        return max(0, self._client.memory.allocated - self._client.memory.resident)

    @dbus_property(Emits.NOTHING)
    def Pinned(self) -> "t":
        return self._client.memory.pinned

    @dbus_property(Emits.NOTHING)
    def HeldUSec(self) -> "t":
        return self._client.held

    @dbus_property(Emits.NOTHING)
    def WaitedUSec(self) -> "t":
        return self._client.waited

    @dbus_property(Emits.NOTHING)
    def WaitingUSec(self) -> "t":
        return self._client.waiting

    @dbus_property(Emits.NOTHING)
    def IdleUSec(self) -> "t":
        return self._client.idle

    @dbus_property(Emits.NOTHING)
    def ExpectedUSec(self) -> "t":
        return UNKNOWN if self._client.expected is None else self._client.expected

    @dbus_property(Emits.NOTHING)
    def Position(self) -> "u":
        return self._client.position

    @dbus_property(Emits.NOTHING)
    def Turns(self) -> "t":
        return self._client.view.turns

    @dbus_property(Emits.NOTHING)
    def BytesIn(self) -> "t":
        return self._client.view.bytes_in

    @dbus_property(Emits.NOTHING)
    def BytesOut(self) -> "t":
        return self._client.view.bytes_out

    @method("ListTurns", "turns", action=ANYONE)
    def list_turns(self) -> "a(ttttsa{sv})":
        return [[*turn, {}] for turn in self._client.turns]

    @method("SetMemoryLimit", action=ACTION_MANAGE_CLIENTS, itself=True)
    async def set_memory_limit(self, bytes: "t") -> None:
        await set_term(self._manager, self._client, "memory_limit", bytes)

    @method("SetComputeLimit", action=ACTION_MANAGE_CLIENTS, itself=True)
    async def set_compute_limit(self, percent: "u") -> None:
        await set_term(self._manager, self._client, "compute_limit", percent)

    @method("SetWeight", action=ACTION_MANAGE_CLIENTS, itself=True)
    async def set_weight(self, weight: "u") -> None:
        await set_term(self._manager, self._client, "weight", weight)

    @method("Suspend", action=ACTION_MANAGE_CLIENTS, itself=True)
    async def suspend(self) -> None:
        await set_term(self._manager, self._client, "suspended", True)

    @method("Resume", action=ACTION_MANAGE_CLIENTS, itself=True)
    async def resume(self) -> None:
        await set_term(self._manager, self._client, "suspended", False)
