# SPDX-License-Identifier: Apache-2.0
"""Whether the container runtime supports CDI devices, found over the runtime's CRI socket.

Where it does not, it ignores them silently: a container would use the whole GPU. So the runtime is
queried for each pod. If kubelet's options do not name the runtime, all runtimes must support CDI.
"""

import asyncio
import json
import logging
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from nvshared.errors import NvshareError
from nvshared.kubelet import rpc
from nvshared.kubelet.options import AUTO, ON
from nvshared.kubelet.rpc import CRI

logger = logging.getLogger(__name__)

PATIENCE = 5.0                          # most seconds until the runtime responds
PROCESSES = Path("/proc")
SERVICE = "runtime.v1.RuntimeService"


class Runtime:
    """The container runtime of this node, or the administrator's --cdi."""

    def __init__(self, cdi: str, sockets: Sequence[Path]) -> None:
        """`sockets`: the administrator's --runtime, or the usual paths of runtimes."""
        self._cdi = cdi
        self._sockets = sockets
        self.supports_cdi = False       # the last result of cdi_problem()

    async def cdi_problem(self) -> str:
        """Why containers cannot get CDI devices; "" if they can."""
        why = await self._cdi_problem()
        self.supports_cdi = not why
        return why

    async def _cdi_problem(self) -> str:
        if self._cdi != AUTO:
            return "" if self._cdi == ON else "--cdi off says that CDI devices are not supported"
        sockets = [path for path in self._sockets if path.is_socket()]
        if len(self._sockets) > 1 and (used := await asyncio.to_thread(endpoint)):
            sockets = [used]
        if not sockets:
            return (
                "it is unknown whether CDI devices are supported: there is no container runtime at "
                f"{' or '.join(map(str, self._sockets))}; --runtime names its socket")
        for socket in sockets:
            if why := await self._ask(socket):
                several = f", and kubelet may use that of {socket}: --runtime names kubelet's"
                return why + (several if len(sockets) > 1 else "")
        return ""

    async def _ask(self, socket: Path) -> str:
        try:
            version, status = [
                await rpc.call(socket, f"{SERVICE}/{method}", CRI[f"{method}Request"](**fields),
                               CRI[f"{method}Response"], PATIENCE)
                for method, fields in (("Version", {}), ("Status", {"verbose": True}))]
        except NvshareError as error:
            return f"it is unknown whether CDI devices are supported: {error}"
        return refusal(version.runtime_name, version.runtime_version, status.info.get("config", ""))


def root_directory() -> Path | None:
    """The running kubelet's --root-dir; None if it is not given, or no kubelet is to be seen."""
    named = _option(_kubelet(), "root-dir")
    return Path(named) if named else None


def endpoint() -> Path | None:
    """The container runtime's socket from the running kubelet's options; None if not given."""
    command = _kubelet()
    named = _option(command, "container-runtime-endpoint")
    try:
        if not named and (file := _option(command, "config")):
            named = yaml.safe_load(Path(file).read_text())["containerRuntimeEndpoint"]
        return Path(named.removeprefix("unix://")) if named else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError) as error:
        logger.debug("kubelet's configuration is not used: %r", error)
        return None


def _kubelet() -> str:
    """The command line of the running kubelet; "": none is to be seen."""
    for process in PROCESSES.glob("[0-9]*"):
        with suppress(OSError):         # the process has ended
            if _is_kubelet(process):
                return (process / "cmdline").read_text(errors="replace")
    return ""


def _is_kubelet(process: Path) -> bool:
    """Whether a process is root's and in no container: any process may call itself kubelet."""
    if (process / "comm").read_bytes() != b"kubelet\n" or process.stat().st_uid != 0:
        return False
    status = (process / "status").read_text(errors="replace")
    return re.search(r"^NSpid:\t\d+$", status, re.MULTILINE) is not None


def _option(command: str, name: str) -> str:
    """The last value of --name in a process's command line, where \\0 ends each argument."""
    values = re.findall(rf"(?<=\0)--?{name}[=\0]([^\0]*)", command)
    return values[-1] if values else ""


def refusal(name: str, version: str, config: str) -> str:
    """Why this runtime ignores CDI devices; "": it does not. `config`: the runtime's JSON."""
    known = re.match(r"v?(\d+)\.(\d+)\.(\d+)", version, re.ASCII)
    number = tuple(map(int, known.groups())) if known else (0, 0, 0)
    enabled: Any = None                 # containerd's enable_cdi; None: not in its configuration
    if name == "containerd":
        with suppress(ValueError, AttributeError):
            enabled = json.loads(config).get("enableCDI")
    oldest = {"containerd": (1, 7, 2) if enabled is True else (2, 0, 0), "cri-o": (1, 28, 0)}
    if name in oldest and number >= oldest[name] and enabled in (None, True):
        return ""
    if name == "containerd" and number >= (1, 7, 2):
        return (f"{name} {version} has CDI devices switched off: set enable_cdi = true in its "
                "configuration and restart it")
    return (
        f"{name} {version} does not support CDI devices: containerd does from 1.7.2 with "
        "enable_cdi, and from 2.0; CRI-O from 1.28")
