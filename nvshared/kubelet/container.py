# SPDX-License-Identifier: Apache-2.0
"""The requirements of a container of a pod that shares a GPU, see nvshared/containers/cdi.py."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvshared.containers import cdi
from nvshared.containers.cdi import KIND, NVIDIA, STATIC, Share
from nvshared.errors import NvshareError

SHARED = "shared"                       # our device without a GPU
VERSION = "0.3.0"                       # version of the CDI format that every runtime reads
VISIBLE = "NVIDIA_VISIBLE_DEVICES"      # requests GPUs from NVIDIA's container runtime
VOID = "void"                           # requests no GPU; CUDA images set "all"


@dataclass(frozen=True, slots=True)
class Containers:
    share: Share
    cdi: Path                           # the folder where our CDI file is written

    def write_cdi_file(self, cards: Iterable[str]) -> None:
        """Writes our CDI file with a device for each of these GPUs. Raises NotPermitted.

        Containers that restart while nvshare-kubelet does not run need the file."""
        devices = {SHARED: VOID} | {card: card for card in cards}
        cdi.write(self.cdi, cdi.document(
            VERSION, {name: {"env": [f"{VISIBLE}={seen}"]} for name, seen in devices.items()},
            self.share.edits))

    def devices(self, cards: Sequence[str]) -> list[str]:
        """CDI devices that give a container these GPUs; empty if only environment variables do."""
        if self._nvidias_devices().issuperset(cards):
            return [f"{KIND}={SHARED}", *(f"{NVIDIA}={card}" for card in cards)]
        return [f"{KIND}={cards[0]}"] if len(cards) == 1 else []

    def response(self, cards: Sequence[str], *, by_cdi: bool) -> dict[str, Any]:
        """The fields of ContainerAllocateResponse for a container with these GPUs."""
        if by_cdi and (devices := self.devices(cards)):
            return {"cdi_devices": [{"name": name} for name in devices]}
        return {
            "envs": self.share.variables | {VISIBLE: ",".join(cards)},
            "mounts": [
                {"container_path": there, "host_path": str(here), "read_only": True}
                for there, here in self.share.mounts.items()]}

    def _nvidias_devices(self) -> set[str]:
        with suppress(NvshareError):    # a file is unreadable or damaged
            if given := cdi.read((STATIC, self.cdi)):
                return set(given.devices)
        return set()
