# SPDX-License-Identifier: Apache-2.0
"""Reports of nvshared, in bytes and microseconds. None: the GPU or its driver has no figure."""

import math
import os
import re
from bisect import bisect_right
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from nvshared import names
from nvshared.errors import NvshareError
from nvshared.faults import Fault
from nvshared.terms import TERMS

if TYPE_CHECKING:
    from dbus_next.signature import Variant

LONGEST = 4096                          # most bytes read of a command line
ENVIRONMENT = 1 << 17                   # most bytes read of an environment
KERNEL = b"ipykernel"                   # in the command line of every notebook's process
NOTEBOOK = b"JPY_SESSION_NAME="         # the notebook, set by Jupyter for its kernels
CONNECTION = re.compile(rb"/(kernel-[\w-]{8})")  # connection file, if there is no notebook name
JOB = b"SLURM_JOB_NAME="

Properties = dict[str, "Variant"]       # values by property name, as D-Bus delivers them
Objects = dict[str, dict[str, Properties]]


class GPUSnapshot(NamedTuple):
    index: int  # type: ignore[assignment]      # hides tuple.index, which is unused
    uuid: str
    name: str
    pci_bus_id: str
    memory_total: int
    tq: int                             # seconds, rounded up
    tq_usec: int
    tq_auto: bool                       # True: tq and tq_usec are the last automatic value
    anti_thrash: str                    # auto, on or off
    policy: str                         # a name of names.POLICIES
    state: str                          # gathering, idle, shared, turns, busy or lost
    holders: tuple[int, ...]            # ids of clients
    queue_length: int
    capacity: int                       # bytes that clients may have at most
    free: int                           # bytes of the capacity that no client has
    lent: int                           # bytes that clients of other GPUs borrow, or may borrow
    outside: int                        # bytes used by processes that are no clients
    memory_used: int | None             # bytes of the card used by all processes, by NVML
    utilization: float | None           # 0 to 1
    temperature: float | None           # degrees Celsius
    power: float | None                 # watts
    turns: int                          # turns begun since the daemon started
    bytes_in: int                       # bytes loaded onto the card since the daemon started
    bytes_out: int                      # bytes evicted since the daemon started
    unshared: tuple["Unshared", ...]    # processes that use the GPU unshared
    faults: tuple[Fault, ...] = ()


class Unshared(NamedTuple):
    pid: int
    uid: int
    name: str
    memory: int                         # bytes of the card


class ClientSnapshot(NamedTuple):
    id: int
    gpu: int                            # index
    pid: int
    uid: int
    name: str
    command: str                        # command line; the name if the caller may not read it
    tenant: str                         # KIND:NAME of pod, job, container, unit or user
    gang: str                           # name of its gang; "": it is in no gang
    state: str                          # a ClientState, or parking, parked, restoring, lost
    pin_reason: str                     # why its memory is pinned: undrained, unseen, given, kept
    terms: dict[str, int]               # its own terms, by name
    allocated: int                      # swappable bytes
    resident: int                       # bytes of `allocated` on the card
    swapped: int                        # bytes of `allocated` that are not on the card
    borrowed: int                       # bytes on another card: swapped, or copies of resident data
    pinned: int                         # bytes on the card that cannot be swapped
    held_usec: int
    waited_usec: int
    waiting_usec: int                   # since the current wait began; 0: not waiting
    idle_usec: int                      # since it became idle; 0: it waits or has a turn
    expected_usec: int | None           # estimated time until its turn; 0: not waiting
    position: int                       # in the queue; 1: next; 0: not queued
    turns: int
    bytes_in: int
    bytes_out: int
    unparkable: str = ""                # why it cannot be parked; "": no reason known
    on_disk: int = 0                    # bytes on the disk: swapped, and copies of resident
    loading: int = 0                    # bytes to load for its turn; 0: it is not loading
    moved: str = ""                     # why nvshared moved it to this GPU; "": it did not
    tiers: Mapping[str, int] = {}       # bytes in each tier: swapped, and copies of resident data

    def as_dict(self) -> dict[str, Any]:
        terms = {
            TERMS[name].field: TERMS[name].unit.plain(value) for name, value in self.terms.items()}
        return {name: value for name, value in self._asdict().items() if name != "terms"} | terms


class SavedRow(NamedTuple):
    """A saved program, as of ListSaved."""

    folder: str
    state: str                          # saving, saved, restoring, restored, ended
    pid: int
    uid: int
    size: int                           # bytes written so far
    bytes: int                          # estimated before it is saved
    saved: int                          # us since the epoch
    why: str                            # of the last restore that failed; "": none did


class PastTurn(NamedTuple):
    """One turn of a client. Microseconds and bytes."""

    ago_usec: int                       # since the turn began
    held_usec: int                      # duration
    waited_usec: int                    # time that the client waited for the turn
    bytes_in: int                       # bytes loaded for the turn
    reason: str                         # why the turn ended; "": it goes on


class Snapshot(NamedTuple):
    """The state of the daemon; GPUs are sorted by index, clients by GPU and age."""

    version: str
    tq: int                             # the default quantum in seconds; if auto: the longest
    tq_usec: int
    tq_auto: bool
    anti_thrash: str
    gpus: tuple[GPUSnapshot, ...]
    clients: tuple[ClientSnapshot, ...]
    disk: str = ""                      # directory for swapped memory; "": none
    disk_size: int = 0
    disk_used: int = 0
    disk_fault: str = ""                # why the disk cannot be used; "": no fault
    faults: tuple[Fault, ...] = ()      # of nvshared as a whole
    socket: str = ""                    # path of the socket at which programs find nvshared
    policy: str = "fair"                # of GPUs without a policy of their own

    @property
    def all_faults(self) -> tuple[Fault, ...]:
        """The faults of all GPUs, then those of nvshared as a whole."""
        return (*(fault for gpu in self.gpus for fault in gpu.faults), *self.faults)

    def of(self, gpu: GPUSnapshot) -> tuple[ClientSnapshot, ...]:
        return tuple(client for client in self.clients if client.gpu == gpu.index)

    def as_dict(self) -> dict[str, Any]:
        """The data that --json prints and the text shows."""
        return {
            **self._asdict(),
            "faults": [fault._asdict() for fault in self.faults],
            "gpus": [
                {**gpu._asdict(), "unshared": [one._asdict() for one in gpu.unshared],
                 "faults": [fault._asdict() for fault in gpu.faults]}
                for gpu in self.gpus],
            "clients": [client.as_dict() for client in self.clients]}


class SetTerm(NamedTuple):
    """One term that is set for a tenant, by a rule or over the bus."""

    name: str                           # a key of TERMS
    value: int
    rule: str                           # the pattern of the rule; "": set over the bus
    place: str                          # FILE:LINE, or a word of TERM_SOURCES; "": set over D-Bus


class TenantSnapshot(NamedTuple):
    """A pod, job, container, unit or user. Bytes and microseconds are of its running programs."""

    name: str                           # KIND:NAME
    programs: int
    allocated: int
    resident: int
    pinned: int
    held_usec: int
    within: tuple[str, ...]             # other tenants whose terms hold for its programs, too
    terms: tuple[SetTerm, ...]             # the first term of each name is in force

    def holding(self, name: str) -> SetTerm | None:
        """The term of this name that is in force; None: it is not set."""
        return next((term for term in self.terms if term.name == name), None)

    def value(self, name: str) -> int:
        """The value of a term in force; its default if it is not set."""
        term = self.holding(name)
        return TERMS[name].default if term is None else term.value

    def as_dict(self) -> dict[str, Any]:
        terms = [
            {**term._asdict(), "holds": term is self.holding(term.name)} for term in self.terms]
        return {**self._asdict(), "within": list(self.within), "terms": terms}


class Used(NamedTuple):
    """One row of usage, in microseconds, bytes, and MiB times seconds."""

    start_usec: int                     # since 1970
    name: str                           # user, tenant or GPU's UUID; "": sum of parties not listed
    user: str                           # the tenant's user; "": several users, or not by tenant
    gpu_usec: int                       # GPU time, divided among clients that had turns at once
    held_usec: int                      # time with a turn, summed over programs
    waited_usec: int
    turns: int
    handovers: int                      # turns for which memory had to move
    handover_usec: int
    bytes_in: int
    bytes_out: int
    card_mib_sec: int                   # memory on GPUs
    host_mib_sec: int                   # host memory of swapped blocks
    borrowed_mib_sec: int              # memory borrowed from other GPUs
    disk_mib_sec: int                   # space of files on the disk


class UsageTable(NamedTuple):
    """The usage in a time span, in rows. Times in microseconds since 1970."""

    since_usec: int
    until_usec: int
    step_usec: int                      # length of a row; 0: one row for the whole time
    rows: tuple[Used, ...]
    missing: str                        # why the latest usage is missing; "": it is not
    edges_usec: tuple[int, ...] = ()    # of unequal steps: where each begins, and the last ends

    def length(self, row: Used) -> int:
        """Microseconds of the row's step."""
        if self.edges_usec:
            at = bisect_right(self.edges_usec, row.start_usec)
            return self.edges_usec[at] - self.edges_usec[at - 1]
        return self.step_usec or self.until_usec - self.since_usec

    def as_dict(self) -> dict[str, Any]:
        return {**self._asdict(), "rows": [row._asdict() for row in self.rows]}


def snapshot(manager: Properties, objects: Objects) -> Snapshot:
    """Makes a Snapshot from Manager's properties and GetManagedObjects' reply."""
    gpus, clients = [], []
    for path, interfaces in objects.items():
        if path.startswith(names.GPU_PATH + "/"):
            known = _values(interfaces[names.GPU_INTERFACE])
            known |= _values(interfaces[names.STATISTICS_INTERFACE])
            known["unshared"] = tuple(Unshared(*one) for one in known["unshared"])
            known["holders"] = tuple(map(_number, known["holders"]))
            known["faults"] = _faults(known)
            gpus.append(_fill(GPUSnapshot, known))
        elif path.startswith(names.CLIENT_PATH + "/"):
            known = _values(interfaces[names.CLIENT_INTERFACE])
            id = _number(path)
            shown = command(id, known["pid"], known["uid"], known["name"], known["tenant"])
            known |= {"id": id, "gpu": _number(known["gpu"]), "command": shown, "terms": {
                name: one.value for name, one in known["terms"].items() if name in TERMS}}
            clients.append(_fill(ClientSnapshot, known))
    whole = _values(manager)
    found: Snapshot = _fill(Snapshot, whole | {
        "faults": _faults(whole),
        "gpus": tuple(sorted(gpus, key=lambda one: one.index)),
        "clients": tuple(sorted(clients, key=lambda one: (one.gpu, one.id)))})
    return found


def _faults(properties: dict[str, Any]) -> tuple[Fault, ...]:
    """Fields that later versions append are ignored."""
    return tuple(Fault(*row[:len(Fault._fields)]) for row in properties.get("faults", ()))


def _values(properties: Properties) -> dict[str, Any]:
    return {name.lower(): variant.value for name, variant in properties.items()}


def _fill(cls: Any, known: dict[str, Any]) -> Any:
    """Makes a `cls`. A field's value is the property with the field's name without underscores."""
    wanted = [name.replace("_", "") for name in cls._fields]
    if missing := [name for name in wanted if name not in known]:
        raise NvshareError(
            f"the nvshared that runs is of another version: it does not tell {missing[0]}",
            "restart it with: nvshared --check && systemctl restart nvshared")
    return cls(*[_plain(known[name]) for name in wanted])


def _plain(value: Any) -> Any:
    if value == names.UNKNOWN or (isinstance(value, float) and math.isnan(value)):
        return None
    return value


def _number(path: str) -> int:
    return int(path.rpartition("/")[2])


def tenant(row: list[Any]) -> TenantSnapshot:
    """Makes a Tenant from a row of ListTenants. Fields that later versions append are ignored."""
    return TenantSnapshot._make([*row[:6], tuple(row[6]), tuple(SetTerm(*term) for term in row[7])])


def history(since: int, until: int, step: int, rows: list[list[Any]], missing: str) -> UsageTable:
    """Makes a UsageTable from GetHistory's reply. Fields that later versions append are ignored."""
    return UsageTable(
        since, until, step, tuple(Used(*row[:len(Used._fields)]) for row in rows), missing)


@lru_cache(4096)
def command(client: int, pid: int, uid: int, name: str, tenant: str) -> str:
    """The displayed text of a client: "train.ipynb: python3 -m …", or its name if unreadable."""
    if os.geteuid() not in (0, uid):
        return name
    try:
        owner, words = _read(f"/proc/{pid}/cmdline", LONGEST)
        if owner != uid:
            return name                 # the process ended, or is in another pid namespace
        title = _own(pid, name, tenant) or _title(pid, words, tenant)
    except OSError:
        return name
    if title:
        words = title + b": " + words[words.rfind(b"/", 0, words.find(b"\0")) + 1:]
    text = words.replace(b"\0", b" ").decode(errors="replace").strip()
    return "".join(c if c.isprintable() else "?" for c in text) or name


def _own(pid: int, name: str, tenant: str) -> bytes:
    """The client's name if the program chose it: not its process's or pod's name. Else b""."""
    _, process = _read(f"/proc/{pid}/comm", LONGEST)
    is_process = process.rstrip() == name.encode()[:names.COMM_LONGEST]
    return b"" if is_process or tenant == f"pod:{name}" else name.encode()


def _title(pid: int, words: bytes, tenant: str) -> bytes:
    """The notebook's file name, or the SLURM job's name; b"" without either."""
    if KERNEL in words:
        found = _variable(pid, NOTEBOOK).rpartition(b"/")[2]
        listens = CONNECTION.search(words)
        return found or (listens[1] if listens else b"")
    return _variable(pid, JOB) if tenant.startswith("job:") else b""


def _variable(pid: int, name: bytes) -> bytes:
    """The value of an environment variable when the process started; b"" if unset."""
    _, environment = _read(f"/proc/{pid}/environ", ENVIRONMENT)
    return (b"\0" + environment).partition(b"\0" + name)[2].partition(b"\0")[0]


def _read(path: str, longest: int) -> tuple[int, bytes]:
    """A file's owner and first bytes. Uses os.open() for speed with a thousand programs."""
    file = os.open(path, os.O_RDONLY)
    try:
        return os.fstat(file).st_uid, os.read(file, longest)
    finally:
        os.close(file)
