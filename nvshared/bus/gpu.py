# SPDX-License-Identifier: Apache-2.0
"""com.nvshare.GPU and com.nvshare.GPU.Statistics: one card."""

import math

from nvshared.bus.authority import Caller
from nvshared.bus.manager import rows
from nvshared.bus.members import (
    ANYONE,
    Body,
    Changes,
    Interface,
    SignalMember,
    method,
    readable,
)
from nvshared.names import (
    ACTION_MANAGE_CLIENTS,
    ACTION_SET_ANTI_THRASH,
    ACTION_SET_TQ,
    GPU_INTERFACE,
    STATISTICS_INTERFACE,
    client_path,
)
from nvshared.sharing.gpu import GPU
from nvshared.sharing.manager import Manager

UNKNOWN = (1 << 64) - 1                 # what a figure of type t is when nobody knows it


class GPUInterface(Interface, name=GPU_INTERFACE):
    """What the card is, how it is shared, and who has it."""

    turn_started = SignalMember.of("TurnStarted", "client:o")
    turn_ended = SignalMember.of("TurnEnded", "client:o reason:s held_usec:t")

    def __init__(self, manager: Manager, gpu: GPU) -> None:
        self._manager = manager
        self._gpu = gpu

    @method("SetTQ", "seconds:u", action=ACTION_SET_TQ)
    def set_tq(self, _caller: Caller, seconds: int) -> None:
        """The quantum of this card."""
        self._manager.set_tq(seconds, str(self._gpu.facts.index))

    @method("SetTQAuto", action=ACTION_SET_TQ)
    def set_tq_auto(self, _caller: Caller) -> None:
        """As hand-overs cost on this card."""
        self._manager.set_tq_auto(str(self._gpu.facts.index))

    @method("SetAntiThrash", "mode:s", action=ACTION_SET_ANTI_THRASH)
    def set_anti_thrash(self, _caller: Caller, mode: str) -> None:
        """The mode of this card."""
        self._manager.set_anti_thrash(mode, str(self._gpu.facts.index))

    @method("Preempt", action=ACTION_MANAGE_CLIENTS)
    def preempt(self, _caller: Caller) -> None:
        """Ends the present turns, if somebody waits."""
        self._gpu.preempt()

    @method("ListClients", gives="clients:a(uuuoa{sv})", action=ANYONE)
    def list_clients(self, _caller: Caller) -> Body:
        """Id, process, GPU and path of the clients of this card."""
        return rows(self._gpu.clients.values())

    @readable("Index", "u", Changes.NEVER)
    def index(self) -> int:
        """NVML's."""
        return self._gpu.facts.index

    @readable("UUID", "s", Changes.NEVER)
    def uuid(self) -> str:
        """GPU-…"""
        return self._gpu.facts.uuid

    @readable("Name", "s", Changes.NEVER)
    def product(self) -> str:
        """NVIDIA H200"""
        return self._gpu.facts.name

    @readable("PCIBusID", "s", Changes.NEVER)
    def pci_bus_id(self) -> str:
        """00000000:17:00.0"""
        return self._gpu.facts.pci_bus_id

    @readable("MemoryTotal", "t", Changes.NEVER)
    def memory_total(self) -> int:
        """Bytes."""
        return self._gpu.facts.memory_total

    @readable("TQ", "u", Changes.ANNOUNCED)
    def tq(self) -> int:
        """Seconds."""
        return self._gpu.tq

    @readable("TQUSec", "t", Changes.ANNOUNCED)
    def tq_usec(self) -> int:
        """Microseconds."""
        return self._gpu.tq_usec

    @readable("TQAuto", "b", Changes.ANNOUNCED)
    def tq_auto(self) -> bool:
        """Whether it follows from what hand-overs cost."""
        return self._gpu.tq_auto

    @readable("AntiThrash", "s", Changes.ANNOUNCED)
    def anti_thrash(self) -> str:
        """auto, on or off."""
        return str(self._gpu.anti_thrash)

    @readable("State", "s", Changes.ANNOUNCED)
    def state(self) -> str:
        """gathering, idle, shared, turns or lost."""
        return self._gpu.state

    @readable("Holders", "ao", Changes.ANNOUNCED)
    def holders(self) -> list[str]:
        """Paths of the clients whose gate is open."""
        return [client_path(client.id) for client in self._gpu.holders]

    @readable("QueueLength", "u", Changes.ANNOUNCED)
    def queue_length(self) -> int:
        """How many clients wait."""
        return self._gpu.queue_length


class StatisticsInterface(Interface, name=STATISTICS_INTERFACE):
    """Figures that move all the time, so that nobody is told when they do."""

    def __init__(self, gpu: GPU) -> None:
        self._gpu = gpu

    @readable("Capacity", "t", Changes.SILENT)
    def capacity(self) -> int:
        """Bytes that clients may hold in all."""
        return self._gpu.snapshot().capacity

    @readable("Free", "t", Changes.SILENT)
    def free(self) -> int:
        """Bytes of the capacity that are handed out to nobody."""
        return max(0, self._gpu.snapshot().free)

    @readable("Outside", "t", Changes.SILENT)
    def outside(self) -> int:
        """Bytes that others use."""
        return self._gpu.capacity.outside

    @readable("MemoryUsed", "t", Changes.SILENT)
    def memory_used(self) -> int:
        """Bytes that everybody uses."""
        used = self._gpu.sample.memory_used
        return UNKNOWN if used is None else used

    @readable("Utilization", "d", Changes.SILENT)
    def utilization(self) -> float:
        """0 to 1."""
        return _or_nan(self._gpu.sample.utilisation)

    @readable("Temperature", "d", Changes.SILENT)
    def temperature(self) -> float:
        """Degrees Celsius."""
        return _or_nan(self._gpu.sample.temperature)

    @readable("Power", "d", Changes.SILENT)
    def power(self) -> float:
        """Watts."""
        return _or_nan(self._gpu.sample.power)

    @readable("Turns", "t", Changes.SILENT)
    def turns(self) -> int:
        """Begun since the daemon started."""
        return self._gpu.snapshot().counters.turns

    @readable("BytesIn", "t", Changes.SILENT)
    def bytes_in(self) -> int:
        """Brought onto the card."""
        return self._gpu.snapshot().counters.bytes_in

    @readable("BytesOut", "t", Changes.SILENT)
    def bytes_out(self) -> int:
        """Moved out to host memory."""
        return self._gpu.snapshot().counters.bytes_out


def _or_nan(figure: float | None) -> float:
    return math.nan if figure is None else float(figure)
