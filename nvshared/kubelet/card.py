# SPDX-License-Identifier: Apache-2.0
"""A GPU, and whether a name that another plugin gave to a device is that of this GPU.

A name identifies a GPU by a UUID, a PCI address, or the minor number of /dev/nvidiaN, with
whatever the plugin put around it.
"""

import re
from dataclasses import dataclass
from pathlib import Path

DRIVER = Path("/proc/driver/nvidia/gpus")

# NVML's names of a GPU and of a MIG device; a UUID without such a word may be of anything.
UUID = re.compile(r"(?:gpu|mig)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
PCI = re.compile(r"(?:(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])(?![0-9a-f])")
MINOR = re.compile(r"(?:^|/)nvidia(\d+)(?![\d.])")


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU, as nvshared and kubelet tell of it."""

    uuid: str
    index: int
    pci_bus_id: str
    trouble: str = ""                   # why it cannot be shared now
    product: str = ""
    memory: int = 0                     # bytes

    @property
    def names(self) -> set[str]:
        """All that people call it."""
        pci = self.pci_bus_id
        return {self.uuid, str(self.index), pci, pci.removeprefix("00000000:")}


def identifies(device: str, card: Card, driver: Path = DRIVER) -> bool | None:
    """Whether a device's name identifies this card; None where it identifies none.

    A MIG device has a UUID of its own. It cannot be part of a card that is not divided, and a
    divided card is not shared.
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
    """A PCI address as the kernel writes it, whose domain NVML and others pad or leave out."""
    domain, _, rest = text.lower().rpartition(":")[0].rpartition(":")
    return f"{int(domain or '0', 16):04x}:{rest}:{text.lower().rpartition(':')[2]}"


def minor_number(card: Card, driver: Path = DRIVER) -> int | None:
    """N of the card's /dev/nvidiaN, as NVIDIA's driver tells it; None where it does not."""
    try:
        said = (driver / address(card.pci_bus_id) / "information").read_text(errors="replace")
    except (OSError, ValueError):
        return None
    found = re.search(r"^Device Minor:\s*(\d+)\s*$", said, re.MULTILINE)
    return int(found[1]) if found else None
