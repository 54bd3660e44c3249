# SPDX-License-Identifier: Apache-2.0
"""This node's GPUs, their shares (called UUID::NUMBER), and whether these can be handed out.

A GPU that another device plugin offers is not shared: kubelet's checkpoint file has the names of
that plugin's devices, with a UUID, a PCI address, or the minor number of /dev/nvidiaN."""

import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from nvshared.control import Daemon
from nvshared.errors import InvalidArgs, NvshareError
from nvshared.kubelet.claims import RESOURCE

PATIENCE = 5.0                          # most seconds until nvshared replies
RESTART = 5.0                           # seconds without a reply after which shares are withdrawn
PROC_DRIVER = Path("/proc/driver/nvidia/gpus")
PCI_DEVICES = Path("/sys/bus/pci/devices")
# In /var/lib/kubelet, whatever kubelet's --root-dir is, as some distributions also have it there:
CHECKPOINT = "device-plugins/kubelet_internal_checkpoint"
KUBELET_SOCKET = "device-plugins/kubelet.sock"      # accepts connections while kubelet runs
FIXED = Path("/var/lib/kubelet")
# Names of resources with devices that may be NVIDIA GPUs, and of other makers' resources.
GPU_RESOURCE = re.compile(r"^nvidia\.com/|gpu|cuda|(?:^|\W)mig(?:\W|$)", re.IGNORECASE)
OTHER_MAKER = re.compile(r"^(?:[\w-]+\.)*(?:amd|intel)\.com/", re.IGNORECASE)
SEPARATOR = "::"
# By a GPU's index, UUID or PCI address ("": each GPU): number of shares. The last match counts.
Replicas = Sequence[tuple[str, int]]

# UUIDs of a GPU and of a MIG device. A UUID without such a prefix may be that of any device.
UUID = re.compile(r"(?:gpu|mig)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
PCI = re.compile(r"(?:(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])(?![0-9a-f])")
MINOR = re.compile(r"(?:^|/)nvidia(\d+)(?![\d.])")


@dataclass(frozen=True, slots=True)
class NodeGPU:
    uuid: str
    index: int
    pci_bus_id: str
    problem: str = ""                   # why the GPU cannot be shared now; "": it can be shared
    product: str = ""
    memory: int = 0                     # bytes
    numa: int = -1                      # NUMA node; -1: not known, or there is one

    @property
    def device(self) -> str:
        """The GPU's device name in a ResourceSlice."""
        return self.uuid.lower()

    @property
    def names(self) -> set[str]:
        """The names by which --replicas may call the GPU: UUID, index, PCI address."""
        pci = self.pci_bus_id
        return {self.uuid, str(self.index), pci, pci.removeprefix("00000000:")}


def identifies(device: str, card: NodeGPU) -> bool | None:
    """Whether a device's name is this GPU's; False also for a MIG device's; None: no GPU's name."""
    text = device.lower()
    uuid = card.uuid.lower()
    if uuid in text or (len(uuid) > len("gpu-") and uuid.removeprefix("gpu-") == text):
        return True
    if UUID.search(text):
        return False
    if addresses := PCI.findall(text):
        return address(card.pci_bus_id) in map(address, addresses)
    if numbers := MINOR.findall(text):
        with suppress(OSError, ValueError):
            path = PROC_DRIVER / address(card.pci_bus_id) / "information"
            text = path.read_text(errors="replace")
            found = re.search(r"^Device Minor:\s*(\d+)\s*$", text, re.MULTILINE)
            return int(found[1]) in map(int, numbers) if found else None
    return None


def address(text: str) -> str:
    """A PCI address in the kernel's form: NVML pads the domain, device plugins may omit it."""
    domain, _, rest = text.lower().rpartition(":")[0].rpartition(":")
    return f"{int(domain or '0', 16):04x}:{rest}:{text.lower().rpartition(':')[2]}"


# The GPUs or the error of reading, and nvshared's unique D-Bus name, which is "" after an error.
Reading = tuple[tuple[NodeGPU, ...] | NvshareError, str]


class Entry(NamedTuple):
    resource: str
    devices: list[str]
    pod: str = ""                       # UID of the devices' pod; "": all registered devices
    container: str = ""


def of_device_manager(kubelet: Path, name: str) -> Path:
    """CHECKPOINT or KUBELET_SOCKET. `kubelet`: kubelet's --root-dir."""
    return (kubelet if (kubelet / name).parent.is_dir() else FIXED) / name


def checkpoint(kubelet: Path) -> list[Entry]:
    """Devices that plugins registered, and that pods have. Raises NvshareError if unreadable."""
    path = of_device_manager(kubelet, CHECKPOINT)
    try:
        data = json.loads(path.read_text())["Data"]
        found = [Entry(resource, list(devices or ()))
                 for resource, devices in (data["RegisteredDevices"] or {}).items()]
        for one in data["PodDeviceEntries"] or ():
            given = one["DeviceIDs"]    # lists by NUMA node; before kubelet 1.20 one list
            lists = given.values() if isinstance(given, dict) else [given]
            devices = [device for devices in lists for device in devices or ()]
            found.append(Entry(one["ResourceName"], devices, one["PodUID"], one["ContainerName"]))
    except FileNotFoundError:
        return []                       # no device plugin has ever registered here
    except OSError as error:
        raise NvshareError(f"cannot read {path}: {error.strerror}", "run it as root") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise NvshareError(
            f"{path} is not as kubelet writes it: {type(error).__name__}: {error}",
            "please report the version of kubelet") from error
    return found


def conflict(card: NodeGPU, devices: Mapping[str, str]) -> str:
    """Why another plugin may have handed out this GPU; `devices`: resources by device; "": none."""
    unknown = ""
    for device, resource in devices.items():
        match identifies(device, card):
            case True:
                return f"{card.uuid} is handed out as {resource} already"
            case None if GPU_RESOURCE.search(resource) and not OTHER_MAKER.match(resource):
                unknown = unknown or (
                    f"{card.uuid} may be handed out as {resource} already: the name {device!r} "
                    "does not say which GPU it is")
    return unknown


async def retry_until_reply(
    read_gpus: Callable[[], Reading], patience: float, pause: float = RESTART / 10
) -> Reading:
    """Calls `read_gpus` until nvshared replies, for `patience` seconds; returns the last result."""
    limit = time.monotonic() + patience
    while True:
        reading, name = await asyncio.to_thread(read_gpus)
        if name or time.monotonic() >= limit:
            return reading, name
        await asyncio.sleep(pause)


def read_gpus(bus: str, socket: Path, kubelet: Path, *, fresh: bool = False) -> Reading:
    """Reads the GPUs from nvshared; `fresh`: nvshared queries NVML first, for up to a second."""
    try:
        with Daemon(bus, PATIENCE) as daemon:
            gpus, name = daemon.gpus(fresh=fresh), daemon.peer
        if not socket.is_socket():
            raise NvshareError(
                f"nvshared runs, and does not listen at {socket}", "--socket says where it does")
        given = {device: entry.resource for entry in checkpoint(kubelet)
                 for device in entry.devices if entry.resource != RESOURCE}
    except NvshareError as error:
        return error, ""
    return tuple(of_daemon(gpu, given) for gpu in gpus), name


def of_daemon(gpu: Mapping[str, Any], given: Mapping[str, str]) -> NodeGPU:
    """The GPU with these D-Bus properties. `given`: devices of other plugins, with the resource."""
    card = NodeGPU(gpu["UUID"], gpu["Index"], gpu["PCIBusID"], "", gpu["Name"], gpu["MemoryTotal"])
    avoided = [words for _, _, words, _, is_avoided, *_ in gpu["Faults"] if is_avoided]
    problem = f"{card.uuid} cannot be shared: {'; '.join(avoided)}" if avoided else (
        conflict(card, given))
    return replace(card, problem=problem, numa=numa_node(gpu["PCIBusID"]))


def numa_node(pci_bus_id: str) -> int:
    """The NUMA node of a GPU; -1: the kernel knows none."""
    with suppress(OSError, ValueError):
        return int((PCI_DEVICES / address(pci_bus_id) / "numa_node").read_text())
    return -1


def card_of(share: str) -> str:
    return share.partition(SEPARATOR)[0]


class SameCardTwice(InvalidArgs):
    """Kubelet chose several shares of one GPU for a container: other GPUs have no free share."""


class Offer:
    """The GPUs and their shares, as nvshared reported them last."""

    def __init__(self, replicas: Replicas | None) -> None:
        """`replicas`: None until set_replicas()."""
        self._replicas = replicas
        self._cards: tuple[NodeGPU, ...] = ()
        self._reading_problem = "nvshared has not answered yet"
        self._other_drivers: dict[str, str] = {}        # drivers by their devices' attributes
        self._changed = asyncio.Event()

    @property
    def common_problem(self) -> str:
        """A reason why no GPU can be shared; "": each GPU has its own `problem`."""
        return self._reading_problem or (
            "the node's settings are not known yet" if self._replicas is None else "")

    def set_replicas(self, replicas: Replicas) -> None:
        if replicas != self._replicas:
            self._replicas = replicas
            self.notify()

    def update(self, reading: tuple[NodeGPU, ...] | NvshareError) -> bool:
        """Stores the current GPUs, or why nvshared did not report them. True: that is a change."""
        before = (self._cards, self._reading_problem)
        if isinstance(reading, NvshareError):
            self._reading_problem = str(reading)
        else:
            self._cards, self._reading_problem = reading, ""
        if has_changed := before != (self._cards, self._reading_problem):
            self.notify()
        return has_changed

    def update_other_drivers(self, devices: Mapping[str, str]) -> None:
        """Stores attributes of devices of other DRA drivers, each with the name of the driver."""
        if devices != self._other_drivers:
            self._other_drivers = dict(devices)
            self.notify()

    def notify(self) -> None:
        """Has changes() yield."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def changes(self, refresh: float | None = None) -> AsyncIterator[None]:
        """Yields at once, at each change of the offer, and `refresh` seconds after the last."""
        while True:
            changed = self._changed     # read before the yield, to notice a change during it
            yield
            with suppress(TimeoutError):
                async with asyncio.timeout(refresh):
                    await changed.wait()

    def problem(self, card: NodeGPU) -> str:
        """Why this GPU cannot be shared now; "" if it can."""
        return self.common_problem or self.fault(card)

    def problems(self) -> str:
        """Why GPUs that are offered cannot be shared now; "" if all can."""
        faults = map(self.fault, self.offered())
        return self.common_problem or "; ".join(one for one in faults if one)

    def fault(self, card: NodeGPU) -> str:
        """Why this GPU of all cannot be shared; "" if it can while nvshared answers."""
        if card.problem:
            return card.problem
        drivers = (name for text, name in self._other_drivers.items() if identifies(text, card))
        driver = next(drivers, "")
        return f"{card.uuid} is offered by {driver} already" if driver else ""

    def offered(self) -> dict[NodeGPU, int]:
        """The number of shares by GPU, whether or not the GPU can be shared now."""
        replicas = self._replicas or [("", 0)]
        numbers = {card: next(number for name, number in reversed(replicas)
                              if name in ("", *card.names)) for card in self._cards}
        return {card: number for card, number in numbers.items() if number}

    def smallest(self) -> int:
        """Bytes of the smallest offered GPU; 0 while none is known."""
        return min((card.memory for card in self.offered()), default=0)

    def shares(self) -> dict[str, bool]:
        return {
            f"{card.uuid}{SEPARATOR}{number}": not self.problem(card)
            for card, replicas in self.offered().items() for number in range(replicas)}

    def topology(self, share: str) -> dict[str, Any] | None:
        """The NUMA node of a share, as kubelet's topology manager takes it; None: not known."""
        numa = next((card.numa for card in self._cards if card.uuid == card_of(share)), -1)
        return {"nodes": [{"ID": numa}]} if numa >= 0 else None

    def describe(self) -> str:
        if self.common_problem:
            return f"no shares: {self.common_problem}"
        offered, known = self.offered(), {""}.union(*(card.names for card in self._cards))
        parts = [
            f"GPU {card.index}: {self.problem(card) or f'{offered.get(card, 0)} shares'}"
            for card in self._cards]
        parts += [f"no GPU goes by {name!r}, which --replicas names"
                  for name, _ in self._replicas or () if name not in known]
        return "; ".join(parts) or "nvshared knows no GPU"

    def require(self, card: NodeGPU | None, name: str) -> None:
        """Raises NvshareError if this GPU cannot be shared now; None: there is no `name`."""
        if problem := self.problem(card) if card else self.common_problem:
            raise NvshareError(problem)
        if card is None:
            raise InvalidArgs(f"there is no {name}")

    def check(self, shares: Sequence[str]) -> list[str]:
        """The GPUs of a container's shares, by index. Raises NvshareError; SameCardTwice."""
        cards = {card.uuid: card for card in self._cards}
        known = self.shares()
        for share in shares:
            self.require(cards[card_of(share)] if share in known else None, f"share {share!r}")
        counted = Counter(map(card_of, shares))
        if twice := [uuid for uuid, number in counted.items() if number > 1]:
            raise SameCardTwice(
                f"one container was to get {counted[twice[0]]} shares of {twice[0]}, "
                "which are no more than one",
                "each share of a container is another GPU: ask for as many as the node has free")
        return sorted(counted, key=lambda uuid: cards[uuid].index)


def preferred(available: Sequence[str], must: Sequence[str], size: int) -> list[str]:
    """`size` available shares that include `must`, on different GPUs with the most free shares."""
    chosen = list(must[:size])
    free = sorted(set(available).difference(must), key=lambda share: (len(share), share))
    while len(chosen) < size and free:
        taken, left = Counter(map(card_of, chosen)), Counter(map(card_of, free))
        share = min(free, key=lambda one: (taken[card_of(one)], -left[card_of(one)], card_of(one)))
        free.remove(share)              # the GPU's free share with the lowest number
        chosen.append(share)
    return chosen
