# SPDX-License-Identifier: Apache-2.0
"""com.nvshare.GPU and com.nvshare.GPU.Statistics: one card."""

import math

from nvshared import names
from nvshared.bus.interface import ANYONE, Emits, Interface, dbus_property, method, signal
from nvshared.bus.manager import TurnSettings, rows
from nvshared.machine.peer import name, owner
from nvshared.sharing.gpu import GPU
from nvshared.sharing.manager import Manager
from nvshared.sharing.sampler import look


class GPUInterface(TurnSettings):
    """What the card is, how it is shared, and who has it."""

    def __init__(self, manager: Manager, gpu: GPU) -> None:
        super().__init__(names.GPU_INTERFACE, manager, gpu)
        self._gpu = gpu

    @signal("TurnStarted", "client")
    def turn_started(self, client: str) -> "o":
        return client

    @signal("TurnEnded", "client reason held_usec")
    def turn_ended(self, client: str, reason: str, held_usec: int) -> "ost":
        return [client, reason, held_usec]

    @dbus_property(Emits.CONST)
    def Index(self) -> "u":
        return self._gpu.facts.index

    @dbus_property(Emits.CONST)
    def UUID(self) -> "s":
        return self._gpu.facts.uuid

    @dbus_property(Emits.CONST)
    def Name(self) -> "s":
        return self._gpu.facts.name

    @dbus_property(Emits.CONST)
    def PCIBusID(self) -> "s":
        return self._gpu.facts.pci_bus_id

    @dbus_property(Emits.CONST)
    def MemoryTotal(self) -> "t":
        return self._gpu.facts.memory_total

    @dbus_property(Emits.CONST)
    def MIG(self) -> "b":
        return self._gpu.facts.mig

    @dbus_property()
    def State(self) -> "s":
        return self._gpu.state

    @dbus_property()
    def Holders(self) -> "ao":
        return [names.client_path(client.id) for client in self._gpu.holders]

    @dbus_property()
    def QueueLength(self) -> "u":
        return self._gpu.queue_length

    @method("Preempt", action=names.ACTION_MANAGE_CLIENTS)
    def preempt(self) -> None:
        self._gpu.preempt()

    @method("ListClients", "clients", action=ANYONE)
    def list_clients(self) -> "a(uuuoa{sv})":
        return rows(self._gpu.clients.values())


class StatisticsInterface(Interface):
    """Figures that move all the time, so that nobody is told when they do."""

    def __init__(self, gpu: GPU) -> None:
        super().__init__(names.STATISTICS_INTERFACE)
        self._gpu = gpu

    async def refresh(self) -> None:
        """NVML is asked about a card without clients only when somebody wants to know."""
        await look([self._gpu])

    @dbus_property(Emits.NOTHING)
    def Capacity(self) -> "t":
        return self._gpu.snapshot().capacity

    @dbus_property(Emits.NOTHING)
    def Free(self) -> "t":
        return max(0, self._gpu.snapshot().free)

    @dbus_property(Emits.NOTHING)
    def Outside(self) -> "t":
        return self._gpu.capacity.outside

    @dbus_property(Emits.NOTHING)
    def MemoryUsed(self) -> "t":
        return _or(names.UNKNOWN, self._gpu.sample.memory_used)

    @dbus_property(Emits.NOTHING)
    def Utilization(self) -> "d":
        return _or(math.nan, self._gpu.sample.utilisation)

    @dbus_property(Emits.NOTHING)
    def Temperature(self) -> "d":
        return _or(math.nan, self._gpu.sample.temperature)

    @dbus_property(Emits.NOTHING)
    def Power(self) -> "d":
        return _or(math.nan, self._gpu.sample.power)

    @dbus_property(Emits.NOTHING)
    def Turns(self) -> "t":
        return self._gpu.snapshot().counters.turns

    @dbus_property(Emits.NOTHING)
    def BytesIn(self) -> "t":
        return self._gpu.snapshot().counters.bytes_in

    @dbus_property(Emits.NOTHING)
    def BytesOut(self) -> "t":
        return self._gpu.snapshot().counters.bytes_out

    @dbus_property(Emits.NOTHING)
    def Unshared(self) -> "a(uust)":
        strangers = sorted(self._gpu.strangers.items(), key=lambda one: -one[1])
        return [[pid, owner(pid), name(pid), size] for pid, size in strangers]


def _or(unknown: float, figure: float | None) -> float:
    return unknown if figure is None else figure
