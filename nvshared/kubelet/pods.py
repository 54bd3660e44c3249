# SPDX-License-Identifier: Apache-2.0
"""Listens to what the API server says of this node's pods, and writes their events."""

import http.client
import logging
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

from nvshared.errors import NvshareError
from nvshared.kubelet.annotations import Terms
from nvshared.kubelet.api import server
from nvshared.kubelet.pod import Pod

logger = logging.getLogger(__name__)

PERIOD = 2.0                            # seconds until an API server that is away is asked again
# An answer may also be something else than one of an API server.
TROUBLES = (
    NvshareError, OSError, http.client.HTTPException, ValueError, KeyError, TypeError,
    AttributeError,
)


class Pods:
    """Two threads: one listens, and that of Terms tells nvshared."""

    def __init__(self, bus: str, kubeconfig: Path, node: str) -> None:
        self._kubeconfig = kubeconfig
        self._node = node
        self._terms = Terms(bus, self._complain)
        threading.Thread(target=self._listen, name="pods", daemon=True).start()

    def nvshared_is_back(self) -> None:
        """It may know nothing of what it was told."""
        self._terms.hear("AGAIN")

    def _listen(self) -> None:
        trouble = ""
        while True:
            try:
                for news, what in server(self._kubeconfig).pods(self._node):
                    if news == "LISTED":
                        logger.info("annotations of the pods of %s are heeded", self._node)
                        trouble = ""
                    self._terms.hear(news, what)
            except TROUBLES as error:
                if trouble != (trouble := str(error)):
                    logger.warning("annotations of pods are not heeded: %s", error)
                time.sleep(PERIOD)

    def _complain(self, pod: Pod, why: str) -> None:
        """An event, which `kubectl describe` shows."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        try:
            server(self._kubeconfig).ask("POST", f"/api/v1/namespaces/{pod.namespace}/events", {
                "metadata": {"generateName": f"{pod.name}.", "namespace": pod.namespace},
                "involvedObject": {
                    "apiVersion": "v1", "kind": "Pod", "namespace": pod.namespace,
                    "name": pod.name, "uid": pod.uid,
                },
                "type": "Warning", "reason": "AnnotationRefused", "message": why,
                "source": {"component": "nvshare-kubelet", "host": self._node},
                "firstTimestamp": now, "lastTimestamp": now, "count": 1,
            }).close()
        except TROUBLES as error:
            logger.warning("the event is not written: %s", error)
