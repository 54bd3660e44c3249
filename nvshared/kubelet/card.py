# SPDX-License-Identifier: Apache-2.0
"""This node's GPUs, and whether they can be shared, from nvshared and kubelet's checkpoint file.

A GPU that another device plugin offers is not shared. The name of that plugin's device identifies a
GPU by a UUID, a PCI address, or the minor number of /dev/nvidiaN, with any text of the plugin
around it.
"""

import asyncio
import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from nvshared.control import Daemon
from nvshared.errors import NvshareError
from nvshared.kubelet.pod import RESOURCE

PATIENCE = 5.0                          # seconds for nvshared's reply
RESTART = 5.0                           # seconds without a reply until shares are withdrawn
DRIVER = Path("/proc/driver/nvidia/gpus")

# UUIDs of a GPU and of a MIG device; one without that prefix may belong to anything.
UUID = re.compile(r"(?:gpu|mig)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
PCI = re.compile(r"(?:(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])(?![0-9a-f])")
MINOR = re.compile(r"(?:^|/)nvidia(\d+)(?![\d.])")


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU, as nvshared and kubelet report it."""

    uuid: str
    index: int
    pci_bus_id: str
    trouble: str = ""                   # why it cannot be shared now
    product: str = ""
    memory: int = 0                     # bytes

    @property
    def names(self) -> set[str]:
        """The names by which --replicas may call the GPU: UUID, index, PCI address."""
        pci = self.pci_bus_id
        return {self.uuid, str(self.index), pci, pci.removeprefix("00000000:")}


def identifies(device: str, card: Card, driver: Path = DRIVER) -> bool | None:
    """Whether a device's name identifies this GPU; None if it identifies no GPU at all.

    The UUID of a MIG device matches no GPU: a GPU divided by MIG is not shared anyway.
    """
    text = device.lower()
    uuid = card.uuid.lower()
    if uuid in text or (len(uuid) > len("gpu-") and uuid.removeprefix("gpu-") == text):
        return True
    if UUID.search(text):
        return False
    if addresses := PCI.findall(text):
        return address(card.pci_bus_id) in map(address, addresses)
    if numbers := MINOR.findall(text):
        minor = minor_number(card, driver)
        return None if minor is None else minor in map(int, numbers)
    return None


def address(text: str) -> str:
    """A PCI address in the kernel's form: NVML pads its domain, others leave the domain out."""
    domain, _, rest = text.lower().rpartition(":")[0].rpartition(":")
    return f"{int(domain or '0', 16):04x}:{rest}:{text.lower().rpartition(':')[2]}"


def minor_number(card: Card, driver: Path = DRIVER) -> int | None:
    """N of the GPU's /dev/nvidiaN from NVIDIA's driver; None if unknown."""
    try:
        said = (driver / address(card.pci_bus_id) / "information").read_text(errors="replace")
    except (OSError, ValueError):
        return None
    found = re.search(r"^Device Minor:\s*(\d+)\s*$", said, re.MULTILINE)
    return int(found[1]) if found else None


# The GPUs, or the error of asking nvshared; and nvshared's unique bus name, "" without a reply.
Seen = tuple[tuple[Card, ...] | NvshareError, str]
T = TypeVar("T")
CHECKPOINT = "device-plugins/kubelet_internal_checkpoint"
# Names of resources whose devices may be NVIDIA GPUs, and of other makers' resources.
GPU_RESOURCE = re.compile(r"^nvidia\.com/|gpu|cuda|(?:^|\W)mig(?:\W|$)", re.IGNORECASE)
OTHER_MAKER = re.compile(r"^(?:[\w-]+\.)*(?:amd|intel)\.com/", re.IGNORECASE)


def elsewhere(kubelet: Path, ours: str) -> dict[str, str]:
    """Names of the devices of resources other than ours, each with its resource.

    Raises NvshareError if kubelet's file cannot be read or parsed: then any GPU may be in use.
    """
    def read(data: Any) -> dict[str, str]:
        found = {
            device: resource
            for resource, devices in (data["RegisteredDevices"] or {}).items()
            for device in devices or ()
        }
        for entry in data["PodDeviceEntries"] or ():
            found |= dict.fromkeys(_devices(entry["DeviceIDs"]), entry["ResourceName"])
        return {device: resource for device, resource in found.items() if resource != ours}

    return _checkpoint(kubelet, read, {})


def holders(kubelet: Path, ours: str) -> set[tuple[str, str]]:
    """Pods (kubelet's UID) and names of their containers that have devices of our resource.

    Raises NvshareError as elsewhere() does.
    """
    def read(data: Any) -> set[tuple[str, str]]:
        return {
            (entry["PodUID"], entry["ContainerName"])
            for entry in data["PodDeviceEntries"] or () if entry["ResourceName"] == ours
        }

    return _checkpoint(kubelet, read, set())


def _checkpoint(kubelet: Path, read: Callable[[Any], T], nothing: T) -> T:
    path = kubelet / CHECKPOINT
    try:
        return read(json.loads(path.read_text())["Data"])
    except FileNotFoundError:
        return nothing                  # no device plugin has ever registered here
    except OSError as error:
        raise NvshareError(f"cannot read {path}: {error.strerror}", "run it as root") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise NvshareError(
            f"{path} is not as kubelet writes it: {type(error).__name__}: {error}",
            "please report the version of kubelet",
        ) from error


def _devices(given: Any) -> list[str]:
    """Device ids from a map by NUMA node (kubelet 1.20 and later) or from a list."""
    if isinstance(given, dict):
        return [device for devices in given.values() for device in devices or ()]
    return list(given or ())


def conflict(card: Card, devices: Mapping[str, str], driver: Path = DRIVER) -> str:
    """Why another device plugin may have handed out this GPU; "" if none has.

    `devices`: names of devices, each with its resource.
    """
    unknown = ""
    for device, resource in devices.items():
        match identifies(device, card, driver):
            case True:
                return f"{card.uuid} is handed out as {resource} already"
            case None if GPU_RESOURCE.search(resource) and not OTHER_MAKER.match(resource):
                unknown = unknown or (
                    f"{card.uuid} may be handed out as {resource} already: the name {device!r} "
                    "does not say which GPU it is")
    return unknown


async def look_until_answered(
    look: Callable[[], Seen], patience: float, pause: float = RESTART / 10
) -> Seen:
    """Calls `look` until nvshared replies, for `patience` seconds; returns the last result."""
    limit = time.monotonic() + patience
    while True:
        seen, name = await asyncio.to_thread(look)
        if name or time.monotonic() >= limit:
            return seen, name
        await asyncio.sleep(pause)


def look(
    bus: str, socket: Path, kubelet: Path, *, fresh: bool = False
) -> Seen:
    """The current GPUs, or the error of asking nvshared; and nvshared's unique bus name.

    The name differs after each restart; "" without a reply. `socket`: nvshared's socket for
    programs. `fresh`: nvshared samples each GPU's driver first, which may take a second.
    """
    try:
        with Daemon(bus, PATIENCE) as daemon:
            return _look(daemon, socket, kubelet, fresh=fresh), daemon.peer
    except NvshareError as error:
        return error, ""


def _look(
    daemon: Daemon, socket: Path, kubelet: Path, *, fresh: bool = False
) -> tuple[Card, ...]:
    gpus = daemon.gpus(fresh=fresh)
    if not socket.is_socket():
        raise NvshareError(
            f"nvshared runs, and does not listen at {socket}", "--socket says where it does"
        )
    given = elsewhere(kubelet, RESOURCE)
    cards = []
    for gpu in gpus:
        uuid = gpu["UUID"]
        card = Card(
            uuid, gpu["Index"], gpu["PCIBusID"], "", gpu["Name"], gpu["MemoryTotal"])
        if gpu["State"] == "lost":
            trouble = f"{uuid} fell off the bus, or its driver is gone"
        elif gpu.get("Fault"):          # older versions of nvshared lack Fault
            trouble = f"{uuid} cannot be relied on: {gpu['Fault']}"
        elif gpu["MIG"]:
            trouble = f"{uuid} is divided (MIG), and nvshared shares whole cards"
        else:
            trouble = conflict(card, given)
        cards.append(replace(card, trouble=trouble))
    return tuple(cards)
