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
from typing import Any, NamedTuple

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
    problem: str = ""                   # why it cannot be shared now
    product: str = ""
    memory: int = 0                     # bytes

    @property
    def device(self) -> str:
        """The GPU's device name in a ResourceSlice."""
        return self.uuid.lower()

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
        text = (driver / address(card.pci_bus_id) / "information").read_text(errors="replace")
    except (OSError, ValueError):
        return None
    found = re.search(r"^Device Minor:\s*(\d+)\s*$", text, re.MULTILINE)
    return int(found[1]) if found else None


# The GPUs, or the error of asking nvshared; and nvshared's unique bus name, "" without a reply.
Reading = tuple[tuple[Card, ...] | NvshareError, str]
CHECKPOINT = "device-plugins/kubelet_internal_checkpoint"
# Names of resources whose devices may be NVIDIA GPUs, and of other makers' resources.
GPU_RESOURCE = re.compile(r"^nvidia\.com/|gpu|cuda|(?:^|\W)mig(?:\W|$)", re.IGNORECASE)
OTHER_MAKER = re.compile(r"^(?:[\w-]+\.)*(?:amd|intel)\.com/", re.IGNORECASE)


class Entry(NamedTuple):
    """Devices of a resource in kubelet's checkpoint file."""

    resource: str
    devices: list[str]
    pod: str = ""                       # kubelet's UID of the pod that has them; "": registered
    container: str = ""


def checkpoint(kubelet: Path) -> list[Entry]:
    """The devices of all resources that device plugins have registered, and that pods have.

    Raises NvshareError if kubelet's file cannot be read or parsed: then any GPU may be in use.
    """
    path = kubelet / CHECKPOINT
    try:
        data = json.loads(path.read_text())["Data"]
        found = [Entry(resource, list(devices or ()))
                 for resource, devices in (data["RegisteredDevices"] or {}).items()]
        for one in data["PodDeviceEntries"] or ():
            given = one["DeviceIDs"]    # by NUMA node; before kubelet 1.20 a list
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
            "please report the version of kubelet",
        ) from error
    return found


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
    """The current GPUs, or the error of asking nvshared; and nvshared's unique bus name.

    The name differs after each restart; "" without a reply. `socket`: nvshared's socket for
    programs. `fresh`: nvshared samples each GPU's driver first, which may take a second.
    """
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


def of_daemon(gpu: Mapping[str, Any], given: Mapping[str, str]) -> Card:
    """The GPU with these D-Bus properties. `given`: other resources by the names of devices."""
    uuid = gpu["UUID"]
    card = Card(uuid, gpu["Index"], gpu["PCIBusID"], "", gpu["Name"], gpu["MemoryTotal"])
    if gpu["State"] == "lost":
        problem = f"{uuid} fell off the bus, or its driver is gone"
    elif gpu.get("Fault"):              # older versions of nvshared lack Fault
        problem = f"{uuid} cannot be relied on: {gpu['Fault']}"
    elif gpu["MIG"]:
        problem = f"{uuid} is divided (MIG), and nvshared shares whole cards"
    else:
        problem = conflict(card, given)
    return replace(card, problem=problem)
