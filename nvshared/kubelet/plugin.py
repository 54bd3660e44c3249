# SPDX-License-Identifier: Apache-2.0
"""The gRPC server that kubelet talks to: pluginregistration/v1 and deviceplugin/v1beta1.

Both are served at one socket in kubelet's plugins_registry. Kubelet looks there when it starts
and whenever something appears: its restart needs nothing of us, and ours only a new socket.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from nvshared.errors import InvalidArgs, NotPermitted, NvshareError
from nvshared.kubelet.container import Answer, Containers
from nvshared.kubelet.messages import DEVICE_PLUGIN, REGISTRATION, classes
from nvshared.kubelet.offer import Offer, preferred
from nvshared.kubelet.watch import Seen

logger = logging.getLogger(__name__)

RESOURCE = "nvshare.com/gpu"
VERSION = "v1beta1"
REGISTRY = "plugins_registry"
SOCKET = "nvshare.com-gpu-reg.sock"
LONGEST_PATH = 107                      # bytes of a socket's name

REG = classes("pluginregistration", REGISTRATION)
DP = classes("v1beta1", DEVICE_PLUGIN)


class Plugin:
    """Answers kubelet. `look` asks nvshared anew; it may block."""

    def __init__(
        self, offer: Offer, containers: Containers, kubelet: Path, look: Callable[[], Seen]
    ) -> None:
        self._offer = offer
        self._containers = containers
        self._look = look
        self.path = kubelet / REGISTRY / SOCKET
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """Serves at a new socket, which kubelet notices. Raises NvshareError."""
        await self.stop()
        if len(os.fsencode(self.path)) > LONGEST_PATH:
            raise InvalidArgs(f"{self.path} is too long for a socket: {LONGEST_PATH} bytes at most")
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
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((
            _handlers("pluginregistration.Registration", REG, {
                "GetInfo": (self.get_info, "InfoRequest"),
                "NotifyRegistrationStatus": (self.registered, "RegistrationStatus"),
            }),
            _handlers(f"{VERSION}.DevicePlugin", DP, {
                "GetDevicePluginOptions": (self.options, "Empty"),
                "ListAndWatch": (self.list_and_watch, "Empty"),
                "GetPreferredAllocation": (self.preferred, "PreferredAllocationRequest"),
                "Allocate": (self.allocate, "AllocateRequest"),
                "PreStartContainer": (self.pre_start, "PreStartContainerRequest"),
            }, streamed=("ListAndWatch",)),
        ))
        before = os.umask(0o177)        # for root alone
        try:
            server.add_insecure_port(f"unix:{self.path}")
        except RuntimeError as error:
            raise NotPermitted(
                f"cannot listen at {self.path}: {error}", "run it as root"
            ) from error
        finally:
            os.umask(before)
        await server.start()
        self._server = server

    async def stop(self) -> None:
        """Takes the socket away: kubelet hands out nothing from now on."""
        if self._server is not None:
            self.path.unlink(missing_ok=True)
            await self._server.stop(None)
            self._server = None

    def is_there(self) -> bool:
        """Whether kubelet can find us; `kubeadm reset` and the like empty its folder."""
        return self.path.is_socket()

    async def get_info(self, _request: Any, _context: Any) -> Any:
        """Who we are."""
        return REG["PluginInfo"](
            type="DevicePlugin", name=RESOURCE, endpoint=str(self.path),
            supported_versions=[VERSION],
        )

    async def registered(self, status: Any, _context: Any) -> Any:
        """What kubelet made of that."""
        if status.plugin_registered:
            logger.info("kubelet knows %s now", RESOURCE)
        else:
            logger.error("kubelet does not take %s: %s", RESOURCE, status.error)
        return REG["RegistrationStatusResponse"]()

    async def options(self, _request: Any, _context: Any) -> Any:
        """What kubelet may ask."""
        return DP["DevicePluginOptions"](get_preferred_allocation_available=True)

    async def list_and_watch(self, _request: Any, _context: Any) -> AsyncIterator[Any]:
        """All shares, now and whenever something changes."""
        while True:
            news = asyncio.ensure_future(self._offer.news())
            try:
                yield DP["ListAndWatchResponse"](devices=[
                    DP["Device"](ID=share, health="Healthy" if healthy else "Unhealthy")
                    for share, healthy in self._offer.shares().items()
                ])
                await news
            finally:
                news.cancel()

    async def preferred(self, request: Any, _context: Any) -> Any:
        """Which shares would be best."""
        return DP["PreferredAllocationResponse"](container_responses=[
            DP["ContainerPreferredAllocationResponse"](deviceIDs=preferred(
                one.available_deviceIDs, one.must_include_deviceIDs, one.allocation_size
            ))
            for one in request.container_requests
        ])

    async def allocate(self, request: Any, context: Any) -> Any:
        """What each container gets; or nothing, with the reason, if nvshared does not answer."""
        self._offer.learn(await asyncio.to_thread(self._look))
        try:
            answers = [
                self._containers.answer(self._offer.check(one.devices_ids))
                for one in request.container_requests
            ]
        except NvshareError as error:
            logger.error("a pod gets no GPU: %s", error)
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"nvshare: {error}")
        for one in request.container_requests:
            logger.info("a container gets %s", ", ".join(one.devices_ids))
        return DP["AllocateResponse"](container_responses=list(map(_as_message, answers)))

    async def pre_start(self, _request: Any, _context: Any) -> Any:
        """Kubelet does not ask: we did not say that it should."""
        return DP["PreStartContainerResponse"]()


def _as_message(answer: Answer) -> Any:
    return DP["ContainerAllocateResponse"](
        envs=answer.variables,
        mounts=[
            DP["Mount"](container_path=there, host_path=str(here), read_only=True)
            for there, here in answer.mounts
        ],
        cdi_devices=[DP["CDIDevice"](name=name) for name in answer.cdi],
    )


def _handlers(
    service: str, messages: dict[str, Any], methods: dict[str, tuple[Any, str]],
    streamed: tuple[str, ...] = (),
) -> Any:
    return grpc.method_handlers_generic_handler(service, {
        name: (
            grpc.unary_stream_rpc_method_handler if name in streamed
            else grpc.unary_unary_rpc_method_handler
        )(
            function, request_deserializer=messages[request].FromString,
            response_serializer=lambda message: message.SerializeToString(),
        )
        for name, (function, request) in methods.items()
    })
