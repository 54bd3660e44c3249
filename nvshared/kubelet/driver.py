# SPDX-License-Identifier: Apache-2.0
"""The DRA driver gpu.nvshare.com, dra/v1: kubelet has claims prepared before their pods start.

A claim's consumed capacity becomes terms of its pods before kubelet gets the response. CDI devices
give containers the GPU, the library and nvshared's socket. On failure the response has the reason,
and kubelet retries: while nvshared does not run, or if the container runtime does not support CDI
devices, no pod starts. Preparing a claim is idempotent.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from nvshared.errors import InvalidArgs, NvshareError
from nvshared.kubelet import rpc
from nvshared.kubelet.api import TROUBLES
from nvshared.kubelet.claims import DRIVER, Claim, device, read
from nvshared.kubelet.container import Containers
from nvshared.kubelet.messages import DRA, HEALTH, classes
from nvshared.kubelet.offer import Offer
from nvshared.kubelet.pod import clipped
from nvshared.kubelet.pods import MOST_IN_EVENT, Pods
from nvshared.kubelet.rpc import Kind
from nvshared.kubelet.runtime import Runtime

logger = logging.getLogger(__name__)

PACKAGE = "k8s.io.kubelet.pkg.apis.dra.v1"
HEALTH_VERSIONS = ("v1alpha1", "v1beta1")       # with the same messages
HEALTHY, UNHEALTHY = 1, 2
REFRESH = 10.0                          # seconds; kubelet drops a device's health after 30

API = classes(PACKAGE, DRA)
HEALTH_API = classes("health", HEALTH)


class Driver:
    """Serves kubelet's DRA calls. `look` updates `offer` from nvshared."""

    kind = Kind("DRAPlugin", DRIVER, ("v1.DRAPlugin",), f"{DRIVER}-reg.sock")

    def __init__(
        self, offer: Offer, containers: Containers, runtime: Runtime, pods: Pods, node: str,
        look: Callable[[], Awaitable[None]],
    ) -> None:
        self._offer = offer
        self._containers = containers
        self._runtime = runtime
        self._pods = pods
        self._node = node
        self._look = look
        self._alone = asyncio.Lock()

    def services(self) -> Sequence[rpc.Service]:
        """The gRPC services that kubelet calls."""
        return (
            rpc.Service(f"{PACKAGE}.DRAPlugin", API, {
                "NodePrepareResources": (self.prepare, "NodePrepareResourcesRequest"),
                "NodeUnprepareResources": (self.unprepare, "NodeUnprepareResourcesRequest"),
            }),
            *(
                rpc.Service(f"{version}.DRAResourceHealth", HEALTH_API, {
                    "NodeWatchResources": (self.health, "NodeWatchResourcesRequest"),
                })
                for version in HEALTH_VERSIONS
            ),
        )

    async def prepare(self, request: Any, _context: Any) -> Any:
        """Prepares claims; the response has CDI devices, or the reason of a failure, for each."""
        answer = API["NodePrepareResourcesResponse"]()
        async with self._alone:
            await self._look()
            for asked in request.claims:
                one = answer.claims[asked.uid]
                try:
                    for made in await self._prepare(asked):
                        one.devices.add(**made)
                except TROUBLES as error:
                    logger.error(
                        "claim %s/%s is not prepared: %s", asked.namespace, asked.name, error)
                    one.error = clipped(f"nvshare: {error}", MOST_IN_EVENT)
        return answer

    async def _prepare(self, asked: Any) -> list[dict[str, Any]]:
        if why := await self._runtime.why_not():
            raise NvshareError(why)
        said = await asyncio.to_thread(self._pods.ask, asked.namespace, asked.name)
        claim = read(said)
        if claim.uid != asked.uid:
            raise InvalidArgs("there is another claim of that name now")
        if not claim.pods:
            raise InvalidArgs("it is reserved for no pod")
        known = {device(card.uuid): card.uuid for card in self._offer.offered()}
        self._check(claim)
        self._containers.learn(known.values())
        together = [known[one] for one in self._pods.devices(claim) if one in known]
        if not self._containers.cdi.devices(together):
            raise NvshareError(
                "a pod gets several GPUs by NVIDIA's CDI devices alone, and there are none",
                "nvidia-ctk cdi generate makes them")
        await asyncio.to_thread(self._pods.claim, said)
        logger.info("claim %s is prepared", claim)
        return [
            {
                "request_names": [share.request], "pool_name": share.pool,
                "device_name": share.device, "share_id": share.id,
                "cdi_device_ids": self._containers.cdi.devices([known[share.device]]),
            }
            for share in claim.shares
        ]

    def _check(self, claim: Claim) -> None:
        """Raises NvshareError if a GPU of the claim cannot be shared."""
        if trouble := self._offer.trouble_of_all:
            raise NvshareError(trouble)
        known = {device(card.uuid): card for card in self._offer.offered()}
        for share in claim.shares:
            if share.device not in known:
                raise InvalidArgs(f"there is no device {share.device}")
            if trouble := self._offer.trouble(known[share.device]):
                raise NvshareError(trouble)

    async def unprepare(self, request: Any, _context: Any) -> Any:
        """Unprepares claims, after all their pods have ended."""
        answer = API["NodeUnprepareResourcesResponse"]()
        async with self._alone:
            for asked in request.claims:
                one = answer.claims[asked.uid]
                try:
                    await asyncio.to_thread(self._pods.unclaim, asked.uid)
                except NvshareError as error:
                    one.error = f"nvshare: {error}"
        return answer

    async def health(self, _request: Any, _context: Any) -> AsyncIterator[Any]:
        """Streams the health of all devices: at once, on changes, and every REFRESH seconds."""
        while True:
            news = asyncio.ensure_future(self._offer.news())
            try:
                yield HEALTH_API["NodeWatchResourcesResponse"](devices=[
                    HEALTH_API["DeviceHealth"](
                        device=HEALTH_API["DeviceIdentifier"](
                            pool_name=self._node, device_name=device(card.uuid)),
                        health=UNHEALTHY if trouble else HEALTHY, message=trouble,
                        last_updated_time=int(time.time()),
                    )
                    for card in self._offer.offered() for trouble in [self._offer.trouble(card)]
                ])
                await asyncio.wait([news], timeout=REFRESH)
            finally:
                news.cancel()
