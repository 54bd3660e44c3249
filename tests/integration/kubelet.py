# SPDX-License-Identifier: Apache-2.0
"""Kubelet's side of the plugin interfaces: real gRPC over real sockets.

As Kubernetes' plugin watcher, device manager and DRA manager it finds sockets in plugins_registry,
registers plugins, watches a plugin's list of devices, and takes all its devices as unhealthy when
the connection ends. A socket that is removed and created again is a new plugin.
"""

import json
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc

from nvshared.kubelet.rpc import DP, DRA, REG
from tests.integration.fakehook import PATIENCE

DRIVER = "k8s.io.kubelet.pkg.apis.dra.v1"
WORDS = {1: "Healthy", 2: "Unhealthy"}
LOOK = 0.02                             # seconds between two searches of the folder


class Plugin:
    """A connection to a registered plugin."""

    def __init__(self, path: Path, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._channel = grpc.insecure_channel(f"unix:{path}")
        self.devices: dict[str, str] = {}
        info = self._call("pluginregistration.Registration/GetInfo", REG["InfoRequest"](),
                          REG["PluginInfo"])
        assert info.endpoint == str(path)
        self.name = info.name
        self.is_driver = info.type == "DRAPlugin"
        assert (info.type, info.name, *info.supported_versions) in (
            ("DevicePlugin", "nvshare.com/gpu", "v1beta1"),
            ("DRAPlugin", "gpu.nvshare.com", "v1.DRAPlugin"))
        self._call("pluginregistration.Registration/NotifyRegistrationStatus",
                   REG["RegistrationStatus"](plugin_registered=True),
                   REG["RegistrationStatusResponse"])
        method, request, answer = (
            "v1beta1.DevicePlugin/ListAndWatch", DP["Empty"](), DP["ListAndWatchResponse"],
        )
        if self.is_driver:
            method, request, answer = (
                "v1alpha1.DRAResourceHealth/NodeWatchResources",
                DRA["NodeWatchResourcesRequest"](), DRA["NodeWatchResourcesResponse"],
            )
        self._stream = self._channel.unary_stream(
            f"/{method}", request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer.FromString)(request)
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def call(self, method: str, request: Any, answer: str) -> Any:
        return self._call(f"v1beta1.DevicePlugin/{method}", request, DP[answer])

    def claim(self, method: str, uid: str, name: str) -> Any:
        request = DRA[f"{method}Request"]()
        request.claims.add(namespace="lab", uid=uid, name=name)
        answer = self._call(f"{DRIVER}.DRAPlugin/{method}", request, DRA[f"{method}Response"])
        assert list(answer.claims) == [uid]
        return answer.claims[uid]

    def close(self) -> None:
        self._stream.cancel()
        self._channel.close()
        self._thread.join(10)           # seconds: gRPC has once lost the end of a cancelled stream

    def _call(self, method: str, request: Any, answer: Any) -> Any:
        return self._channel.unary_unary(
            f"/{method}", request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer.FromString)(request, timeout=PATIENCE)

    def _listen(self) -> None:
        with suppress(grpc.RpcError):
            for answer in self._stream:
                self.devices = {
                    one.device.device_name: WORDS[one.health] for one in answer.devices
                } if self.is_driver else {one.ID: one.health for one in answer.devices}
                self._changed()
        self.devices = dict.fromkeys(self.devices, "Unhealthy")
        self._changed()


class Kubelet:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._registry = folder / "plugins_registry"
        self._registry.mkdir(parents=True, exist_ok=True)
        (folder / "device-plugins").mkdir(exist_ok=True)
        self._news = threading.Condition()
        self._plugins: dict[Path, tuple[tuple[int, int], Plugin]] = {}
        self.registrations = 0
        self.start()

    def start(self) -> None:
        # kubelet's own socket, to which device plugins of the older interface connect
        own = self.folder / "device-plugins" / "kubelet.sock"
        own.unlink(missing_ok=True)
        self._own = socket.socket(socket.AF_UNIX)
        self._own.bind(str(own))
        self._own.listen()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()
        self._own.close()
        for _, plugin in self._plugins.values():
            plugin.close()
        self._plugins.clear()

    def devices(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for _, plugin in tuple(self._plugins.values()):
            found |= plugin.devices
        return found

    def allocatable(self) -> int:
        """The number of healthy devices."""
        return list(self.devices().values()).count("Healthy")

    def wait(self, condition: Callable[[], bool]) -> None:
        with self._news:
            assert self._news.wait_for(condition, PATIENCE), self.devices()

    def prefers(self, available: Sequence[str], size: int) -> list[str]:
        request = DP["PreferredAllocationRequest"]()
        request.container_requests.add(available_deviceIDs=available, allocation_size=size)
        answer = self._plugin().call(
            "GetPreferredAllocation", request, "PreferredAllocationResponse")
        return list(answer.container_responses[0].deviceIDs)

    def allocate(self, *containers: Sequence[str]) -> list[Any]:
        request = DP["AllocateRequest"]()
        for devices in containers:
            request.container_requests.add(devices_ids=devices)
        answer = self._plugin().call("Allocate", request, "AllocateResponse")
        return list(answer.container_responses)

    def prepare(self, name: str, uid: str) -> Any:
        return self._plugin().claim("NodePrepareResources", uid, name)

    def unprepare(self, name: str, uid: str) -> str:
        """Unprepares a claim. Returns the driver's error or "". Raises grpc.RpcError."""
        error: str = self._plugin().claim("NodeUnprepareResources", uid, name).error
        return error

    def give_away(self, resource: str, *devices: str, ours: Sequence[str] = ()) -> None:
        """Writes devices of a device plugin to the checkpoint. `ours`: devices of our plugin."""
        registered = {resource: devices} | ({"nvshare.com/gpu": tuple(ours)} if ours else {})
        (self.folder / "device-plugins" / "kubelet_internal_checkpoint").write_text(json.dumps({
            "Data": {"PodDeviceEntries": None, "RegisteredDevices": registered}, "Checksum": 1,
        }))

    def _plugin(self) -> Plugin:
        ((_, plugin),) = self._plugins.values()
        return plugin

    def _run(self) -> None:
        while not self._ended.wait(LOOK):
            there = self._sockets()
            for path, (made, plugin) in tuple(self._plugins.items()):
                if there.get(path) != made:
                    del self._plugins[path]
                    plugin.close()
                    self._changed()
            for path, made in there.items():
                if path not in self._plugins:
                    # the socket appeared before its server listens: retried
                    with suppress(grpc.RpcError):
                        self._plugins[path] = made, Plugin(path, self._changed)
                        self.registrations += 1
                        self._changed()

    def _sockets(self) -> dict[Path, tuple[int, int]]:
        """Inode and change time of each registered socket: an inode number may be reused."""
        found = {}
        for path in self._registry.glob("[!.]*"):
            with suppress(FileNotFoundError):           # the socket was removed meanwhile
                found[path] = path.stat().st_ino, path.stat().st_ctime_ns
        return found

    def _changed(self) -> None:
        with self._news:
            self._news.notify_all()
