# SPDX-License-Identifier: Apache-2.0
"""The service objects: manager, GPUs and clients, and the daemon's log level."""

import asyncio
import logging
import os
from collections.abc import Hashable, Iterable, Mapping
from concurrent.futures import Future
from functools import lru_cache, partial
from typing import Any

from dbus_next.signature import Variant

from nvshared import __version__, names, tiers
from nvshared.bus.collected import Collected
from nvshared.bus.dispatch import Caller, caller
from nvshared.bus.interface import (
    ANYONE,
    Interface,
    announced,
    constant,
    method,
    method_of,
    signal,
    unannounced,
)
from nvshared.dbus import array, marshalled
from nvshared.errors import InvalidArgs, NoHistory, NoSuchGPU
from nvshared.faults import KINDS, Faults
from nvshared.history import History, Query, QueryResult
from nvshared.machine import peer, subordinate
from nvshared.machine.peer import printable
from nvshared.machine.saving import Saved, is_elsewhere
from nvshared.machine.tenant import Kind
from nvshared.names import ACTION_MANAGE_CLIENTS, ACTION_VIEW_HISTORY
from nvshared.scheduler.snapshot import CardSnapshot
from nvshared.sharing.gpu import GPU, Client, PodNames
from nvshared.sharing.manager import Manager
from nvshared.sharing.sampler import take_samples
from nvshared.sharing.tenancy import TenantView
from nvshared.terms import CLIENT_TERMS, Term
from nvshared.units import SECOND

DETAIL_LONGEST = 500                    # most characters of a reported fault's detail
DRAINER_LINGER = 10.0                   # seconds that draining goes on after the caller has left


FAULTS = "a(ssssba{sv})"                # the type of the properties Faults


def fault_rows(faults: Faults) -> list[list[Any]]:
    return [[*fault, {}] for fault in faults]


def rows(clients: Iterable[Client]) -> bytes:
    """Marshals clients as a(uuuoa{sv}); fast, as there may be thousands and any user may call."""
    return array(_client(one.id, one.peer.pid, one.gpu.facts.index) for one in clients)


@lru_cache(4096)
def _client(id: int, pid: int, gpu: int) -> bytes:
    return marshalled("(uuuoa{sv})", [id, pid, gpu, names.client_path(id), {}])


def _row(tenant: TenantView) -> list[Any]:
    terms = [[one.term, one.value, one.pattern, one.place] for one in tenant.terms]
    return [*tenant[:6], list(tenant.within), terms, {}]


def _used(found: QueryResult) -> bytes:
    """Marshals the reply of GetHistory; called outside the event loop, as rows may be many."""
    rows = [[row.start * SECOND, row.name, row.user, *row.usage, {}] for row in found.rows]
    times = [one * SECOND for one in (found.since, found.until, found.step)]
    return marshalled("ttta(tsstttttttttttta{sv})s", *times, rows, found.missing)


def _account(uid: int) -> str:
    """The account of a caller; user ids that /etc/subuid gives one user count as one."""
    return f"user:{subordinate.lender(uid)}"


async def _kept(change: Future[None]) -> None:
    """Waits until a change is on the disk; cancelling does not stop the write. Raises NotKept."""
    await asyncio.shield(asyncio.wrap_future(change))


# Declares a method that checks itself whether the caller may change the client.
changes_client = partial(method, action=ACTION_MANAGE_CLIENTS, itself=True)


async def set_terms(manager: Manager, client: Client, given: Mapping[str, Variant]) -> None:
    """Sets terms of a client. Owners need no polkit within administrators' bounds."""
    known = {term.name: term for term in CLIENT_TERMS if term.of_client}
    if unknown := given.keys() - known:
        raise InvalidArgs(
            f"a client has no term {min(unknown)!r}", f"there are {', '.join(known)}")
    changes = []
    for term, value in ((known[name], one.value) for name, one in given.items()):
        term.check(value)
        changes.append((term, value, await permit(client, term, value)))
    for term, value, as_owner in changes:
        manager.set_term(client.id, term, value, by_owner=as_owner)
    await _kept(manager.saved_terms())


async def permit(client: Client, term: Term | None = None, value: int = 0) -> bool:
    """True: the caller owns the client, and the value of a term is within administrators' bounds.
    False: polkit permits the change. Raises NotPermitted if polkit refuses it."""
    sender, bound = caller.get(), ""
    if client.peer.is_of(await sender.uid()):
        if term is None or (
                not await sender.administers() and client.terms.allows(term, value)):
            return True
        bound = client.terms.bound(term, value)
    await sender.authorise(ACTION_MANAGE_CLIENTS, bound)
    return False


# syslog's level names; Python's logging has fewer levels.
_LEVELS = {
    "emerg": logging.CRITICAL, "alert": logging.CRITICAL, "crit": logging.CRITICAL,
    "err": logging.ERROR, "warning": logging.WARNING, "notice": logging.INFO, "info": logging.INFO,
    "debug": logging.DEBUG
}
_WORDS = {level: word for word, level in _LEVELS.items()}       # the last of synonyms stays


class LogControl(Interface, name=names.LOG_CONTROL_INTERFACE):
    def _level(self) -> str:
        return _WORDS[logging.getLogger().getEffectiveLevel()]

    def _set_level(self, word: "s") -> None:
        if word not in _LEVELS:
            known = ", ".join(_LEVELS)
            raise InvalidArgs(f"there is no log level {word!r}", f"give one of {known}")
        logging.getLogger().setLevel(_LEVELS[word])

    LogLevel = unannounced("s", _level, write=_set_level, action=names.ACTION_SET_LOG_LEVEL)
    LogTarget = unannounced(
        "s", lambda self: "journal" if "JOURNAL_STREAM" in os.environ else "console")
    SyslogIdentifier = constant("s", lambda self: "nvshared")


class TurnSettings(Interface):
    def __init__(self, manager: Manager, gpu: GPU | None = None) -> None:
        super().__init__()
        self.manager = manager
        self.gpu = gpu                  # None: this object has the default settings of all GPUs
        self.of = manager if gpu is None else gpu

    TQ = announced("u", lambda self: -(-self.of.tq // SECOND))      # rounded up
    TQUSec = announced("t", "of.tq")
    TQAuto = announced("b", lambda self: self.of.settings.tq is None)
    AntiThrash = announced("s", "of.settings.anti_thrash.value")
    Policy = announced("s", "of.settings.policy")

    @method("SetTQ", action=names.ACTION_SET_TQ)
    async def set_tq(self, seconds: "u") -> None:
        await _kept(self.manager.set_tq(seconds * SECOND, self.gpu))

    @method("SetTQUSec", action=names.ACTION_SET_TQ)
    async def set_tq_usec(self, usec: "t") -> None:
        await _kept(self.manager.set_tq(usec, self.gpu))

    @method("SetTQAuto", action=names.ACTION_SET_TQ)
    async def set_tq_auto(self) -> None:
        await _kept(self.manager.set_tq(None, self.gpu))

    @method("SetAntiThrash", action=names.ACTION_SET_ANTI_THRASH)
    async def set_anti_thrash(self, mode: "s") -> None:
        await _kept(self.manager.set_anti_thrash(mode, self.gpu))

    @method("SetPolicy", action=names.ACTION_SET_POLICY)
    async def set_policy(self, name: "s") -> None:
        await _kept(self.manager.set_policy(name, self.gpu))


class GPUInterface(TurnSettings, name=names.GPU_INTERFACE):
    gpu: GPU

    turn_started = signal("TurnStarted", "client:o")
    turn_ended = signal("TurnEnded", "client:o reason:s held_usec:t")
    Index = constant("u", "gpu.facts.index")
    UUID = constant("s", "gpu.facts.uuid")
    Name = constant("s", "gpu.facts.name")
    PCIBusID = constant("s", "gpu.facts.pci_bus_id")
    MemoryTotal = constant("t", "gpu.facts.memory_total")
    MIG = constant("b", "gpu.facts.mig")
    State = announced("s", "gpu.state")
    Faults = announced(FAULTS, lambda self: fault_rows(self.gpu.faults))
    Fault = announced("s", "gpu.fault")
    Holders = announced("ao", lambda self: [names.client_path(one.id) for one in self.gpu.holders])
    QueueLength = announced("u", lambda self: self.gpu.snapshot().queue_length)

    @method("Preempt", action=names.ACTION_MANAGE_CLIENTS)
    def preempt(self) -> None:
        self.gpu.preempt()

    @method("ListClients", "clients", action=ANYONE)
    def list_clients(self) -> "a(uuuoa{sv})":
        return rows(self.gpu.clients.values())


class StatisticsInterface(Interface, name=names.STATISTICS_INTERFACE):
    """Figures that change all the time, so their changes are not announced."""

    def __init__(self, gpu: GPU) -> None:
        super().__init__()
        self.gpu = gpu

    async def refresh(self) -> None:
        """Samples NVML now: a GPU without clients is not sampled periodically."""
        await take_samples([self.gpu])

    @property
    def _scheduler(self) -> CardSnapshot:
        return self.gpu.snapshot()

    Capacity = unannounced("t", "_scheduler.capacity")
    Free = unannounced("t", lambda self: max(0, self._scheduler.free))
    Lent = unannounced("t", "gpu.neighbour.lent")
    Outside = unannounced("t", "gpu.capacity.outside")
    MemoryUsed = unannounced("t", "gpu.sample.memory_used")
    Utilization = unannounced("d", "gpu.sample.utilisation")
    Temperature = unannounced("d", "gpu.sample.temperature")
    Power = unannounced("d", "gpu.sample.power")
    Turns = unannounced("t", "_scheduler.counters.turns")
    BytesIn = unannounced("t", "_scheduler.counters.bytes_in")
    BytesOut = unannounced("t", "_scheduler.counters.bytes_out")
    Unshared = unannounced("a(uust)", lambda self: [
        [pid, peer.owner(pid), peer.name(pid), size]
        for pid, size in sorted(self.gpu.strangers.items(), key=lambda one: -one[1])])


class ClientInterface(Interface, name=names.CLIENT_INTERFACE):
    def __init__(self, manager: Manager, client: Client) -> None:
        super().__init__()
        self.manager = manager
        self.client = client

    MemoryLimit = announced("t", "client.terms.in_force.memory_limit")
    ComputeLimit = announced("u", "client.terms.in_force.compute_limit")
    Weight = announced("u", "client.terms.in_force.weight")
    Suspended = announced("b", "client.terms.in_force.suspended")
    Terms = announced("a{sv}", lambda self: {
        term.name: Variant("t", getattr(self.client.terms.in_force, term.field))
        for term in CLIENT_TERMS if term.of_client})
    PID = constant("u", "client.peer.pid")
    UID = constant("u", "client.peer.uid")
    GPU = constant("o", lambda self: names.gpu_path(self.client.gpu.facts.index))
    Name = announced("s", "client.name")
    Tenant = announced("s", "client.tenant")
    Gang = unannounced("s", "client.gang")
    State = announced("s", "client.state")
    Unparkable = announced("s", "client.parking.impossible")
    Moved = unannounced("s", "client.parking.moved")
    PinReason = announced("s", lambda self: str(self.client.memory.pin_reason))
    Allocated = unannounced("t", "client.memory.allocated")
    Resident = unannounced("t", "client.memory.resident")
    Swapped = unannounced(
        "t", lambda self: max(0, self.client.memory.allocated - self.client.memory.resident))
    Borrowed = unannounced("t", "client.memory.borrowed")
    OnDisk = unannounced("t", "client.memory.disk")
    Tiers = unannounced("a{st}", lambda self: tiers.by_name(self.client.memory))
    Loading = unannounced("t", "client.view.loading")
    Pinned = unannounced("t", "client.memory.pinned")
    HeldUSec = unannounced("t", "client.held")
    WaitedUSec = unannounced("t", "client.waited")
    WaitingUSec = unannounced("t", "client.waiting")
    IdleUSec = unannounced("t", "client.idle")
    ExpectedUSec = unannounced("t", "client.expected")
    Position = unannounced("u", "client.position")
    Turns = unannounced("t", "client.view.counters.turns")
    BytesIn = unannounced("t", "client.view.counters.bytes_in")
    BytesOut = unannounced("t", "client.view.counters.bytes_out")

    @changes_client("SetTerms")
    async def set_terms(self, terms: "a{sv}") -> None:
        await set_terms(self.manager, self.client, terms)

    @changes_client("SetMemoryLimit")
    async def set_memory_limit(self, bytes: "t") -> None:
        await set_terms(self.manager, self.client, {"memory-limit": Variant("t", bytes)})

    @changes_client("SetComputeLimit")
    async def set_compute_limit(self, percent: "u") -> None:
        await set_terms(self.manager, self.client, {"compute-limit": Variant("u", percent)})

    @changes_client("SetWeight")
    async def set_weight(self, weight: "u") -> None:
        await set_terms(self.manager, self.client, {"weight": Variant("u", weight)})

    @changes_client("Suspend")
    async def suspend(self) -> None:
        await set_terms(self.manager, self.client, {"suspended": Variant("u", 1)})

    @changes_client("Resume")
    async def resume(self) -> None:
        await set_terms(self.manager, self.client, {"suspended": Variant("u", 0)})

    @method("ListTurns", "turns", action=ANYONE)
    def list_turns(self) -> "a(ttttsa{sv})":
        return [[*turn, {}] for turn in self.client.turns.latest(self.client.gpu.now)]


# Methods of the manager for callers that know a name of the GPU or the client's id, but no path.
of_gpu = partial(method_of, argument="gpu:s", find=lambda interface, gpu: GPUInterface(
    interface.manager, interface.manager.gpu(gpu)))
of_client = partial(method_of, argument="client:u", find=lambda interface, id: ClientInterface(
    interface.manager, interface.manager.client(id)))


class ManagerInterface(TurnSettings, name=names.MANAGER_INTERFACE):
    def __init__(self, manager: Manager, history: History | None = None) -> None:
        super().__init__(manager)
        self._history = history
        self._tenants = Collected(self._tenant_names, self._tenant)
        self._drainers: dict[Hashable, asyncio.Task[None]] = {}     # by Caller.key
        # By fault, tasks that end faults when the callers that reported them leave the bus.
        self._reporters: dict[str, asyncio.Task[None]] = {}

    async def refresh(self) -> None:
        await self.manager.look_for_faults()

    client_new = signal("ClientNew", "id:u client:o")
    client_removed = signal("ClientRemoved", "id:u client:o")
    client_stuck = signal("ClientStuck", "client:o state:s waited_usec:t details:a{sv}")
    Version = constant("s", lambda self: __version__)
    Socket = constant("s", "manager.socket")
    GPUs = announced(
        "ao", lambda self: [names.gpu_path(gpu.facts.index) for gpu in self.manager.gpus])
    Disk = unannounced("s", lambda self: str((self.manager.disk.setting or [""])[0]))
    DiskSize = unannounced("t", lambda self: (self.manager.disk.setting or (0, 0))[1])
    DiskUsed = unannounced("t", lambda self: sum(c.memory.disk for c in self.manager.clients))
    Faults = announced(FAULTS, lambda self: fault_rows(self.manager.faults))
    DiskFault = unannounced("s", "manager.disk.fault")

    @method("GetGPU", "path", action=ANYONE)
    def get_gpu(self, gpu: "s") -> "o":
        return names.gpu_path(self.manager.gpu(gpu).facts.index)

    @method("ListGPUs", "gpus", action=ANYONE)
    def list_gpus(self) -> "a(usoa{sv})":
        return [
            [gpu.facts.index, gpu.facts.uuid, names.gpu_path(gpu.facts.index), {}]
            for gpu in self.manager.gpus]

    @method("ListClients", "clients", action=ANYONE)
    def list_clients(self) -> "a(uuuoa{sv})":
        return rows(self.manager.clients)

    @method("GetClientsByPID", "clients", action=ANYONE)
    async def clients_by_pid(self, pid: "u") -> "ao":
        wanted = pid or await caller.get().pid()
        return [names.client_path(client.id) for client in self.manager.clients_by_pid(wanted)]

    set_client_terms = of_client("SetClientTerms", ClientInterface.set_terms)
    set_memory_limit = of_client("SetMemoryLimit", ClientInterface.set_memory_limit)
    set_compute_limit = of_client("SetComputeLimit", ClientInterface.set_compute_limit)
    set_weight = of_client("SetWeight", ClientInterface.set_weight)
    suspend_client = of_client("SuspendClient", ClientInterface.suspend)
    resume_client = of_client("ResumeClient", ClientInterface.resume)

    @changes_client("ParkClient")
    async def park_client(self, client: "u") -> None:
        found = self.manager.client(client)
        await permit(found)
        await self.manager.moving.park(found)

    @changes_client("MoveClient")
    async def move_client(self, client: "u", gpu: "s") -> None:
        found, target = self.manager.client(client), self.manager.gpu(gpu)
        await permit(found)
        await self.manager.moving.move(found, target)

    @method("SaveClient", "folder", action=names.ACTION_MANAGE_CLIENTS, itself=True)
    async def save_client(self, client: "u", to: "s") -> "s":
        found = self.manager.client(client)
        await permit(found)
        if to:                          # it makes a folder at any place of root's
            await caller.get().authorise(ACTION_MANAGE_CLIENTS, "save without --to")
        return (await self.manager.saving.save(found, to)).folder

    @method("ListSaved", "saved", action=names.ACTION_MANAGE_CLIENTS, itself=True)
    async def list_saved(self, to: "s") -> "a(ssuutttsa{sv})":
        sender = caller.get()
        if to:                          # the answer tells whether a folder is there
            await sender.authorise(ACTION_MANAGE_CLIENTS)
        uid, administers = await sender.uid(), await sender.administers()
        return [                        # CRIU's words may contain names of a user's files
            [one.folder, one.state, one.pid, one.uid, one.size, one.bytes, one.saved * SECOND,
             one.why if administers or uid == one.uid else "", {}]
            for one in await self.manager.saving.saved(to, _account(uid))]

    @method("Restore", "pid", action=names.ACTION_MANAGE_CLIENTS, itself=True)
    async def restore(self, folder: "s") -> "u":
        return await self.manager.saving.restore(await self._saved(folder))

    @method("RemoveSaved", action=names.ACTION_MANAGE_CLIENTS, itself=True)
    async def remove_saved(self, folder: "s") -> None:
        await self.manager.saving.remove(await self._saved(folder))

    @method("SetTenantTerms", action=names.ACTION_MANAGE_CLIENTS)
    async def set_tenant_terms(self, tenant: "s", terms: "a{sv}") -> None:
        await self._found(tenant)
        await _kept(self.manager.tenancy.set_terms(
            tenant, {name: one.value for name, one in terms.items()}))

    @method("SetPods", action=names.ACTION_NAME_PODS)
    def set_pods(self, pods: "a(sssa{ss})") -> None:
        self.manager.tenancy.name({
            f"{Kind.POD}:{uid}": PodNames(printable(namespace), printable(name), {
                id: printable(container) for id, container in containers.items()})
            for uid, namespace, name, containers in pods})

    @method("ReportFault", action=names.ACTION_NAME_PODS)
    def report_fault(self, fault: "s", detail: "s") -> None:
        reported = [id for id, kind in KINDS.items() if kind.reported]
        if fault not in reported:
            raise InvalidArgs(f"the fault {fault!r} is not reported over D-Bus",
                              f"there are {', '.join(reported)}")
        self.manager.faults.set(fault, printable(detail)[:DETAIL_LONGEST])
        if fault in self._reporters:
            self._reporters.pop(fault).cancel()
        if detail:
            task = asyncio.get_running_loop().create_task(self._watch_reporter(fault, caller.get()))
            self._reporters[fault] = task

    async def _watch_reporter(self, fault: str, sender: Caller) -> None:
        await sender.departure()
        del self._reporters[fault]
        self.manager.faults.set(fault, "")

    @method("ListTenants", "tenants", action=ANYONE)
    async def list_tenants(self) -> "a(suttttasa(stss)a{sv})":
        return await self._tenants.get()

    async def _tenant_names(self) -> list[str]:
        return self.manager.tenancy.names()

    def _tenant(self, name: str) -> bytes | None:
        found = self.manager.tenancy.view(name)
        if not found.programs and all(one.pattern for one in found.terms):
            return None                 # its programs have ended meanwhile
        return marshalled("(suttttasa(stss)a{sv})", _row(found))

    @method("GetTenant", "found", action=ANYONE)
    async def get_tenant(self, tenant: "s") -> "(suttttasa(stss)a{sv})":
        await self._found(tenant)
        return _row(self.manager.tenancy.tenant(tenant))

    @method("GetHistory", "from_usec to_usec each_usec rows missing",
            action=names.ACTION_VIEW_HISTORY, itself=True)
    async def get_history(
        self, since_usec: "t", until_usec: "t", step_usec: "t", by: "s", gpu: "s", names: "u",
        everyone: "b",
    ) -> "ttta(tsstttttttttttta{sv})s":
        # Users may see the usage of their own programs without a polkit check.
        if everyone:
            await caller.get().authorise(ACTION_VIEW_HISTORY)
        if self._history is None:
            raise NoHistory("no history is kept", "set history and state-dir, see nvshared.conf(5)")
        uid = None if everyone else await caller.get().uid()
        return await self._history.ask(Query(
            since_usec // SECOND, -(-until_usec // SECOND), step_usec // SECOND, by,
            self._uuid(gpu), uid, names), _used)

    set_gpu_tq = of_gpu("SetGPUTQ", TurnSettings.set_tq)
    set_gpu_tq_usec = of_gpu("SetGPUTQUSec", TurnSettings.set_tq_usec)
    set_gpu_tq_auto = of_gpu("SetGPUTQAuto", TurnSettings.set_tq_auto)
    set_gpu_anti_thrash = of_gpu("SetGPUAntiThrash", TurnSettings.set_anti_thrash)
    set_gpu_policy = of_gpu("SetGPUPolicy", TurnSettings.set_policy)
    preempt_gpu = of_gpu("PreemptGPU", GPUInterface.preempt)

    @method("DrainGPU", "left", action=names.ACTION_MANAGE_CLIENTS)
    async def drain_gpu(self, gpu: "s") -> "a(us)":
        left = await self.manager.moving.drain(self.manager.gpu(gpu))
        return [[client.peer.pid, why] for client, why in left]

    @method("ForgetGPU", action=names.ACTION_FORGET_GPU)
    async def forget_gpu(self, gpu: "s") -> None:
        await _kept(self.manager.forget(self.manager.gpu(gpu)))

    @method("Reload", action=names.ACTION_RELOAD)
    async def reload(self) -> None:
        await self.manager.read_again()

    @method("Drain", action=names.ACTION_MANAGE_CLIENTS)
    def drain(self) -> None:
        """Drains until DRAINER_LINGER after the caller has left the bus."""
        sender = caller.get()
        if sender.key not in self._drainers:
            self.manager.drain(True)
            task = asyncio.get_running_loop().create_task(self._drain(sender))
            self._drainers[sender.key] = task

    @method("ResetSettings", action=names.ACTION_RELOAD)
    async def reset_settings(self) -> None:
        await _kept(self.manager.reset_settings())

    async def _drain(self, sender: Caller) -> None:
        await sender.departure()
        await asyncio.sleep(DRAINER_LINGER)
        del self._drainers[sender.key]
        self.manager.drain(bool(self._drainers))

    async def _saved(self, folder: str) -> Saved:
        """Finds a saved program. Raises NotPermitted unless it is the caller's or polkit agrees."""
        sender, elsewhere = caller.get(), is_elsewhere(folder)
        if elsewhere:                   # the answer tells whether a folder is there
            await sender.authorise(ACTION_MANAGE_CLIENTS)
        uid = await sender.uid()
        found = await self.manager.saving.find(folder, _account(uid))
        if not elsewhere and uid != found.uid:
            await sender.authorise(ACTION_MANAGE_CLIENTS)
        return found

    async def _found(self, tenant: str) -> None:
        """Waits until the user that a tenant's name has is known, or for a second."""
        known = asyncio.Event()
        user = subordinate.lender(await caller.get().uid())
        self.manager.tenancy.find(tenant, user, known.set)
        await known.wait()

    def _uuid(self, gpu: str) -> str:
        """The UUID of a GPU, "" for "". A removed GPU, still in the history, goes by UUID only."""
        try:
            return self.manager.gpu(gpu).facts.uuid if gpu else ""
        except NoSuchGPU:
            if gpu.startswith("GPU-"):
                return gpu
            raise
