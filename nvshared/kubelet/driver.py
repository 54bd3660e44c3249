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
from collections.abc import AsyncIterator, Mapping
from typing import Any

from nvshared.errors import InvalidArgs, NvshareError
from nvshared.kubelet import rpc
from nvshared.kubelet.api import FAILURES
from nvshared.kubelet.claims import DRIVER
from nvshared.kubelet.messages import DRA
from nvshared.kubelet.plugin import Plugin
from nvshared.kubelet.pod import clipped
from nvshared.kubelet.pods import MOST_IN_EVENT, Pods

logger = logging.getLogger(__name__)

HEALTH_VERSIONS = ("v1alpha1", "v1beta1")       # with the same messages
HEALTHY, UNHEALTHY = 1, 2
REFRESH = 10.0                          # seconds; kubelet drops a device's health after 30


class Driver(Plugin):
    """Serves kubelet's DRA calls."""

    kind, name, version = "DRAPlugin", DRIVER, "v1.DRAPlugin"

    def __init__(self, *common: Any, pods: Pods, node: str) -> None:
        """`common`: as for all plugins; `node`: its name, which is that of the pool of GPUs."""
        super().__init__(*common)
        self._pods = pods
        self._node = node
        self._alone = asyncio.Lock()

    def services(self) -> Mapping[str, rpc.Methods]:
        """The gRPC services that kubelet calls."""
        return {
            "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin": {
                "NodePrepareResources": (self.prepare, DRA["NodePrepareResourcesRequest"]),
                "NodeUnprepareResources": (self.unprepare, DRA["NodeUnprepareResourcesRequest"]),
            },
            **{
                f"{version}.DRAResourceHealth": {
                    "NodeWatchResources": (self.health, DRA["NodeWatchResourcesRequest"]),
                }
                for version in HEALTH_VERSIONS
            },
        }

    async def prepare(self, request: Any, _context: Any) -> Any:
        """Prepares claims; the response has CDI devices, or the reason of a failure, for each."""
        answer = DRA["NodePrepareResourcesResponse"]()
        async with self._alone:
            await self._refresh()
            for requested in request.claims:
                one = answer.claims[requested.uid]
                try:
                    for made in await self._prepare(requested):
                        one.devices.add(**made)
                except FAILURES as error:
                    logger.error("claim %s/%s is not prepared: %s",
                                 requested.namespace, requested.name, error)
                    one.error = clipped(f"nvshare: {error}", MOST_IN_EVENT)
        return answer

    async def _prepare(self, requested: Any) -> list[dict[str, Any]]:
        """The devices of a claim for kubelet. Raises as the API server's client does."""
        if why := await self._runtime.cdi_problem():
            raise NvshareError(why)
        claim = await asyncio.to_thread(self._pods.ask, requested.namespace, requested.name)
        if claim.uid != requested.uid:
            raise InvalidArgs("there is another claim of that name now")
        if not claim.pods:
            raise InvalidArgs("the claim is reserved for no pod")
        if problem := self._offer.common_problem:
            raise NvshareError(problem)
        known = {card.device: card for card in self._offer.offered()}
        for share in claim.shares:
            if share.device not in known:
                raise InvalidArgs(f"there is no device {share.device}")
            if problem := self._offer.problem(known[share.device]):
                raise NvshareError(problem)
        self._containers.write_cdi_file(card.uuid for card in known.values())
        together = [known[one].uuid for one in self._pods.prepared.devices(claim) if one in known]
        if not self._containers.devices(together):
            raise NvshareError(
                "a pod gets several GPUs only by NVIDIA's CDI devices, and there are none",
                "nvidia-ctk cdi generate makes them")
        await asyncio.to_thread(self._pods.claim, claim)
        logger.info("claim %s is prepared", claim)
        return [
            {
                "request_names": [share.request], "pool_name": share.pool,
                "device_name": share.device, "share_id": share.id,
                "cdi_device_ids": self._containers.devices([known[share.device].uuid]),
            }
            for share in claim.shares
        ]

    async def unprepare(self, request: Any, _context: Any) -> Any:
        """Unprepares claims, after all their pods have ended."""
        answer = DRA["NodeUnprepareResourcesResponse"]()
        async with self._alone:
            for requested in request.claims:
                one = answer.claims[requested.uid]
                try:
                    await asyncio.to_thread(self._pods.renew, requested.uid, None)
                except NvshareError as error:
                    one.error = f"nvshare: {error}"
        return answer

    async def health(self, _request: Any, _context: Any) -> AsyncIterator[Any]:
        """Streams the health of all devices: at once, on changes, and every REFRESH seconds."""
        async for _ in self._offer.changes(REFRESH):
            yield DRA["NodeWatchResourcesResponse"](devices=[
                DRA["DeviceHealth"](
                    device=DRA["DeviceIdentifier"](pool_name=self._node, device_name=card.device),
                    health=UNHEALTHY if problem else HEALTHY, message=problem,
                    last_updated_time=int(time.time()),
                )
                for card in self._offer.offered() for problem in [self._offer.problem(card)]
            ])
