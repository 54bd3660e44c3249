# SPDX-License-Identifier: Apache-2.0
"""Whether the container runtime heeds CDI devices: it is asked, over its own socket.

containerd 1.6 drops them without a word, and so does 1.7 unless `enable_cdi` is set: a container
would start without the library, and use the whole GPU. The question is put again for each pod, as
a runtime is upgraded and set up anew while we run.
"""

import json
import logging
import re
from collections.abc import Sequence
from pathlib import Path

from nvshared.errors import NvshareError
from nvshared.kubelet import rpc
from nvshared.kubelet.messages import RUNTIME, classes
from nvshared.kubelet.options import AUTO, ON

logger = logging.getLogger(__name__)

PATIENCE = 5.0                          # seconds for its answer

CRI = classes("runtime.v1", RUNTIME)
SERVICE = "runtime.v1.RuntimeService"


class Runtime:
    """The one of this node, or what its administrator says of it."""

    def __init__(self, cdi: str, sockets: Sequence[Path]) -> None:
        self._cdi = cdi
        self._sockets = sockets
        self.heeds = False              # CDI devices, when it was last asked

    async def why_not(self) -> str:
        """Why containers cannot get CDI devices; "" if they can."""
        why = await self._ask()
        self.heeds = not why
        return why

    async def _ask(self) -> str:
        if self._cdi != AUTO:
            return "" if self._cdi == ON else "--cdi off says that CDI devices are not heeded"
        socket = next((path for path in self._sockets if path.is_socket()), None)
        if socket is None:
            return (
                "nobody says whether CDI devices are heeded: there is no container runtime at "
                f"{' or '.join(map(str, self._sockets))}; --runtime names its socket"
            )
        try:
            version = await rpc.ask(
                socket, f"{SERVICE}/Version", CRI["VersionRequest"](), CRI["VersionResponse"],
                PATIENCE,
            )
            status = await rpc.ask(
                socket, f"{SERVICE}/Status", CRI["StatusRequest"](verbose=True),
                CRI["StatusResponse"], PATIENCE,
            )
        except NvshareError as error:
            return f"nobody says whether CDI devices are heeded: {error}"
        return refusal(version.runtime_name, version.runtime_version, status.info.get("config", ""))


def refusal(name: str, version: str, config: str) -> str:
    """Why this runtime drops CDI devices; "" if it does not. `config` is what it says of itself."""
    known = re.match(r"v?(\d+)\.(\d+)\.(\d+)", version, re.ASCII)
    number = tuple(map(int, known.groups())) if known else (0, 0, 0)
    match name:
        case "containerd":
            try:
                said = json.loads(config).get("enableCDI") if config else None
            except (ValueError, AttributeError):
                said = None
            heeded = number >= (2, 0, 0) if said is None else number >= (1, 7, 2) and said is True
        case "cri-o":
            heeded = number >= (1, 28, 0)
        case _:
            heeded = False
    if heeded:
        return ""
    return (
        f"{name} {version} does not heed CDI devices: containerd does from 1.7.2 with enable_cdi, "
        "and from 2.0; CRI-O from 1.28"
    )
