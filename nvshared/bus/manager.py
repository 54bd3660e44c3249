# SPDX-License-Identifier: Apache-2.0
"""com.nvshare.Manager: settings of all GPUs, and calls by name or id."""

import asyncio
import logging
from collections.abc import Iterable
from concurrent.futures import Future
from functools import lru_cache
from pathlib import Path
from typing import Any

from nvshared import __version__, names
from nvshared.bus.authority import Caller, caller
from nvshared.bus.client import permit, set_term
from nvshared.bus.interface import ANYONE, Emits, Interface, array, method, read_only, signal
from nvshared.dbus import marshalled
from nvshared.errors import NoHistory, NoSuchGPU, NvshareError
from nvshared.history import Asked, Found, History
from nvshared.machine.peer import printable
from nvshared.machine.tenant import Kind
from nvshared.names import ACTION_VIEW_HISTORY
from nvshared.sharing.gpu import GPU, Client
from nvshared.sharing.manager import Manager
from nvshared.sharing.pods import Pod
from nvshared.sharing.tenancy import TenantView
from nvshared.units import SECOND

logger = logging.getLogger(__name__)

DRAINER_LOOK = 5.0                      # seconds between checks that Drain's caller is present
DRAINER_LINGER = 10.0                   # seconds that draining goes on afterwards


def rows(clients: Iterable[Client]) -> bytes:
    """Clients as a marshalled a(uuuoa{sv}): there may be thousands, and anybody may call."""
    return array(_client(one.id, one.peer.pid, one.gpu.facts.index) for one in clients)


@lru_cache(4096)
def _client(id: int, pid: int, gpu: int) -> bytes:
    return marshalled("(uuuoa{sv})", [id, pid, gpu, names.client_path(id), {}])


def _row(tenant: TenantView) -> list[Any]:
    terms = [[one.term, one.value, one.pattern, one.place] for one in tenant.terms]
    return [
        tenant.name, tenant.programs, tenant.allocated, tenant.resident, tenant.pinned,
        tenant.held_time, list(tenant.within), terms, {},
    ]


def _used(found: Found) -> bytes:
    """The marshalled reply of GetHistory, made off the event loop: there may be many rows."""
    rows = [[row.start * SECOND, row.name, row.user, *row.usage, {}] for row in found.rows]
    times = [one * SECOND for one in (found.since, found.until, found.step)]
    return marshalled("ttta(tsstttttttttta{sv})s", *times, rows, found.missing)


async def _kept(change: Future[None]) -> None:
    """Waits until the change is written to the disk. Raises NotKept.

    If the call is cancelled, the change is written all the same.
    """
    await asyncio.shield(asyncio.wrap_future(change))


class TurnSettings(Interface):
    """Properties and methods for the quantum and the anti-thrash mode, of all GPUs or of one."""

    def __init__(self, name: str, manager: Manager, gpu: GPU | None = None) -> None:
        super().__init__(name)
        self._manager = manager
        self._settings = manager if gpu is None else gpu
        self._index = "" if gpu is None else str(gpu.facts.index)

    TQ = read_only("TQ", "u", lambda self: self._settings.tq)
    TQUSec = read_only("TQUSec", "t", lambda self: self._settings.tq_usec)
    TQAuto = read_only("TQAuto", "b", lambda self: self._settings.tq_auto)
    AntiThrash = read_only("AntiThrash", "s", lambda self: str(self._settings.anti_thrash))

    @method("SetTQ", action=names.ACTION_SET_TQ)
    async def set_tq(self, seconds: "u") -> None:
        await _kept(self._manager.set_quantum(seconds * SECOND, self._index))

    @method("SetTQUSec", action=names.ACTION_SET_TQ)
    async def set_tq_usec(self, usec: "t") -> None:
        await _kept(self._manager.set_quantum(usec, self._index))

    @method("SetTQAuto", action=names.ACTION_SET_TQ)
    async def set_tq_auto(self) -> None:
        await _kept(self._manager.set_quantum(None, self._index))

    @method("SetAntiThrash", action=names.ACTION_SET_ANTI_THRASH)
    async def set_anti_thrash(self, mode: "s") -> None:
        await _kept(self._manager.set_anti_thrash(mode, self._index))


class ManagerInterface(TurnSettings):
    """Settings of all GPUs, and calls for a GPU, client or tenant by its name or id."""

    def __init__(self, manager: Manager, history: History | None = None) -> None:
        super().__init__(names.MANAGER_INTERFACE, manager)
        self._history = history
        self._drainers: dict[str, asyncio.Task[None]] = {}      # by the caller's name

    @signal("ClientNew", "id client")
    def client_new(self, id: int, client: str) -> "uo":
        return [id, client]

    @signal("ClientRemoved", "id client")
    def client_removed(self, id: int, client: str) -> "uo":
        return [id, client]

    @signal("ClientStuck", "client state waited_usec details")
    def client_stuck(self, client: str, state: str, waited_usec: int) -> "osta{sv}":
        return [client, state, waited_usec, {}]

    Version = read_only("Version", "s", lambda self: __version__, Emits.CONST)
    GPUs = read_only(
        "GPUs", "ao", lambda self: [names.gpu_path(gpu.facts.index) for gpu in self._manager.gpus])

    Disk = read_only("Disk", "s", lambda self: str((self._disk or [""])[0]), Emits.NOTHING)
    DiskSize = read_only("DiskSize", "t", lambda self: (self._disk or (0, 0))[1], Emits.NOTHING)
    DiskUsed = read_only(
        "DiskUsed", "t", lambda self: sum(c.memory.disk for c in self._manager.clients),
        Emits.NOTHING)
    DiskFault = read_only("DiskFault", "s", lambda self: self._manager.disk.fault, Emits.NOTHING)

    @property
    def _disk(self) -> tuple[Path, int] | None:
        return self._manager.disk.setting

    @method("SetGPUTQ", action=names.ACTION_SET_TQ)
    async def set_gpu_tq(self, gpu: "s", seconds: "u") -> None:
        await _kept(self._manager.set_quantum(seconds * SECOND, self._named(gpu)))

    @method("SetGPUTQUSec", action=names.ACTION_SET_TQ)
    async def set_gpu_tq_usec(self, gpu: "s", usec: "t") -> None:
        await _kept(self._manager.set_quantum(usec, self._named(gpu)))

    @method("SetGPUTQAuto", action=names.ACTION_SET_TQ)
    async def set_gpu_tq_auto(self, gpu: "s") -> None:
        await _kept(self._manager.set_quantum(None, self._named(gpu)))

    @method("SetGPUAntiThrash", action=names.ACTION_SET_ANTI_THRASH)
    async def set_gpu_anti_thrash(self, gpu: "s", mode: "s") -> None:
        await _kept(self._manager.set_anti_thrash(mode, self._named(gpu)))

    @method("GetGPU", "path", action=ANYONE)
    def get_gpu(self, gpu: "s") -> "o":
        return names.gpu_path(self._manager.gpu(gpu).facts.index)

    @method("ListGPUs", "gpus", action=ANYONE)
    def list_gpus(self) -> "a(usoa{sv})":
        return [
            [gpu.facts.index, gpu.facts.uuid, names.gpu_path(gpu.facts.index), {}]
            for gpu in self._manager.gpus
        ]

    @method("ListClients", "clients", action=ANYONE)
    def list_clients(self) -> "a(uuuoa{sv})":
        return rows(self._manager.clients)

    @method("GetClientsByPID", "clients", action=ANYONE)
    async def clients_by_pid(self, pid: "u") -> "ao":
        wanted = pid or await caller.get().pid()
        return [names.client_path(client.id) for client in self._manager.clients_by_pid(wanted)]

    @method("SetMemoryLimit", action=names.ACTION_MANAGE_CLIENTS, itself=True)
    async def set_memory_limit(self, client: "u", bytes: "t") -> None:
        await self._set_term(client, "memory_limit", bytes)

    @method("SetComputeLimit", action=names.ACTION_MANAGE_CLIENTS, itself=True)
    async def set_compute_limit(self, client: "u", percent: "u") -> None:
        await self._set_term(client, "compute_limit", percent)

    @method("SetWeight", action=names.ACTION_MANAGE_CLIENTS, itself=True)
    async def set_weight(self, client: "u", weight: "u") -> None:
        await self._set_term(client, "weight", weight)

    @method("SuspendClient", action=names.ACTION_MANAGE_CLIENTS, itself=True)
    async def suspend_client(self, client: "u") -> None:
        await self._set_term(client, "suspended", True)

    @method("ResumeClient", action=names.ACTION_MANAGE_CLIENTS, itself=True)
    async def resume_client(self, client: "u") -> None:
        await self._set_term(client, "suspended", False)

    @method("ParkClient", action=names.ACTION_MANAGE_CLIENTS, itself=True)
    async def park_client(self, client: "u") -> None:
        found = self._manager.client(client)
        await permit(found)
        await self._manager.moving.park(found)

    @method("MoveClient", action=names.ACTION_MANAGE_CLIENTS, itself=True)
    async def move_client(self, client: "u", gpu: "s") -> None:
        found, target = self._manager.client(client), self._manager.gpu(gpu)
        await permit(found)
        await self._manager.moving.move(found, target)

    @method("SetTenantTerms", action=names.ACTION_MANAGE_CLIENTS)
    async def set_tenant_terms(self, tenant: "s", terms: "a{sv}") -> None:
        await _kept(self._manager.tenancy.set(
            tenant, {name: one.value for name, one in terms.items()}))

    @method("SetPods", action=names.ACTION_NAME_PODS)
    def set_pods(self, pods: "a(sssa{ss})") -> None:
        self._manager.tenancy.name({
            f"{Kind.POD}:{uid}": Pod(printable(namespace), printable(name), {
                id: printable(container) for id, container in containers.items()
            })
            for uid, namespace, name, containers in pods
        })

    @method("ListTenants", "tenants", action=ANYONE)
    def list_tenants(self) -> "a(suttttasa(stss)a{sv})":
        return [_row(one) for one in self._manager.tenancy.tenants()]

    @method("GetTenant", "found", action=ANYONE)
    async def get_tenant(self, tenant: "s") -> "(suttttasa(stss)a{sv})":
        known = asyncio.Event()
        self._manager.tenancy.learn(tenant, known.set)
        await known.wait()
        return _row(self._manager.tenancy.tenant(tenant))

    @method("GetHistory", "from_usec to_usec each_usec rows missing",
            action=names.ACTION_VIEW_HISTORY, itself=True)
    async def get_history(
        self, since_usec: "t", until_usec: "t", step_usec: "t", by: "s", gpu: "s", names: "u",
        everyone: "b",
    ) -> "ttta(tsstttttttttta{sv})s":
        # Anybody may see what they have used themselves.
        if everyone:
            await caller.get().authorise(ACTION_VIEW_HISTORY)
        if self._history is None:
            raise NoHistory(
                "no history is kept", "set history and state-dir, see nvshared.conf(5)")
        uid = None if everyone else await caller.get().uid()
        return await self._history.ask(Asked(
            since_usec // SECOND, -(-until_usec // SECOND), step_usec // SECOND, by,
            self._uuid(gpu), uid, names), _used)

    @method("PreemptGPU", action=names.ACTION_MANAGE_CLIENTS)
    def preempt_gpu(self, gpu: "s") -> None:
        self._manager.gpu(gpu).preempt()

    @method("DrainGPU", "left", action=names.ACTION_MANAGE_CLIENTS)
    async def drain_gpu(self, gpu: "s") -> "a(us)":
        left = await self._manager.moving.drain(self._manager.gpu(gpu))
        return [[client.peer.pid, why] for client, why in left]

    @method("Reload", action=names.ACTION_RELOAD)
    def reload(self) -> None:
        """Reloads the configuration; logs a failure, too.

        systemctl reload runs busctl, whose output the journal may not assign to our unit once
        busctl has ended.
        """
        try:
            self._manager.reload()
        except NvshareError as error:
            logger.error("the settings stay as they are: %s", error)
            raise

    @method("Drain", action=names.ACTION_MANAGE_CLIENTS)
    def drain(self) -> None:
        """Drains until DRAINER_LINGER after the caller has left the bus."""
        who = caller.get()
        if who.name not in self._drainers:
            self._manager.drain(True)
            task = asyncio.get_running_loop().create_task(self._drain(who))
            self._drainers[who.name] = task

    @method("ResetSettings", action=names.ACTION_RELOAD)
    async def reset_settings(self) -> None:
        await _kept(self._manager.reset_settings())

    async def _set_term(self, client: int, term: str, value: int) -> None:
        await set_term(self._manager, self._manager.client(client), term, value)

    async def _drain(self, who: Caller) -> None:
        there = True
        while there:
            await asyncio.sleep(DRAINER_LOOK)
            there = await who.present()
        await asyncio.sleep(DRAINER_LINGER)
        del self._drainers[who.name]
        self._manager.drain(bool(self._drainers))

    def _named(self, gpu: str) -> str:
        """The GPU's index as text. Rejects "", which would mean all GPUs to Manager."""
        return str(self._manager.gpu(gpu).facts.index)

    def _uuid(self, gpu: str) -> str:
        """The UUID of a GPU, "" for "". A removed GPU, still in the history, goes by UUID only."""
        try:
            return self._manager.gpu(gpu).facts.uuid if gpu else ""
        except NoSuchGPU:
            if gpu.startswith("GPU-"):
                return gpu
            raise
