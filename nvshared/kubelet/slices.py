# SPDX-License-Identifier: Apache-2.0
"""The ResourceSlice of this node: our cards, for the scheduler of Kubernetes to allocate.

Each card is one device that any number of claims share, each consuming a part:

    memory      bytes; a claim has at most the card's, and all together as often the card's as there
                are clients: what does not fit waits in host memory
    compute     percent of the card's time, 100 in all
    clients     claims; one each

What a claim does not ask for it does not consume, and is not limited in. A device is tainted while
its card cannot be shared. Kubelet removes all slices when it starts, and ours when we are away for
long: a watch sees that. It also shows which cards another driver offers.
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
    """Of NVIDIA's driver; "" if there is none."""
    with suppress(OSError):
        if found := re.search(r"\d+\.\d+(\.\d+)?", LOADED.read_text()):
            return found[0]
    return ""


def described(card: Card, clients: int, *, is_tainted: bool) -> dict[str, Any]:
    """As a device."""
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
    """Texts that devices of other drivers have as attributes, each with the driver.

    Drivers call the attribute that identifies a GPU as they like; offer.Offer knows a GPU's UUID
    and PCI address among the texts.
    """
    return {
        text: one["spec"]["driver"]
        for one in slices.values() if one["spec"]["driver"] != DRIVER
        for offered in one["spec"].get("devices") or ()
        for attribute in (offered.get("attributes") or {}).values()
        for text in (attribute.get("string"), *(attribute.get("strings") or ())) if text
    }


class Slices:
    """Two threads: one listens, one writes."""

    def __init__(
        self, kubeconfig: Path, node: str, tell: Callable[[dict[str, str]], None]
    ) -> None:
        """`tell` hears what other drivers offer, in a thread."""
        self._kubeconfig = kubeconfig
        self._node = node
        self._tell = tell
        self._name = f"{node}-{DRIVER}"
        self._news = threading.Condition()
        self._wanted: list[dict[str, Any]] | None = None    # devices; None: nobody knows yet
        self._written: list[dict[str, Any]] | None = None
        self._known: dict[str, Any] | None = None           # all of this node; None: not listed yet
        threading.Thread(target=listen, name="slices", daemon=True, args=(
            "ResourceSlices", kubeconfig, SLICES, node, dict, self._learn)).start()
        threading.Thread(target=self._write, name="slice", daemon=True).start()

    def publish(self, offer: Offer) -> None:
        """From now on this is offered; nothing new while nobody knows which cards there are."""
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
        """Makes the slice, or puts it in place of what is there. Raises as ask() does."""
        api = server(self._kubeconfig)
        if there is None:
            node = api.send("GET", f"{NODES}/{self._node}")["metadata"]
            meta = {"name": self._name, "ownerReferences": [{   # it goes with the node
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
