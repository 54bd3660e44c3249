# SPDX-License-Identifier: Apache-2.0
"""Kubelet's plugins: the device plugin (deviceplugin/v1beta1) and the DRA driver (dra/v1).

On failure the response has the reason, and kubelet retries. Preparing a claim is idempotent."""

import asyncio
import errno
import logging
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

from nvshared.errors import InvalidArgs, NotPermitted, NvshareError
from nvshared.kubelet import rpc
from nvshared.kubelet.api import FAILURES
from nvshared.kubelet.card import (
    KUBELET_SOCKET,
    Offer,
    SameCardTwice,
    of_device_manager,
    preferred,
)
from nvshared.kubelet.claims import DRIVER, RESOURCE, Claim, clipped
from nvshared.kubelet.container import Containers
from nvshared.kubelet.pods import MOST_IN_EVENT, Pods
from nvshared.kubelet.rpc import DP, DRA, REG
from nvshared.kubelet.runtime import Runtime, root_directory

logger = logging.getLogger(__name__)

REGISTRATION_PATIENCE = 10.0            # seconds within which a running kubelet registers a plugin
HEALTH_VERSIONS = ("v1alpha1", "v1beta1")       # versions with equal messages
HEALTHY, UNHEALTHY = 1, 2               # values of the enumeration HealthStatus
GRACE = 2.0                             # seconds for calls that run when the plugin stops
MOST_QUESTIONS = 32                     # claims for which the API server is asked at once
REFRESH = 10.0                          # seconds between health reports, which expire after 30
REGISTRY = "plugins_registry"           # in kubelet's folder: it watches this for plugins' sockets


class Plugin(ABC):
    """A plugin of kubelet. `refresh` updates `offer` from nvshared."""

    kind: ClassVar[str]                 # kubelet's word for the type of plugin
    name: ClassVar[str]                 # name of the device plugin's resource or of the DRA driver
    version: ClassVar[str]              # version of kubelet's interface for this type of plugin

    def __init__(
        self, kubelet: Path, offer: Offer, containers: Containers, runtime: Runtime,
        refresh: Callable[[], Awaitable[None]],
    ) -> None:
        self.kubelet = kubelet          # kubelet's folder
        self._offer = offer
        self._containers = containers
        self._runtime = runtime
        self._refresh = refresh
        self._server: Any = None
        self._stops = 0                 # number of stop() so far
        self._is_registered = asyncio.Event()       # kubelet knows the plugin, and its devices
        self._rejection = ""            # kubelet's reason for its last answer; "": it accepted

    @property
    def path(self) -> Path:
        """The plugin's socket."""
        return self.kubelet / REGISTRY / f"{self.name.replace('/', '-')}-reg.sock"

    @abstractmethod
    def services(self) -> Mapping[str, rpc.Methods]:
        """The gRPC services that kubelet calls, by name."""

    async def start(self, kubelet: Path | None = None) -> None:
        """Serves at a new socket, which kubelet's plugin watcher finds. Raises NvshareError.

        `kubelet`: another folder of kubelet."""
        await self.stop()
        self.kubelet = kubelet or self.kubelet
        registry = self.path.parent
        if not registry.parent.is_dir():
            raise NvshareError(
                f"there is no folder {registry.parent}: kubelet is not on this machine",
                "--kubelet names another folder; kubelet's --root-dir says which")
        self._is_registered.clear()
        try:
            registry.mkdir(mode=0o750, exist_ok=True)
            self.path.unlink(missing_ok=True)   # left by a killed nvshare-kubelet
        except OSError as error:
            raise NotPermitted(
                f"cannot make a socket in {registry}: {error.strerror}",
                f"its unit needs ReadWritePaths={registry.parent} (systemctl edit nvshare-kubelet)"
                if error.errno == errno.EROFS else "run it as root") from error
        self._server = await rpc.serve(self.path, {
            "pluginregistration.Registration": {
                "GetInfo": (self._info, REG["InfoRequest"]),
                "NotifyRegistrationStatus": (self._registered, REG["RegistrationStatus"])},
            **self.services()})

    @property
    def is_registered(self) -> bool:
        """Whether kubelet knows the plugin and its devices."""
        return self._is_registered.is_set()

    @property
    def has_socket(self) -> bool:
        """Whether kubelet finds the plugin at its path. Another plugin that was started there may
        have been killed, and has left its socket."""
        return self.path.is_socket() and (self.is_registered or _accepts(self.path))

    def why_unreached(self) -> str:
        """Why kubelet hands out no shares; "": it knows the plugin."""
        return "" if self.is_registered else self._why_away() or (
            f"kubelet has not registered {self.name}"
            + (self._rejection and f": {self._rejection}"))

    def _why_away(self) -> str:
        path = of_device_manager(self.kubelet, KUBELET_SOCKET)
        return "" if _accepts(path) else f"kubelet takes no connections at {path}"

    async def await_registration(self) -> None:
        """Waits until a running kubelet has registered us: until then it fails pods with shares."""
        if self._why_away():
            return
        try:
            async with asyncio.timeout(REGISTRATION_PATIENCE):
                await self._is_registered.wait()
        except TimeoutError:
            folder = await asyncio.to_thread(root_directory)
            advice = "" if folder in (None, self.kubelet) else (
                f"; its --root-dir is {folder}: --kubelet names it")
            logger.warning(
                "kubelet has not registered %s within %d seconds%s", self.name,
                REGISTRATION_PATIENCE, advice)

    async def stop(self) -> None:
        """Removes the socket, which unregisters the plugin."""
        if self._server is not None:
            self.path.unlink(missing_ok=True)
            self._stops += 1
            self._offer.notify()
            await self._server.stop(GRACE)
            self._server = None

    async def _changes(self, refresh: float | None = None) -> AsyncIterator[None]:
        """As Offer.changes(), until stop(): gRPC writes a traceback for a stream that it ends."""
        stops = self._stops
        async for _ in self._offer.changes(refresh):
            if stops != self._stops:
                return
            yield

    async def _info(self, _request: Any, _context: Any) -> Any:
        return REG["PluginInfo"](
            type=self.kind, name=self.name, endpoint=str(self.path),
            supported_versions=[self.version])

    async def _registered(self, status: Any, _context: Any) -> Any:
        self._rejection = "" if status.plugin_registered else str(status.error)
        if status.plugin_registered:
            logger.info("kubelet has registered %s", self.name)
            self._registered_by_kubelet()
        else:
            logger.error("kubelet rejects %s: %s", self.name, status.error)
        return REG["RegistrationStatusResponse"]()

    def _registered_by_kubelet(self) -> None:
        self._is_registered.set()


def _accepts(path: Path) -> bool:
    """Whether a process listens at the socket, and takes connections."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)        # a process that hangs leaves its queue full
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


class DevicePlugin(Plugin):
    kind, name, version = "DevicePlugin", RESOURCE, "v1beta1"
    _streams = 0                        # streams by which kubelet has our devices

    def services(self) -> Mapping[str, rpc.Methods]:
        return {"v1beta1.DevicePlugin": {
            "GetDevicePluginOptions": (self.options, DP["Empty"]),
            "ListAndWatch": (self.list_and_watch, DP["Empty"]),
            "GetPreferredAllocation": (self.preferred, DP["PreferredAllocationRequest"]),
            "Allocate": (self.allocate, DP["AllocateRequest"])}}

    async def options(self, _request: Any, _context: Any) -> Any:
        return DP["DevicePluginOptions"](get_preferred_allocation_available=True)

    async def list_and_watch(self, _request: Any, _context: Any) -> AsyncIterator[Any]:
        self._streams += 1
        try:
            async for _ in self._changes():
                yield DP["ListAndWatchResponse"](devices=[
                    DP["Device"](
                        ID=share, health="Healthy" if healthy else "Unhealthy",
                        topology=self._offer.topology(share))
                    for share, healthy in self._offer.shares().items()])
                self._is_registered.set()       # the list is sent
        finally:
            self._streams -= 1
            if not self._streams:
                self._is_registered.clear()

    def _registered_by_kubelet(self) -> None:
        """Kubelet fails pods until it has read the list of devices, for which it asks next."""

    async def preferred(self, request: Any, _context: Any) -> Any:
        return DP["PreferredAllocationResponse"](container_responses=[
            DP["ContainerPreferredAllocationResponse"](deviceIDs=preferred(
                one.available_deviceIDs, one.must_include_deviceIDs, one.allocation_size))
            for one in request.container_requests])

    async def allocate(self, request: Any, context: Any) -> Any:
        """Allocates shares to containers; refuses the call if nvshared does not reply."""
        await self._refresh()
        by_cdi = not await self._runtime.cdi_problem()
        try:
            if by_cdi:
                self._containers.write_cdi_file(card.uuid for card in self._offer.offered())
            answers = [
                self._answer(one.devices_ids, by_cdi=by_cdi) for one in request.container_requests]
        except NvshareError as error:
            logger.error("a pod gets no GPU: %s", error)
            await rpc.abort(context, f"nvshare: {error}")
        for one in request.container_requests:
            logger.info("a container gets %s", ", ".join(one.devices_ids))
        return DP["AllocateResponse"](container_responses=answers)

    def _answer(self, shares: Sequence[str], *, by_cdi: bool) -> Any:
        # A refused call fails the pod, and its Deployment creates the next at once. So if no retry
        # can succeed, the response names a missing device: kubelet then retries with backoff.
        try:
            cards = self._offer.check(shares)
        except SameCardTwice as error:
            logger.error("a container cannot be created: %s", error)
            missing = f"/dev/nvshare: {error}"
            return DP["ContainerAllocateResponse"](devices=[
                DP["DeviceSpec"](container_path=missing, host_path=missing, permissions="r")])
        return DP["ContainerAllocateResponse"](**self._containers.response(cards, by_cdi=by_cdi))


class DRADriver(Plugin):
    kind, name, version = "DRAPlugin", DRIVER, "v1.DRAPlugin"

    def __init__(self, *common: Any, pods: Pods, node: str) -> None:
        """`common`: as for Plugin; `node`: the node's name, which also names the pool of GPUs."""
        super().__init__(*common)
        self._pods = pods
        self._node = node
        self._lock = asyncio.Lock()
        # Threads of their own: an API server that hangs keeps one for each claim, and those of the
        # event loop, which are few, notice meanwhile that nvshared has ended.
        self._askers = ThreadPoolExecutor(MOST_QUESTIONS, "claim")

    def services(self) -> Mapping[str, rpc.Methods]:
        return {
            "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin": {
                "NodePrepareResources": (self.prepare, DRA["NodePrepareResourcesRequest"]),
                "NodeUnprepareResources": (self.unprepare, DRA["NodeUnprepareResourcesRequest"])},
            **{
                f"{version}.DRAResourceHealth": {
                    "NodeWatchResources": (self.health, DRA["NodeWatchResourcesRequest"])}
                for version in HEALTH_VERSIONS}}

    def why_unreached(self) -> str:
        # Unlike a device plugin, a DRA driver has no connection that ends with kubelet.
        return super().why_unreached() or self._why_away()

    async def prepare(self, request: Any, _context: Any) -> Any:
        """Prepares claims; the response has CDI devices, or the reason of a failure, for each."""
        answer = DRA["NodePrepareResourcesResponse"]()
        # All at once, and not under the lock: an answer that is late delays no other claim.
        loop = asyncio.get_running_loop()
        claims = await asyncio.gather(*(
            loop.run_in_executor(self._askers, self._pods.ask, one.namespace, one.name)
            for one in request.claims), return_exceptions=True)
        async with self._lock:
            await self._refresh()
            for requested, claim in zip(request.claims, claims, strict=True):
                one = answer.claims[requested.uid]
                try:
                    for made in await self._prepare(requested, claim):
                        one.devices.add(**made)
                except FAILURES as error:
                    logger.error("claim %s/%s is not prepared: %s",
                                 requested.namespace, requested.name, error)
                    one.error = clipped(f"nvshare: {error}", MOST_IN_EVENT)
        return answer

    async def _prepare(
        self, requested: Any, claim: Claim | BaseException
    ) -> list[dict[str, Any]]:
        """Prepares one claim, or raises its error. Returns its devices. Raises as Pods.ask()."""
        if why := await self._runtime.cdi_problem():
            raise NvshareError(why)
        if isinstance(claim, BaseException):
            raise claim
        if claim.uid != requested.uid:
            raise InvalidArgs("there is another claim of that name now")
        if not claim.pods:
            raise InvalidArgs("the claim is reserved for no pod")
        known = {card.device: card for card in self._offer.offered()}
        for share in claim.shares:
            self._offer.require(known.get(share.device), f"device {share.device}")
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
                "cdi_device_ids": self._containers.devices([known[share.device].uuid])}
            for share in claim.shares]

    async def unprepare(self, request: Any, _context: Any) -> Any:
        """Unprepares claims. Kubelet calls this once all pods of the claims have ended."""
        answer = DRA["NodeUnprepareResourcesResponse"]()
        async with self._lock:
            for requested in request.claims:
                one = answer.claims[requested.uid]
                try:
                    await asyncio.to_thread(self._pods.renew, requested.uid, None)
                except NvshareError as error:
                    one.error = f"nvshare: {error}"
        return answer

    async def health(self, _request: Any, _context: Any) -> AsyncIterator[Any]:
        """Streams the health of all devices: at once, on changes, and every REFRESH seconds."""
        async for _ in self._changes(REFRESH):
            yield DRA["NodeWatchResourcesResponse"](devices=[
                DRA["DeviceHealth"](
                    device=DRA["DeviceIdentifier"](pool_name=self._node, device_name=card.device),
                    health=UNHEALTHY if problem else HEALTHY, message=problem,
                    last_updated_time=int(time.time()))
                for card in self._offer.offered() for problem in [self._offer.problem(card)]])
