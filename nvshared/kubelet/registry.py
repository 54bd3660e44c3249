# SPDX-License-Identifier: Apache-2.0
"""How kubelet finds us: pluginregistration/v1, at a socket in its plugins_registry.

What we are is served at the same socket. Kubelet looks there when it starts and whenever
something appears: its restart needs nothing of us, and ours only a new socket.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from nvshared.errors import NotPermitted, NvshareError
from nvshared.kubelet import rpc
from nvshared.kubelet.messages import REGISTRATION, classes

logger = logging.getLogger(__name__)

REGISTRY = "plugins_registry"

REG = classes("pluginregistration", REGISTRATION)


@dataclass(frozen=True, slots=True)
class Kind:
    """Who we are for kubelet."""

    type: str
    name: str
    versions: tuple[str, ...]
    socket: str                         # in its folder


class Servant(Protocol):
    """A plugin of kubelet's."""

    kind: Kind

    def services(self) -> Sequence[rpc.Service]:
        """What kubelet asks of it."""


class Registered:
    """A plugin that kubelet can find."""

    def __init__(self, plugin: Servant, kubelet: Path) -> None:
        self._plugin = plugin
        self._kind = plugin.kind
        self.path = kubelet / REGISTRY / self._kind.socket
        self._server: Any = None

    async def start(self) -> None:
        """Serves at a new socket, which kubelet notices. Raises NvshareError."""
        await self.stop()
        if not self.path.parent.parent.is_dir():
            raise NvshareError(
                f"there is no folder {self.path.parent.parent}: kubelet is not on this machine",
                "--kubelet names another folder; kubelet's --root-dir says which",
            )
        try:
            self.path.parent.mkdir(mode=0o750, exist_ok=True)
            self.path.unlink(missing_ok=True)   # of one of us that was killed
        except OSError as error:
            raise NotPermitted(
                f"cannot make a socket in {self.path.parent}: {error.strerror}", "run it as root"
            ) from error
        self._server = await rpc.serve(
            self.path,
            rpc.Service("pluginregistration.Registration", REG, {
                "GetInfo": (self._info, "InfoRequest"),
                "NotifyRegistrationStatus": (self._registered, "RegistrationStatus"),
            }),
            *self._plugin.services(),
        )

    async def stop(self) -> None:
        """Takes the socket away: kubelet hands out nothing from now on."""
        if self._server is not None:
            self.path.unlink(missing_ok=True)
            await self._server.stop(None)
            self._server = None

    def is_there(self) -> bool:
        """Whether kubelet can find us; `kubeadm reset` and the like empty its folder."""
        return self.path.is_socket()

    async def _info(self, _request: Any, _context: Any) -> Any:
        return REG["PluginInfo"](
            type=self._kind.type, name=self._kind.name, endpoint=str(self.path),
            supported_versions=self._kind.versions,
        )

    async def _registered(self, status: Any, _context: Any) -> Any:
        if status.plugin_registered:
            logger.info("kubelet knows %s now", self._kind.name)
        else:
            logger.error("kubelet does not take %s: %s", self._kind.name, status.error)
        return REG["RegistrationStatusResponse"]()
