# SPDX-License-Identifier: Apache-2.0
"""The client side of nvshared's D-Bus interface: blocking calls, without asyncio to be fast.

Modules that only some commands need are imported in the methods that use them."""

import sys
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from nvshared import names
from nvshared.errors import NoSuchClient, PasswordNeeded

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nvshared.control.snapshot import PastTurn, SavedRow, Snapshot, TenantSnapshot, UsageTable


class Call(NamedTuple):
    path: str
    interface: str
    member: str
    signature: str = ""
    values: tuple[Any, ...] = ()

    @classmethod
    def properties(cls, path: str, interface: str, name: str = "") -> "Call":
        """Gets one property of an interface, or all of them."""
        member, values = ("Get", (interface, name)) if name else ("GetAll", (interface,))
        return cls(path, "org.freedesktop.DBus.Properties", member, "s" * len(values), values)


class Daemon:
    """A connection to nvshared. All methods raise an NvshareError when they fail."""

    def __init__(
        self, bus: str = "system", patience: float | None = None, *, asks: bool = True
    ) -> None:
        """`patience`: seconds for a reply. `asks`: polkit may ask for a password here."""
        from nvshared.control.connection import ControlConnection

        self._connection = ControlConnection(bus, patience)
        self._asks = asks

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def snapshot(self) -> "Snapshot":
        """Fetches the state of the daemon, its GPUs and its clients in one round trip."""
        from nvshared.control.snapshot import snapshot

        (properties,), (objects,) = self._connection.ask(
            Call.properties(names.MANAGER_PATH, names.MANAGER_INTERFACE),
            Call(names.MANAGER_PATH, "org.freedesktop.DBus.ObjectManager", "GetManagedObjects"))
        return snapshot(properties, objects)

    def gpus(self, *, fresh: bool = False) -> list[dict[str, Any]]:
        """Each GPU's properties by name, no statistics; `fresh`: nvshared queries NVML first."""
        ((paths,),) = self._connection.ask(
            Call.properties(names.MANAGER_PATH, names.MANAGER_INTERFACE, "GPUs"))
        if fresh:
            self._connection.ask(*[
                Call.properties(path, names.STATISTICS_INTERFACE, "MemoryUsed")
                for path in paths.value])
        answers = self._connection.ask(*[
            Call.properties(path, names.GPU_INTERFACE) for path in paths.value])
        return [{name: one.value for name, one in gpu.items()} for (gpu,) in answers]

    @property
    def peer(self) -> str:
        """The bus, and the unique name there, of the nvshared that replied last: they differ after
        a restart of either."""
        return self._connection.peer

    def gpu(self, name: str) -> int:
        """The index of the GPU with this index, UUID or PCI address."""
        (path,) = self._call("GetGPU", "s", name)
        return int(path.rpartition("/")[2])

    def set_tq(self, usec: int, gpu: str | None = None) -> None:
        """Sets the quantum of one GPU (by any of its names) or of all; microseconds, 0 for auto."""
        if usec:
            self._set("TQUSec", gpu, "t", usec)
        else:
            self._set("TQAuto", gpu)

    def set_anti_thrash(self, mode: str, gpu: str | None = None) -> None:
        """Sets the anti-thrash mode (auto, on or off) of one GPU or of all."""
        self._set("AntiThrash", gpu, "s", mode)

    def set_policy(self, name: str, gpu: str | None = None) -> None:
        """Sets the policy (a name of POLICIES) of one GPU or of all."""
        self._set("Policy", gpu, "s", name)

    def clients_of(self, pid: int, gpu: str | None = None) -> dict[int, int]:
        """A process's clients on a GPU or all: GPU indices by client id. Raises NoSuchClient."""
        index = None if gpu is None else self.gpu(gpu)
        (rows,) = self._call("ListClients")
        found = {id: on for id, owner, on, *_ in rows if owner == pid and index in (None, on)}
        if not found:
            where = "a GPU" if gpu is None else f"GPU {gpu}"
            raise NoSuchClient(
                f"no process {pid} uses {where}", "see those that do with: nvsharectl clients")
        return found

    def set_client_term(self, client: int, term: str, value: int) -> None:
        """Sets a term, by name; its default stands for no term."""
        from dbus_next.signature import Variant

        self._call("SetClientTerms", "ua{sv}", client, {term: Variant("t", value)})

    def tenants(self) -> "list[TenantSnapshot]":
        from nvshared.control.snapshot import tenant

        (rows,) = self._call("ListTenants")
        return [tenant(row) for row in rows]

    def tenant(self, name: str) -> "TenantSnapshot":
        """One tenant; it need not have programs or terms yet."""
        from nvshared.control.snapshot import tenant

        (row,) = self._call("GetTenant", "s", name)
        return tenant(row)

    def turns(self, client: int) -> "list[PastTurn]":
        """The last turns of a client, the latest first."""
        from nvshared.control.snapshot import PastTurn

        ((rows,),) = self._connection.ask(
            Call(names.client_path(client), names.CLIENT_INTERFACE, "ListTurns"))
        return [PastTurn(*row[:-1]) for row in rows]

    def set_tenant_terms(self, name: str, terms: "Mapping[str, int]", source: str = "") -> None:
        """Sets terms by name; 0 resets a term. `source`: one of TERM_SOURCES, "": by hand."""
        from dbus_next.signature import Variant

        values = {term: Variant("t", value) for term, value in terms.items()}
        if source:
            values["source"] = Variant("s", source)
        self._call("SetTenantTerms", "sa{sv}", name, values)

    def set_pods(self, pods: "Iterable[tuple[str, str, str, Mapping[str, str]]]") -> None:
        """Sets the names of all pods: UID, namespace, name, and containers' names by their ids."""
        self._call("SetPods", "a(sssa{ss})", [list(pod) for pod in pods])

    def report_fault(self, fault: str, detail: str) -> None:
        """Reports a fault, a row of nvshared.faults.KINDS with `reported`, while this connection
        lasts; `detail`: the object or cause in words; "": the fault has ended."""
        self._call("ReportFault", "ss", fault, detail)

    def history(
        self, since: int, until: int, step: int, by: str, gpu: str, names: int, *, everyone: bool
    ) -> "UsageTable":
        """Usage by user, tenant or gpu, in rows of `step` us, for `names` names at most; 0: all."""
        from nvshared.control.snapshot import history

        return history(*self._call(
            "GetHistory", "tttssub", since, until, step, by, gpu, names, everyone))

    def park(self, client: int) -> None:
        """Parks a client: its memory and context leave the GPU until its next use of the GPU."""
        self._call("ParkClient", "u", client)

    def move(self, client: int, gpu: str) -> None:
        """Moves a client to another GPU (index, UUID or PCI address)."""
        self._call("MoveClient", "us", client, gpu)

    def save(self, client: int, to: str = "") -> str:
        """Saves a client, which ends, below a folder ("": the usual one). Returns its folder."""
        (folder,) = self._call("SaveClient", "us", client, to)
        return str(folder)

    def saved(self, to: str = "") -> "list[SavedRow]":
        """The saved programs in a folder; "": the usual one."""
        from nvshared.control.snapshot import SavedRow

        (rows,) = self._call("ListSaved", "s", to)
        return [SavedRow(*row[:-1]) for row in rows]

    def restore(self, folder: str) -> int:
        """Restores a saved program. Returns its process."""
        (pid,) = self._call("Restore", "s", folder)
        return int(pid)

    def remove_saved(self, folder: str) -> None:
        self._call("RemoveSaved", "s", folder)

    def drain_gpu(self, gpu: str) -> list[tuple[int, str]]:
        """Moves or parks all clients of a GPU. Returns the processes that stay, and why."""
        (left,) = self._call("DrainGPU", "s", gpu)
        return [(pid, why) for pid, why in left]

    def preempt(self, gpu: str) -> None:
        """Ends the current turns on a GPU (index, UUID or PCI address) if a client waits."""
        self._call("PreemptGPU", "s", gpu)

    def forget_gpu(self, gpu: str) -> None:
        """Forgets a lost GPU, or errors that the driver has reported of a GPU."""
        self._call("ForgetGPU", "s", gpu)

    def drain(self) -> None:
        """Drains the daemon while this connection lasts: clients that fit are loaded and run."""
        self._call("Drain")

    def reset_settings(self) -> None:
        self._call("ResetSettings")

    def _set(self, setting: str, gpu: str | None, signature: str = "", *value: str | int) -> None:
        if gpu is None:
            self._call(f"Set{setting}", signature, *value)
        else:
            self._call(f"SetGPU{setting}", "s" + signature, gpu, *value)

    def _call(self, member: str, signature: str = "", *body: object) -> list[Any]:
        call = Call(names.MANAGER_PATH, names.MANAGER_INTERFACE, member, signature, body)
        try:
            return self._connection.ask(call)[0]
        except PasswordNeeded:
            from nvshared.control.connection import password_agent

            streams = (sys.stdin, sys.stderr)
            if not self._asks or not all(one is not None and one.isatty() for one in streams):
                raise
            with password_agent():
                return self._connection.ask(call, interactive=True)[0]
