# SPDX-License-Identifier: Apache-2.0
"""Publishes this node's GPUs: of the node labels and a condition, and with DRA a ResourceSlice.

docs/kubernetes.md has the capacities. Kubelet removes slices, for instance when it starts; a watch
notices that, and which GPUs other drivers offer."""

import re
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from nvshared.kubelet.api import NODES, Writer, server, watch
from nvshared.kubelet.card import Card, Offer
from nvshared.kubelet.claims import DRIVER, quantity
from nvshared.kubelet.node import NodeObject

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
UNAVAILABLE_TAINT = {"key": f"{DRIVER}/unavailable", "effect": "NoSchedule"}
LOADED = Path("/proc/driver/nvidia/version")


def driver_version() -> str:
    """The version of NVIDIA's driver; "" if it is not loaded."""
    with suppress(OSError):
        if found := re.search(r"\d+\.\d+(\.\d+)?", LOADED.read_text()):
            return found[0]
    return ""


def device_entry(card: Card, clients: int, *, is_tainted: bool) -> dict[str, Any]:
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
        self._devices: list[dict[str, Any]] | None = None
        self.node = NodeObject(kubeconfig, node)
        self._slice: Writer | None = None
        if on_other_drivers is not None:
            self._on_other_drivers = on_other_drivers
            self._slice = Writer("the ResourceSlice", self._write_slice)
            threading.Thread(target=watch, name="slices", daemon=True, args=(
                "ResourceSlices", kubeconfig, SLICES, node, True, valid, self._update)).start()

    @property
    def has_slice(self) -> bool:
        """Whether the API server has the slice that is wanted."""
        return self._slice is not None and self._slice.is_written

    def publish(self, offer: Offer) -> None:
        """Sets the offer to publish."""
        self.node.publish(offer)
        offered = offer.offered()
        if self._slice is not None and (offered or not offer.common_problem):
            self._devices = [
                device_entry(card, clients, is_tainted=bool(offer.problem(card)))
                for card, clients in offered.items()]
            self._slice.set_wanted(self._devices)

    def _update(self, event: str, payload: Any) -> None:
        if event == "LISTED":
            self._known = {one["metadata"]["name"]: one for one in payload}
        elif event == "DELETED":
            self._known.pop(payload["metadata"]["name"], None)
        else:
            self._known[payload["metadata"]["name"]] = payload
        there = (self._known.get(self._name) or {}).get("spec") or {}
        if self._slice is not None and not self._slice.is_pending and not covers(
                there.get("devices") or [], [{"taints": []} | one for one in self._devices or ()]):
            self._slice.write_again()
        self._on_other_drivers(devices_of_other_drivers(self._known))

    def _write_slice(self, devices: list[dict[str, Any]]) -> None:
        """Creates our slice, or replaces the existing one. Raises as APIServer.ask() does."""
        api = server(self._kubeconfig)
        listed, _ = api.objects(SLICES, self._node, dict)
        there = [one["metadata"] for one in listed if one["metadata"]["name"] == self._name]
        if there:
            wanted = ("name", "resourceVersion", "ownerReferences")
            meta = {key: one for key, one in there[0].items() if key in wanted}
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
        method, path = ("PUT", f"{SLICES}/{self._name}") if there else ("POST", SLICES)
        api.send(method, path, body)
