# SPDX-License-Identifier: Apache-2.0
"""com.nvshare.Client: one process on one card."""

from nvshared.bus.authority import caller
from nvshared.bus.interface import ANYONE, Emits, Interface, method, read_only
from nvshared.names import ACTION_MANAGE_CLIENTS, CLIENT_INTERFACE, UNKNOWN, gpu_path
from nvshared.sharing.gpu import Client
from nvshared.sharing.manager import Manager


async def set_term(manager: Manager, client: Client, term: str, value: int) -> None:
    """Sets a term of a client.

    The program's owner may, within the administrator's terms; other callers need polkit.
    """
    who = caller.get()
    owned = client.peer.is_of(await who.uid())
    as_owner = owned and not await who.administers() and client.terms.allows(term, value)
    if not as_owner:
        await who.authorise(ACTION_MANAGE_CLIENTS, client.terms.bound(term) if owned else "")
    manager.set_terms(client.id, term, value, by_owner=as_owner)


async def permit(client: Client) -> None:
    """Raises NotPermitted unless the caller owns the client's program, or polkit agrees."""
    who = caller.get()
    if not client.peer.is_of(await who.uid()):
        await who.authorise(ACTION_MANAGE_CLIENTS, "")


class ClientInterface(Interface):
    """A client's process, tenant and terms, its memory, and its time on the GPU."""

    def __init__(self, manager: Manager, client: Client) -> None:
        super().__init__(CLIENT_INTERFACE)
        self._manager = manager
        self._client = client

    MemoryLimit = read_only(
        "MemoryLimit", "t", lambda self: self._client.terms.in_force.memory_limit)
    ComputeLimit = read_only(
        "ComputeLimit", "u", lambda self: self._client.terms.in_force.compute_limit)
    Weight = read_only("Weight", "u", lambda self: self._client.terms.in_force.weight)
    Suspended = read_only("Suspended", "b", lambda self: self._client.terms.in_force.suspended)
    PID = read_only("PID", "u", lambda self: self._client.peer.pid, Emits.CONST)
    UID = read_only("UID", "u", lambda self: self._client.peer.uid, Emits.CONST)
    GPU = read_only("GPU", "o", lambda self: gpu_path(self._client.gpu.facts.index), Emits.CONST)
    Name = read_only("Name", "s", lambda self: self._client.name)
    Tenant = read_only("Tenant", "s", lambda self: self._client.tenant)
    Gang = read_only("Gang", "s", lambda self: self._client.gang, Emits.NOTHING)
    State = read_only("State", "s", lambda self: self._client.state)
    Unparkable = read_only("Unparkable", "s", lambda self: self._client.unparkable)
    Moved = read_only("Moved", "s", lambda self: self._client.moved, Emits.NOTHING)
    PinReason = read_only("PinReason", "s", lambda self: str(self._client.memory.pin_reason))
    Allocated = read_only(
        "Allocated", "t", lambda self: self._client.memory.allocated, Emits.NOTHING)
    Resident = read_only("Resident", "t", lambda self: self._client.memory.resident, Emits.NOTHING)
    Swapped = read_only(
        "Swapped", "t",
        lambda self: max(0, self._client.memory.allocated - self._client.memory.resident),
        Emits.NOTHING)
    Borrowed = read_only("Borrowed", "t", lambda self: self._client.memory.borrowed, Emits.NOTHING)
    OnDisk = read_only("OnDisk", "t", lambda self: self._client.memory.disk, Emits.NOTHING)
    Loading = read_only("Loading", "t", lambda self: self._client.view.loading, Emits.NOTHING)
    Pinned = read_only("Pinned", "t", lambda self: self._client.memory.pinned, Emits.NOTHING)
    HeldUSec = read_only("HeldUSec", "t", lambda self: self._client.held, Emits.NOTHING)
    WaitedUSec = read_only("WaitedUSec", "t", lambda self: self._client.waited, Emits.NOTHING)
    WaitingUSec = read_only("WaitingUSec", "t", lambda self: self._client.waiting, Emits.NOTHING)
    IdleUSec = read_only("IdleUSec", "t", lambda self: self._client.idle, Emits.NOTHING)
    ExpectedUSec = read_only(
        "ExpectedUSec", "t",
        lambda self: UNKNOWN if self._client.expected is None else self._client.expected,
        Emits.NOTHING)
    Position = read_only("Position", "u", lambda self: self._client.position, Emits.NOTHING)
    Turns = read_only("Turns", "t", lambda self: self._client.view.turns, Emits.NOTHING)
    BytesIn = read_only("BytesIn", "t", lambda self: self._client.view.bytes_in, Emits.NOTHING)
    BytesOut = read_only("BytesOut", "t", lambda self: self._client.view.bytes_out, Emits.NOTHING)

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
