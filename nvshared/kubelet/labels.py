# SPDX-License-Identifier: Apache-2.0
"""Labels of this node, named as NVIDIA's GPU feature discovery names its own, for node selectors.

    nvshare.com/gpu.shared: "true"      GPUs are shared on this node; "false": none
    nvshare.com/gpu.count: "2"          number of shared GPUs
    nvshare.com/gpu.replicas: "10"      pods that may share a GPU; the minimum
    nvshare.com/gpu.memory: "81559"     MiB of the smallest GPU
    nvshare.com/gpu.product: NVIDIA-H100-80GB-HBM3      only if all GPUs are the same model

The labels describe the node's GPUs, not whether shares are available now.
"""

import logging
import queue
import re
import threading
from contextlib import suppress
from pathlib import Path

from nvshared.kubelet.api import NODES, TROUBLES, server
from nvshared.kubelet.offer import Offer
from nvshared.kubelet.pod import RESOURCE
from nvshared.units import MIB

logger = logging.getLogger(__name__)

AGAIN = 30.0                            # seconds until a failed write is retried
LONGEST = 63                            # characters of a label's value

Values = dict[str, str | None]          # None: there is no such label


def labels(offer: Offer) -> Values:
    """The labels for an offer."""
    offered = offer.offered()
    products = {re.sub(r"[^\w.-]+", "-", card.product, flags=re.ASCII)[:LONGEST].strip("-_.")
                for card in offered}
    values = {
        "shared": "true" if offered else "false",
        "count": str(len(offered)) if offered else None,
        "replicas": str(min(offered.values())) if offered else None,
        "memory": str(offer.smallest() // MIB) if offered else None,
        "product": (products.pop() or None) if len(products) == 1 else None,
    }
    return {f"{RESOURCE}.{name}": value for name, value in values.items()}


class Labels:
    """Writes the labels, in a thread."""

    def __init__(self, kubeconfig: Path, node: str) -> None:
        self._kubeconfig = kubeconfig
        self._path = f"{NODES}/{node}"
        self._wanted: Values = {}
        self._news: queue.SimpleQueue[Values] = queue.SimpleQueue()
        threading.Thread(target=self._write, name="labels", daemon=True).start()

    def publish(self, offer: Offer) -> None:
        """Queues the labels for an offer; no-op while the GPUs are unknown."""
        if not offer.trouble_of_all and self._wanted != (wanted := labels(offer)):
            self._wanted = wanted
            self._news.put(wanted)

    def _write(self) -> None:
        trouble = ""
        wanted: Values | None = None
        while True:
            with suppress(queue.Empty):
                wanted = self._news.get(timeout=AGAIN if wanted else None)
            try:
                server(self._kubeconfig).ask(
                    "PATCH", self._path, {"metadata": {"labels": wanted}}).close()
                wanted, trouble = None, ""
            except TROUBLES as error:
                if trouble != (trouble := str(error)):
                    logger.warning("the labels of the node are not written: %s", error)
