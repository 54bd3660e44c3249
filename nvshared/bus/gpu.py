# SPDX-License-Identifier: Apache-2.0
"""com.nvshare.GPU and com.nvshare.GPU.Statistics: one card."""

import math

from nvshared import names
from nvshared.bus.interface import ANYONE, Emits, Interface, method, read_only, signal
from nvshared.bus.manager import TurnSettings, rows
from nvshared.machine.peer import name, owner
from nvshared.sharing.gpu import GPU
from nvshared.sharing.manager import Manager
from nvshared.sharing.sampler import look


class GPUInterface(TurnSettings):
    """A GPU's properties, its sharing settings, its queue and its holders."""

    def __init__(self, manager: Manager, gpu: GPU) -> None:
        super().__init__(names.GPU_INTERFACE, manager, gpu)
        self._gpu = gpu

    @signal("TurnStarted", "client")
    def turn_started(self, client: str) -> "o":
        return client

    @signal("TurnEnded", "client reason held_usec")
    def turn_ended(self, client: str, reason: str, held_usec: int) -> "ost":
        return [client, reason, held_usec]

    Index = read_only("Index", "u", lambda self: self._gpu.facts.index, Emits.CONST)
    UUID = read_only("UUID", "s", lambda self: self._gpu.facts.uuid, Emits.CONST)
    Name = read_only("Name", "s", lambda self: self._gpu.facts.name, Emits.CONST)
    PCIBusID = read_only("PCIBusID", "s", lambda self: self._gpu.facts.pci_bus_id, Emits.CONST)
    MemoryTotal = read_only(
        "MemoryTotal", "t", lambda self: self._gpu.facts.memory_total, Emits.CONST)
    MIG = read_only("MIG", "b", lambda self: self._gpu.facts.mig, Emits.CONST)
    State = read_only("State", "s", lambda self: self._gpu.state)
    Fault = read_only("Fault", "s", lambda self: self._gpu.fault)
    Holders = read_only(
        "Holders", "ao", lambda self: [names.client_path(one.id) for one in self._gpu.holders])
    QueueLength = read_only("QueueLength", "u", lambda self: self._gpu.queue_length)

    @method("Preempt", action=names.ACTION_MANAGE_CLIENTS)
    def preempt(self) -> None:
        self._gpu.preempt()

    @method("ListClients", "clients", action=ANYONE)
    def list_clients(self) -> "a(uuuoa{sv})":
        return rows(self._gpu.clients.values())


class StatisticsInterface(Interface):
    """Figures that change all the time, so their changes are not announced."""

    def __init__(self, gpu: GPU) -> None:
        super().__init__(names.STATISTICS_INTERFACE)
        self._gpu = gpu

    async def refresh(self) -> None:
        """Samples NVML now: a GPU without clients is not sampled periodically."""
        await look([self._gpu])

    Capacity = read_only("Capacity", "t", lambda self: self._gpu.snapshot().capacity, Emits.NOTHING)
    Free = read_only("Free", "t", lambda self: max(0, self._gpu.snapshot().free), Emits.NOTHING)
    Lent = read_only("Lent", "t", lambda self: self._gpu.neighbour.lent, Emits.NOTHING)
    Outside = read_only("Outside", "t", lambda self: self._gpu.capacity.outside, Emits.NOTHING)
    MemoryUsed = read_only(
        "MemoryUsed", "t", lambda self: _or(names.UNKNOWN, self._gpu.sample.memory_used),
        Emits.NOTHING)
    Utilization = read_only(
        "Utilization", "d", lambda self: _or(math.nan, self._gpu.sample.utilisation), Emits.NOTHING)
    Temperature = read_only(
        "Temperature", "d", lambda self: _or(math.nan, self._gpu.sample.temperature), Emits.NOTHING)
    Power = read_only(
        "Power", "d", lambda self: _or(math.nan, self._gpu.sample.power), Emits.NOTHING)
    Turns = read_only("Turns", "t", lambda self: self._gpu.snapshot().counters.turns, Emits.NOTHING)
    BytesIn = read_only(
        "BytesIn", "t", lambda self: self._gpu.snapshot().counters.bytes_in, Emits.NOTHING)
    BytesOut = read_only(
        "BytesOut", "t", lambda self: self._gpu.snapshot().counters.bytes_out, Emits.NOTHING)

    Unshared = read_only("Unshared", "a(uusts)", lambda self: [
        [pid, owner(pid), name(pid), size, self._gpu.unsuspendable.get(pid, "")]
        for pid, size in sorted(self._gpu.strangers.items(), key=lambda one: -one[1])
    ], Emits.NOTHING)


def _or(unknown: float, figure: float | None) -> float:
    return unknown if figure is None else figure
