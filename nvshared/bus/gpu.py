# SPDX-License-Identifier: Apache-2.0
"""com.nvshare.GPU and com.nvshare.GPU.Statistics: one card."""

import math
from typing import ClassVar

from nvshared import names
from nvshared.bus.authority import Caller
from nvshared.bus.manager import rows
from nvshared.bus.members import ANYONE, Body, Changes, Interface, Property, SignalMember, method
from nvshared.machine.peer import name, owner
from nvshared.sharing.gpu import GPU
from nvshared.sharing.manager import Manager
from nvshared.sharing.sampler import look


class GPUInterface(Interface, name=names.GPU_INTERFACE):
    """What the card is, how it is shared, and who has it."""

    turn_started = SignalMember.of("TurnStarted", "client:o")
    turn_ended = SignalMember.of("TurnEnded", "client:o reason:s held_usec:t")

    _gpu: GPU
    listed: ClassVar[tuple[Property["GPUInterface"], ...]] = (
        Property("Index", "u", Changes.NEVER, lambda self: self._gpu.facts.index),
        Property("UUID", "s", Changes.NEVER, lambda self: self._gpu.facts.uuid),
        Property("Name", "s", Changes.NEVER, lambda self: self._gpu.facts.name),
        Property("PCIBusID", "s", Changes.NEVER, lambda self: self._gpu.facts.pci_bus_id),
        Property("MemoryTotal", "t", Changes.NEVER, lambda self: self._gpu.facts.memory_total),
        Property("MIG", "b", Changes.NEVER, lambda self: self._gpu.facts.mig),
        Property("TQ", "u", Changes.ANNOUNCED, lambda self: self._gpu.tq),
        Property("TQUSec", "t", Changes.ANNOUNCED, lambda self: self._gpu.tq_usec),
        Property("TQAuto", "b", Changes.ANNOUNCED, lambda self: self._gpu.tq_auto),
        Property("AntiThrash", "s", Changes.ANNOUNCED, lambda self: str(self._gpu.anti_thrash)),
        Property("State", "s", Changes.ANNOUNCED, lambda self: self._gpu.state),
        Property(
            "Holders", "ao", Changes.ANNOUNCED,
            lambda self: [names.client_path(client.id) for client in self._gpu.holders],
        ),
        Property("QueueLength", "u", Changes.ANNOUNCED, lambda self: self._gpu.queue_length),
    )

    def __init__(self, manager: Manager, gpu: GPU) -> None:
        self._manager = manager
        self._gpu = gpu

    @method("SetTQ", "seconds:u", action=names.ACTION_SET_TQ)
    def set_tq(self, _caller: Caller, seconds: int) -> None:
        """The quantum of this card."""
        self._manager.set_tq(seconds, str(self._gpu.facts.index))

    @method("SetTQUSec", "usec:t", action=names.ACTION_SET_TQ)
    def set_tq_usec(self, _caller: Caller, usec: int) -> None:
        """The quantum of this card, in microseconds."""
        self._manager.set_tq_usec(usec, str(self._gpu.facts.index))

    @method("SetTQAuto", action=names.ACTION_SET_TQ)
    def set_tq_auto(self, _caller: Caller) -> None:
        """As hand-overs cost on this card."""
        self._manager.set_tq_auto(str(self._gpu.facts.index))

    @method("SetAntiThrash", "mode:s", action=names.ACTION_SET_ANTI_THRASH)
    def set_anti_thrash(self, _caller: Caller, mode: str) -> None:
        """The mode of this card."""
        self._manager.set_anti_thrash(mode, str(self._gpu.facts.index))

    @method("Preempt", action=names.ACTION_MANAGE_CLIENTS)
    def preempt(self, _caller: Caller) -> None:
        """Ends the present turns, if somebody waits."""
        self._gpu.preempt()

    @method("ListClients", gives="clients:a(uuuoa{sv})", action=ANYONE)
    def list_clients(self, _caller: Caller) -> Body:
        """Id, process, GPU and path of the clients of this card."""
        return rows(self._gpu.clients.values())


class StatisticsInterface(Interface, name=names.STATISTICS_INTERFACE):
    """Figures that move all the time, so that nobody is told when they do."""

    _gpu: GPU
    listed: ClassVar[tuple[Property["StatisticsInterface"], ...]] = (
        Property("Capacity", "t", Changes.SILENT, lambda self: self._gpu.snapshot().capacity),
        Property("Free", "t", Changes.SILENT, lambda self: max(0, self._gpu.snapshot().free)),
        Property("Outside", "t", Changes.SILENT, lambda self: self._gpu.capacity.outside),
        Property(
            "MemoryUsed", "t", Changes.SILENT,
            lambda self: _or(names.UNKNOWN, self._gpu.sample.memory_used),
        ),
        Property(
            "Utilization", "d", Changes.SILENT,
            lambda self: _or(math.nan, self._gpu.sample.utilisation),
        ),
        Property(
            "Temperature", "d", Changes.SILENT,
            lambda self: _or(math.nan, self._gpu.sample.temperature),
        ),
        Property("Power", "d", Changes.SILENT, lambda self: _or(math.nan, self._gpu.sample.power)),
        Property("Turns", "t", Changes.SILENT, lambda self: self._gpu.snapshot().counters.turns),
        Property(
            "BytesIn", "t", Changes.SILENT,
            lambda self: self._gpu.snapshot().counters.bytes_in,
        ),
        Property(
            "BytesOut", "t", Changes.SILENT,
            lambda self: self._gpu.snapshot().counters.bytes_out,
        ),
        Property(
            "Unshared", "a(uust)", Changes.SILENT,
            lambda self: [
                [pid, owner(pid), name(pid), size]
                for pid, size in sorted(self._gpu.strangers.items(), key=lambda one: -one[1])
            ],
        ),
    )

    def __init__(self, gpu: GPU) -> None:
        self._gpu = gpu

    async def refresh(self) -> None:
        """NVML is asked about a card without clients only when somebody wants to know."""
        await look([self._gpu])


def _or(unknown: float, figure: float | None) -> float:
    return unknown if figure is None else figure
