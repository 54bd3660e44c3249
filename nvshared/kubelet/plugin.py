# SPDX-License-Identifier: Apache-2.0
"""The device plugin, deviceplugin/v1beta1: kubelet counts shares, and hands them to containers."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from nvshared.errors import NvshareError
from nvshared.kubelet import rpc
from nvshared.kubelet.container import Containers
from nvshared.kubelet.messages import DEVICE_PLUGIN, classes
from nvshared.kubelet.offer import Offer, SameCardTwice, preferred
from nvshared.kubelet.pod import RESOURCE
from nvshared.kubelet.rpc import Kind
from nvshared.kubelet.runtime import Runtime

logger = logging.getLogger(__name__)

VERSION = "v1beta1"
DP = classes("v1beta1", DEVICE_PLUGIN)


class Plugin:
    """Serves kubelet's device plugin calls. `look` updates `offer` from nvshared."""

    kind = Kind("DevicePlugin", RESOURCE, (VERSION,), "nvshare.com-gpu-reg.sock")

    def __init__(
        self, offer: Offer, containers: Containers, runtime: Runtime,
        look: Callable[[], Awaitable[None]],
    ) -> None:
        self._offer = offer
        self._containers = containers
        self._runtime = runtime
        self._look = look

    def services(self) -> Sequence[rpc.Service]:
        """The gRPC services that kubelet calls."""
        return (rpc.Service(f"{VERSION}.DevicePlugin", DP, {
            "GetDevicePluginOptions": (self.options, "Empty"),
            "ListAndWatch": (self.list_and_watch, "Empty"),
            "GetPreferredAllocation": (self.preferred, "PreferredAllocationRequest"),
            "Allocate": (self.allocate, "AllocateRequest"),
        }),)

    async def options(self, _request: Any, _context: Any) -> Any:
        """Reports the optional calls that the plugin supports."""
        return DP["DevicePluginOptions"](get_preferred_allocation_available=True)

    async def list_and_watch(self, _request: Any, _context: Any) -> AsyncIterator[Any]:
        """Streams all shares: at once, and on changes."""
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
        """Chooses shares for each container."""
        return DP["PreferredAllocationResponse"](container_responses=[
            DP["ContainerPreferredAllocationResponse"](deviceIDs=preferred(
                one.available_deviceIDs, one.must_include_deviceIDs, one.allocation_size
            ))
            for one in request.container_requests
        ])

    async def allocate(self, request: Any, context: Any) -> Any:
        """Allocates shares to containers; refuses the call if nvshared does not reply."""
        await self._look()
        by_cdi = not await self._runtime.why_not()
        try:
            if by_cdi:
                self._containers.learn(card.uuid for card in self._offer.offered())
            answers = [
                self._answer(one.devices_ids, by_cdi=by_cdi) for one in request.container_requests
            ]
        except NvshareError as error:
            logger.error("a pod gets no GPU: %s", error)
            await rpc.refuse(context, f"nvshare: {error}")
        for one in request.container_requests:
            logger.info("a container gets %s", ", ".join(one.devices_ids))
        return DP["AllocateResponse"](container_responses=answers)

    def _answer(self, shares: Sequence[str], *, by_cdi: bool) -> Any:
        """The response for one container. Raises NvshareError.

        A pod that is refused here fails, and its Deployment replaces it at once, many times in a
        second. If no retry can succeed, the response names a device that does not exist, with the
        reason as its path: so the container cannot be created, and kubelet retries with backoff.
        """
        try:
            cards = self._offer.check(shares)
        except SameCardTwice as error:
            logger.error("a container cannot be created: %s", error)
            missing = f"/dev/nvshare: {error}"
            return DP["ContainerAllocateResponse"](devices=[
                DP["DeviceSpec"](container_path=missing, host_path=missing, permissions="r")])
        return DP["ContainerAllocateResponse"](**self._containers.answer(cards, by_cdi=by_cdi))
