# SPDX-License-Identifier: Apache-2.0
"""com.nvshare.Manager: the whole of the daemon."""

import asyncio
import logging
import struct
from collections.abc import Iterable
from typing import Any, ClassVar

from nvshared import __version__, names
from nvshared.bus import history
from nvshared.bus.authority import Caller
from nvshared.bus.client import setter
from nvshared.bus.members import (
    ANYONE,
    Body,
    Changes,
    Interface,
    Owned,
    Property,
    SignalMember,
    method,
)
from nvshared.dbus.types import Variant
from nvshared.dbus.writing import begin, end, pad, put_text
from nvshared.errors import NvshareError
from nvshared.history import History
from nvshared.machine.peer import printable
from nvshared.machine.tenant import Kind
from nvshared.sharing.gpu import Client
from nvshared.sharing.manager import Manager
from nvshared.sharing.pods import Pod
from nvshared.sharing.tenancy import TenantView

logger = logging.getLogger(__name__)

DRAINER_LOOK = 5.0                      # seconds between looks whether a caller of Drain is there,
DRAINER_LINGER = 10.0                   # and for which it lasts afterwards: the service is stopped
_NUMBERS = struct.Struct("<III")


def rows(clients: Iterable[Client]) -> Body:
    """Clients as a(uuuoa{sv}). There may be thousands, and anybody may ask."""
    out = bytearray()
    whole = begin(out)
    for client in clients:
        pad(out)
        out += _NUMBERS.pack(client.id, client.peer.pid, client.gpu.facts.index)
        put_text(out, names.client_path(client.id))
        end(out, begin(out))
    end(out, whole)
    return Body(out)


def _row(tenant: TenantView) -> list[Any]:
    terms = [[one.term, one.value, one.pattern, one.place] for one in tenant.terms]
    return [
        tenant.name, tenant.programs, tenant.allocated, tenant.resident, tenant.pinned,
        tenant.held_time, tenant.within, terms, {},
    ]


class ManagerInterface(Interface, name=names.MANAGER_INTERFACE):
    """Names, types, and one line each for what Manager does."""

    client_new = SignalMember.of("ClientNew", "id:u client:o")
    client_removed = SignalMember.of("ClientRemoved", "id:u client:o")
    client_stuck = SignalMember.of("ClientStuck", "client:o state:s waited_usec:t details:a{sv}")

    _manager: Manager
    listed: ClassVar[tuple[Property["ManagerInterface"], ...]] = (
        Property("Version", "s", Changes.NEVER, lambda self: __version__),
        Property("TQ", "u", Changes.ANNOUNCED, lambda self: self._manager.tq),
        Property("TQUSec", "t", Changes.ANNOUNCED, lambda self: self._manager.tq_usec),
        Property("TQAuto", "b", Changes.ANNOUNCED, lambda self: self._manager.tq_auto),
        Property("AntiThrash", "s", Changes.ANNOUNCED, lambda self: str(self._manager.anti_thrash)),
        Property(
            "GPUs", "ao", Changes.ANNOUNCED,
            lambda self: [names.gpu_path(gpu.facts.index) for gpu in self._manager.gpus],
        ),
    )

    def __init__(self, manager: Manager, history: History | None = None) -> None:
        self._manager = manager
        self._history = history
        self._drainers: dict[str, asyncio.Task[None]] = {}      # by the caller's name

    @method("SetTQ", "seconds:u", action=names.ACTION_SET_TQ)
    def set_tq(self, _caller: Caller, seconds: int) -> None:
        """The quantum of all GPUs."""
        self._manager.set_tq(seconds)

    @method("SetGPUTQ", "gpu:s seconds:u", action=names.ACTION_SET_TQ)
    def set_gpu_tq(self, _caller: Caller, gpu: str, seconds: int) -> None:
        """The quantum of one GPU."""
        self._manager.set_tq(seconds, self._index(gpu))

    @method("SetTQUSec", "usec:t", action=names.ACTION_SET_TQ)
    def set_tq_usec(self, _caller: Caller, usec: int) -> None:
        """The quantum of all GPUs, in microseconds."""
        self._manager.set_tq_usec(usec)

    @method("SetGPUTQUSec", "gpu:s usec:t", action=names.ACTION_SET_TQ)
    def set_gpu_tq_usec(self, _caller: Caller, gpu: str, usec: int) -> None:
        """The quantum of one GPU, in microseconds."""
        self._manager.set_tq_usec(usec, self._index(gpu))

    @method("SetTQAuto", action=names.ACTION_SET_TQ)
    def set_tq_auto(self, _caller: Caller) -> None:
        """As hand-overs cost, on all GPUs."""
        self._manager.set_tq_auto()

    @method("SetGPUTQAuto", "gpu:s", action=names.ACTION_SET_TQ)
    def set_gpu_tq_auto(self, _caller: Caller, gpu: str) -> None:
        """As hand-overs cost, on one GPU."""
        self._manager.set_tq_auto(self._index(gpu))

    @method("SetAntiThrash", "mode:s", action=names.ACTION_SET_ANTI_THRASH)
    def set_anti_thrash(self, _caller: Caller, mode: str) -> None:
        """The mode of all GPUs."""
        self._manager.set_anti_thrash(mode)

    @method("SetGPUAntiThrash", "gpu:s mode:s", action=names.ACTION_SET_ANTI_THRASH)
    def set_gpu_anti_thrash(self, _caller: Caller, gpu: str, mode: str) -> None:
        """The mode of one GPU."""
        self._manager.set_anti_thrash(mode, self._index(gpu))

    @method("GetGPU", "gpu:s", "path:o", action=ANYONE)
    def get_gpu(self, _caller: Caller, gpu: str) -> str:
        """A GPU by index, UUID or PCI address."""
        return names.gpu_path(self._manager.gpu(gpu).facts.index)

    @method("ListGPUs", gives="gpus:a(usoa{sv})", action=ANYONE)
    def list_gpus(self, _caller: Caller) -> list[list[Any]]:
        """Index, UUID and path of all GPUs."""
        return [
            [gpu.facts.index, gpu.facts.uuid, names.gpu_path(gpu.facts.index), {}]
            for gpu in self._manager.gpus
        ]

    @method("ListClients", gives="clients:a(uuuoa{sv})", action=ANYONE)
    def list_clients(self, _caller: Caller) -> Body:
        """Id, process, GPU and path of all clients."""
        return rows(self._manager.clients)

    @method("GetClientsByPID", "pid:u", "clients:ao", action=ANYONE)
    async def clients_by_pid(self, caller: Caller, pid: int) -> list[str]:
        """The clients of one process; of the caller if `pid` is 0."""
        wanted = pid or await caller.pid()
        return [names.client_path(client.id) for client in self._manager.clients_by_pid(wanted)]

    def meant(self, client: int, *values: int) -> tuple[Client, *tuple[int, ...]]:
        """The one that has this id. Raises NoSuchClient."""
        return self._manager.client(client), *values

    set_memory_limit = setter("SetMemoryLimit", "client:u bytes:t", "memory_limit")
    set_compute_limit = setter("SetComputeLimit", "client:u percent:u", "compute_limit")
    set_weight = setter("SetWeight", "client:u weight:u", "weight")
    suspend_client = setter("SuspendClient", "client:u", "suspended", True)
    resume_client = setter("ResumeClient", "client:u", "suspended", False)

    @method("SetTenantTerms", "tenant:s terms:a{sv}", action=names.ACTION_MANAGE_CLIENTS)
    def set_tenant_terms(self, _caller: Caller, tenant: str, terms: dict[str, Variant]) -> None:
        """What holds for all programs of a tenant together, until it is taken back."""
        self._manager.tenancy.set(tenant, {name: one.value for name, one in terms.items()})

    @method("SetPods", "pods:a(sssa{ss})", action=names.ACTION_NAME_PODS)
    def set_pods(self, _caller: Caller, pods: list[tuple[str, str, str, dict[str, str]]]) -> None:
        """What all pods of this machine are called."""
        self._manager.tenancy.name({
            f"{Kind.POD}:{uid}": Pod(printable(namespace), printable(name), {
                id: printable(container) for id, container in containers.items()
            })
            for uid, namespace, name, containers in pods
        })

    @method("ListTenants", gives="tenants:a(suttttasa(stss)a{sv})", action=ANYONE)
    def list_tenants(self, _caller: Caller) -> list[list[Any]]:
        """Tenants with programs or terms, and where each term comes from."""
        return [_row(one) for one in self._manager.tenancy.tenants()]

    @method("GetTenant", "tenant:s", "found:(suttttasa(stss)a{sv})", action=ANYONE)
    def get_tenant(self, _caller: Caller, tenant: str) -> list[Any]:
        """One of them, or what would hold for one that is not there."""
        return _row(self._manager.tenancy.tenant(tenant))

    @method("GetHistory", history.TAKES, history.GIVES,
            action=Owned(names.ACTION_VIEW_HISTORY, history.obstacle))
    async def get_history(self, caller: Caller, *asked: Any) -> Body:
        """What was used, by the caller alone or by everyone."""
        *what, everyone = asked
        uid = None if everyone else await caller.uid()
        return await history.answer(self._manager, self._history, uid, *what)

    @method("PreemptGPU", "gpu:s", action=names.ACTION_MANAGE_CLIENTS)
    def preempt_gpu(self, _caller: Caller, gpu: str) -> None:
        """Ends the present turns on a GPU, if somebody waits."""
        self._manager.gpu(gpu).preempt()

    @method("Reload", action=names.ACTION_RELOAD)
    def reload(self, _caller: Caller) -> None:
        """Reads the configuration again. What is wrong with it is for the journal, too: of a
        command that has ended (systemctl reload runs one) it may not know whose words it has."""
        try:
            self._manager.reload()
        except NvshareError as error:
            logger.error("the settings stay as they are: %s", error)
            raise

    @method("Drain", action=names.ACTION_MANAGE_CLIENTS)
    def drain(self, caller: Caller) -> None:
        """Lets in whoever fits, for as long as the caller is on the bus."""
        if caller.name not in self._drainers:
            self._manager.drain(True)
            task = asyncio.get_running_loop().create_task(self._drain(caller))
            self._drainers[caller.name] = task

    async def _drain(self, caller: Caller) -> None:
        there = True
        while there:
            await asyncio.sleep(DRAINER_LOOK)
            there = await caller.present()
        await asyncio.sleep(DRAINER_LINGER)
        del self._drainers[caller.name]
        self._manager.drain(bool(self._drainers))

    @method("ResetSettings", action=names.ACTION_RELOAD)
    def reset_settings(self, _caller: Caller) -> None:
        """Returns to the configuration."""
        self._manager.reset_settings()

    def _index(self, gpu: str) -> str:
        """An empty name means all GPUs to Manager, but to nobody who names one."""
        return str(self._manager.gpu(gpu).facts.index)
