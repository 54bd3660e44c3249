# SPDX-License-Identifier: Apache-2.0
"""Publishes this node's ResourceSlice: the GPUs that Kubernetes' scheduler may allocate.

Each GPU is one device that several claims share, each consuming a part:

    memory      bytes; one claim may have at most the GPU's memory, all claims together that times
                the number of clients: memory that does not fit is swapped to the host
    compute     percent of the GPU's time, 100 in all
    clients     number of claims; each consumes one

A capacity that a claim does not request is not consumed, and sets no limit. A device is tainted
while its GPU cannot be shared. Kubelet removes all slices when it starts, and ours when we do not
run for long: a watch notices that, and also which GPUs other drivers offer.
"""

import logging
import re
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from nvshared.kubelet.api import NODES, PERIOD, TROUBLES, listen, server
from nvshared.kubelet.card import Card
from nvshared.kubelet.claims import DRIVER, device
from nvshared.kubelet.offer import Offer

logger = logging.getLogger(__name__)

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
TAINT = {"key": f"{DRIVER}/unavailable", "effect": "NoSchedule"}
LOADED = Path("/proc/driver/nvidia/version")


def driver_version() -> str:
    """The version of NVIDIA's driver; "" if it is not loaded."""
    with suppress(OSError):
        if found := re.search(r"\d+\.\d+(\.\d+)?", LOADED.read_text()):
            return found[0]
    return ""


def described(card: Card, clients: int, *, is_tainted: bool) -> dict[str, Any]:
    """The GPU as a device of the ResourceSlice."""
    texts = {
        "uuid": card.uuid, "productName": card.product, "driverVersion": driver_version(),
        "resource.kubernetes.io/pciBusID": card.pci_bus_id[-12:].lower(),
    }

    def range_to(most: int) -> dict[str, Any]:
        return {"default": "0", "validRange": {"min": "0", "max": str(most), "step": "1"}}

    return {
        "name": device(card.uuid), "allowMultipleAllocations": True,
        "attributes": {
            **{name: {"string": text[:64]} for name, text in texts.items() if text},
            "memory": {"int": card.memory},
        },
        "capacity": {
            "memory": {
                "value": str(clients * card.memory), "requestPolicy": range_to(card.memory)},
            "compute": {"value": "100", "requestPolicy": range_to(100)},
            "clients": {
                "value": str(clients), "requestPolicy": {"default": "1", "validValues": ["1"]}},
        },
        **({"taints": [TAINT]} if is_tainted else {}),
    }


def elsewhere(slices: Mapping[str, Any]) -> dict[str, str]:
    """All string attributes of other drivers' devices, each with the name of the driver.

    The name of the attribute that identifies a GPU is up to the driver; offer.Offer finds UUIDs
    and PCI addresses among all values.
    """
    return {
        text: one["spec"]["driver"]
        for one in slices.values() if one["spec"]["driver"] != DRIVER
        for offered in one["spec"].get("devices") or ()
        for attribute in (offered.get("attributes") or {}).values()
        for text in (attribute.get("string"), *(attribute.get("strings") or ())) if text
    }


class Slices:
    """Two threads: one watches the slices, one writes ours."""

    def __init__(
        self, kubeconfig: Path, node: str, tell: Callable[[dict[str, str]], None]
    ) -> None:
        """`tell` gets the attributes of other drivers' devices; a thread calls it."""
        self._kubeconfig = kubeconfig
        self._node = node
        self._tell = tell
        self._name = f"{node}-{DRIVER}"
        self._news = threading.Condition()
        self._wanted: list[dict[str, Any]] | None = None    # devices; None: GPUs unknown
        self._written: list[dict[str, Any]] | None = None
        self._known: dict[str, Any] | None = None           # this node's slices; None: not listed
        threading.Thread(target=listen, name="slices", daemon=True, args=(
            "ResourceSlices", kubeconfig, SLICES, node, dict, self._learn)).start()
        threading.Thread(target=self._write, name="slice", daemon=True).start()

    def publish(self, offer: Offer) -> None:
        """Sets the devices to publish; no-op while the GPUs are unknown."""
        devices = [
            described(card, clients, is_tainted=bool(offer.trouble(card)))
            for card, clients in offer.offered().items()
        ]
        with self._news:
            if devices or not offer.trouble_of_all:
                self._wanted = devices
                self._news.notify_all()

    def _learn(self, news: str, what: Any) -> None:
        with self._news:
            if news == "LISTED" or self._known is None:
                self._known = {one["metadata"]["name"]: one for one in what}
            elif news == "DELETED":
                self._known.pop(what["metadata"]["name"], None)
            else:
                self._known[what["metadata"]["name"]] = what
            self._news.notify_all()
            found = elsewhere(self._known)
        self._tell(found)

    def _is_right(self) -> bool:
        if self._wanted is None or self._known is None:
            return True
        return self._name in self._known and self._written == self._wanted

    def _write(self) -> None:
        trouble = ""
        while True:
            with self._news:
                self._news.wait_for(lambda: not self._is_right())
                assert self._known is not None
                wanted, there = self._wanted, self._known.get(self._name)
            try:
                said = self._send(wanted, there)
            except TROUBLES as error:
                if trouble != (trouble := str(error)):
                    logger.warning("the ResourceSlice is not written: %s", error)
                time.sleep(PERIOD)
            else:
                trouble = ""
                logger.info("ResourceSlice %s is written", self._name)
                with self._news:
                    self._written = wanted
                    self._known[self._name] = said

    def _send(self, devices: Any, there: Any) -> Any:
        """Creates our slice, or replaces the existing one. Raises as ask() does."""
        api = server(self._kubeconfig)
        if there is None:
            node = api.send("GET", f"{NODES}/{self._node}")["metadata"]
            meta = {"name": self._name, "ownerReferences": [{   # deleted with the node
                "apiVersion": "v1", "kind": "Node", "name": node["name"], "uid": node["uid"],
            }]}
        else:
            wanted = ("name", "resourceVersion", "ownerReferences")
            meta = {key: one for key, one in there["metadata"].items() if key in wanted}
        body = {
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": meta,
            "spec": {
                "driver": DRIVER, "nodeName": self._node,
                "pool": {"name": self._node, "generation": 1, "resourceSliceCount": 1},
                "devices": devices,
            },
        }
        method, path = ("POST", SLICES) if there is None else ("PUT", f"{SLICES}/{self._name}")
        return api.send(method, path, body)
