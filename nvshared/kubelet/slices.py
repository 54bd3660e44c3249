# SPDX-License-Identifier: Apache-2.0
"""Publishes this node's GPUs: of the node labels and a condition, and with DRA a ResourceSlice.

docs/kubernetes.md has the capacities. Kubelet removes slices, for instance when it starts; a watch
notices that, and which GPUs other drivers offer."""

import logging
import re
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from nvshared.errors import NvshareError
from nvshared.kubelet.api import FAILURES, NODES, RetryPause, server, watch
from nvshared.kubelet.card import NodeGPU, Offer
from nvshared.kubelet.claims import DRIVER, quantity
from nvshared.kubelet.node import NodeObject
from nvshared.names import DRIVER_VERSION

logger = logging.getLogger(__name__)

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
UNAVAILABLE_TAINT = {"key": f"{DRIVER}/unavailable", "effect": "NoSchedule"}


def driver_version() -> str:
    """The version of NVIDIA's driver; "" if it is not loaded."""
    with suppress(OSError):
        if found := re.search(r"\d+\.\d+(\.\d+)?", Path(DRIVER_VERSION).read_text()):
            return found[0]
    return ""


def device_entry(card: NodeGPU, clients: int, *, is_tainted: bool) -> dict[str, Any]:
    """The GPU as a device of the ResourceSlice."""
    texts = {
        "uuid": card.uuid, "productName": card.product, "driverVersion": driver_version(),
        "resource.kubernetes.io/pciBusID": card.pci_bus_id[-12:].lower()}

    def range_to(most: int) -> dict[str, Any]:
        return {"default": "0", "validRange": {"min": "0", "max": str(most), "step": "1"}}

    return {
        "name": card.device, "allowMultipleAllocations": True,
        "attributes": {
            **{name: {"string": text[:64]} for name, text in texts.items() if text},
            "memory": {"int": card.memory},
            **({"numaNode": {"int": card.numa}} if card.numa >= 0 else {})},
        "capacity": {
            "memory": {"value": str(clients * card.memory), "requestPolicy": range_to(card.memory)},
            "compute": {"value": "100", "requestPolicy": range_to(100)},
            "clients": {
                "value": str(clients), "requestPolicy": {"default": "1", "validValues": ["1"]}}},
        **({"taints": [UNAVAILABLE_TAINT]} if is_tainted else {})}


def devices_of_other_drivers(slices: Mapping[str, Any]) -> dict[str, str]:
    """The drivers by each string attribute of their devices: one of these identifies the GPU."""
    return {
        text: one["spec"]["driver"]
        for one in slices.values() if one["spec"]["driver"] != DRIVER
        for offered in one["spec"].get("devices") or ()
        for attribute in (offered.get("attributes") or {}).values()
        for text in (attribute.get("string"), *(attribute.get("strings") or ())) if text}


def covers(there: Any, wanted: Any) -> bool:
    """Whether an object of the API server has what is wanted. It adds defaults, leaves out empty
    lists, and writes quantities in another form."""
    if isinstance(wanted, Mapping):
        return isinstance(there, Mapping) and all(
            covers(there.get(key, [] if value == [] else None), value)
            for key, value in wanted.items())
    if isinstance(wanted, list):
        return isinstance(there, list) and len(there) == len(wanted) and all(
            map(covers, there, wanted))
    if there != wanted and isinstance(wanted, str) and isinstance(there, str):
        with suppress(ValueError):
            return quantity(there) == quantity(wanted)
    return bool(there == wanted)


def valid(one: Any) -> Any:
    """The slice. Raises KeyError, TypeError, AttributeError if it is malformed."""
    devices_of_other_drivers({one["metadata"]["name"]: one})
    return one


def _is_of(one: Any, devices: list[dict[str, Any]]) -> bool:
    """Whether a slice, or None, has these devices."""
    return one is not None and covers(
        one["spec"].get("devices") or [], [{"taints": []} | device for device in devices])


class Published:
    """Writes what is wanted of the node, and with DRA the slice: again if that was changed."""

    def __init__(
        self, kubeconfig: Path, node: str, on_other_drivers: Callable[[dict[str, str]], None] | None
    ) -> None:
        """`on_other_drivers`: called in a thread with devices; None: no slice is published."""
        self._kubeconfig = kubeconfig
        self._node = node
        self._name = f"{node}-{DRIVER}"
        self._known: dict[str, Any] = {}        # this node's ResourceSlices by name
        self._devices: list[dict[str, Any]] | None = None       # wanted; None: not known yet
        self._written: list[dict[str, Any]] | None = None       # what the API server has of these
        self._hurry = threading.Event()
        self.problem = ""                       # why the slice is not written; "": not known
        self.node = NodeObject(kubeconfig, node)
        self._on_other_drivers = on_other_drivers
        if on_other_drivers is not None:
            threading.Thread(target=self._keep_slice, name="slice", daemon=True).start()
            threading.Thread(target=watch, name="slices", daemon=True, args=(
                "ResourceSlices", kubeconfig, SLICES, node, True, valid, self._update)).start()

    @property
    def has_slice(self) -> bool:
        """Whether the API server has the slice that is wanted."""
        return self._devices is not None and self._written == self._devices

    def publish(self, offer: Offer) -> None:
        """Sets the offer to publish."""
        self.node.publish(offer)
        offered = offer.offered()
        if self._on_other_drivers is not None and (offered or not offer.common_problem):
            self._devices = [
                device_entry(card, clients, is_tainted=bool(offer.problem(card)))
                for card, clients in offered.items()]
            if not self.has_slice:
                self._hurry.set()

    def _update(self, event: str, payload: Any) -> None:
        if event == "LISTED":
            self._known = {one["metadata"]["name"]: one for one in payload}
        elif event == "DELETED":
            self._known.pop(payload["metadata"]["name"], None)
        else:
            self._known[payload["metadata"]["name"]] = payload
        if not _is_of(self._known.get(self._name), self._devices or []):
            self._written = None        # or the event is older than what was written
            self._hurry.set()
        if self._on_other_drivers is not None:
            self._on_other_drivers(devices_of_other_drivers(self._known))

    def _keep_slice(self) -> None:
        pause, last = RetryPause(), None
        while True:
            self._hurry.wait()
            self._hurry.clear()
            if (devices := self._devices) is None:
                continue
            if devices == last:             # not in step with another writer of the slice
                time.sleep(pause.seconds())
            try:
                self._write_slice(devices)
                self._written, last, self.problem = devices, devices, ""
            except FAILURES as error:
                before, self.problem = self.problem, str(error) or repr(error)
                if before != self.problem:
                    logger.warning("the ResourceSlice cannot be written: %s", error)
                time.sleep(pause.seconds(error))
                self._hurry.set()

    def _write_slice(self, devices: list[dict[str, Any]]) -> None:
        """Has the API server have our slice with these devices. Raises as APIServer.ask() does."""
        api = server(self._kubeconfig)
        listed, _ = api.objects(SLICES, self._node, dict)
        there = next((one for one in listed if one["metadata"]["name"] == self._name), None)
        if _is_of(there, devices):
            return
        if there is not None:
            wanted = ("name", "resourceVersion", "ownerReferences")
            meta = {key: one for key, one in there["metadata"].items() if key in wanted}
        else:
            node = api.send("GET", f"{NODES}/{self._node}")["metadata"]
            meta = {"name": self._name, "ownerReferences": [{   # deleted with the node
                "apiVersion": "v1", "kind": "Node", "name": node["name"], "uid": node["uid"]}]}
        body = {
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": meta,
            "spec": {
                "driver": DRIVER, "nodeName": self._node,
                "pool": {"name": self._node, "generation": 1, "resourceSliceCount": 1},
                "devices": devices}}
        method, path = ("POST", SLICES) if there is None else ("PUT", f"{SLICES}/{self._name}")
        written = (api.send(method, path, body).get("spec") or {}).get("devices") or ()
        # Fields of features that are switched off are dropped silently. Other fields bring less:
        # without taints, kubelet asks for devices that are then refused.
        if not all(one.get("allowMultipleAllocations") for one in written):
            raise NvshareError(
                "the API server drops allowMultipleAllocations, so that devices are not shared",
                "claims need Kubernetes 1.36, or 1.34 with the feature gate DRAConsumableCapacity")
        logger.info("the ResourceSlice: written")
