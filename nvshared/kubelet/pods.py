# SPDX-License-Identifier: Apache-2.0
"""Watches this node's pods at the API server; writes their events, and a condition of their
status."""

import logging
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nvshared.errors import NvshareError
from nvshared.kubelet.annotations import PATIENCE, Terms
from nvshared.kubelet.api import TROUBLES, listen, server
from nvshared.kubelet.claims import Claim, Prepared, read
from nvshared.kubelet.meanings import Classes
from nvshared.kubelet.pod import CONDITION, Pod, clipped, pod
from nvshared.kubelet.static import ADVICE, REASON, StaticPods

logger = logging.getLogger(__name__)

REFUSED = "AnnotationRefused"
UNAVAILABLE = "GPUsNotShared"
MOST_IN_EVENT = 1024                    # bytes of an event's message that the API server accepts
NAMESPACE = "/api/v1/namespaces/"
CLAIM = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims/{}"


class Pods:
    """Two threads: one watches pods, the other (of Terms) sends terms to nvshared."""

    def __init__(
        self, bus: str, kubeconfig: Path, node: str, prepared: Prepared,
        static_pods: StaticPods, classes: Classes, smallest: Callable[[], int] | None,
    ) -> None:
        """`classes`, `smallest`: what PriorityClasses and foreign annotations mean: meanings.py."""
        self._kubeconfig = kubeconfig
        self._node = node
        self._prepared = prepared
        self._static = static_pods
        self._terms = Terms(
            bus, self._complain, self._mark, prepared.terms(), classes, smallest)
        self._has_listed = False
        threading.Thread(target=listen, name="pods", daemon=True, args=(
            "annotations of pods", kubeconfig, "/api/v1/pods", node, pod, self._hear)).start()

    def nvshared_is_back(self) -> None:
        """Sends all names and terms again: nvshared may have lost them in a restart."""
        self._terms.hear("AGAIN")

    def ask(self, namespace: str, name: str) -> Any:
        """Fetches a claim from the API server. Raises NvshareError."""
        try:
            return server(self._kubeconfig).send("GET", CLAIM.format(namespace, name))
        except TROUBLES as error:
            raise NvshareError(f"claim {namespace}/{name} is not known: {error}") from error

    def claim(self, said: Any) -> None:
        """Sets a claim's terms for its pods. Raises NvshareError if nvshared refuses them."""
        claimed = self._prepared.terms(read(said), strictly=True)
        try:
            self._terms.claim(claimed).result(3 * PATIENCE)
            self._prepared.keep(said)
        except (NvshareError, TimeoutError) as error:
            before = self._prepared.terms()
            self._terms.claim({pod: before.get(pod, {}) for pod in claimed})
            raise NvshareError(str(error) or "nvshared does not take its terms in time") from error

    def unclaim(self, uid: str) -> None:
        """Resets the terms of a claim. Raises NvshareError."""
        self._terms.claim(self._prepared.terms(without=uid))
        self._prepared.forget(uid)

    def devices(self, claim: Claim) -> set[str]:
        """The devices that the pods of a claim have by any claim."""
        return self._prepared.devices(claim)

    def _hear(self, news: str, what: Any) -> None:
        self._terms.hear(news, what)
        for one, why in self._static.hear(news, what):
            self._complain(one, f"{why}; {ADVICE}", REASON)
        there = {one.uid for one in what} if news == "LISTED" else {what.uid}
        if not self._has_listed:        # not later: a list may be older than a new claim
            self._prepared.forget_but(there)
            self._has_listed = True
        if news in ("LISTED", "ADDED"):
            self._look_again(there)
        elif news == "DELETED":
            for said in self._prepared.without(what.uid):
                self._renew(said)

    def _look_again(self, pods: set[str]) -> None:
        """Fetches shareable claims again when pods start: kubelet does not report new users."""
        for claim in self._prepared.claims():
            if claim.is_shareable and pods - set(claim.uids):
                said = self.ask(claim.namespace, claim.name)
                now = read(said)
                if now.uid == claim.uid and now.uids != claim.uids:
                    self._renew(said)

    def _renew(self, said: Any) -> None:
        """Updates the terms of a claim whose pods have changed."""
        self._terms.claim(self._prepared.terms(read(said)))
        self._prepared.keep(said)

    def tell_of_node(self, why: str) -> None:
        """Writes why GPUs are not offered as an event of the node. Blocks for the response."""
        self._write_event(UNAVAILABLE, why, "default", {
            "kind": "Node", "name": self._node, "uid": self._node})     # uid as in kubelet's events

    def _complain(self, pod: Pod, why: str, reason: str = REFUSED) -> None:
        """Writes an event of the pod, which `kubectl describe` shows, and a line of the journal."""
        logger.warning("%s: %s", pod, clipped(why, MOST_IN_EVENT))
        self._write_event(reason, why, pod.namespace, {
            "kind": "Pod", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid})

    def _write_event(
        self, reason: str, why: str, namespace: str, involved: dict[str, str]
    ) -> None:
        self._write("the event", "POST", f"{NAMESPACE}{namespace}/events", {
            "metadata": {"generateName": f"{involved['name']}.", "namespace": namespace},
            "involvedObject": {"apiVersion": "v1", **involved},
            "type": "Warning", "reason": reason, "message": clipped(why, MOST_IN_EVENT),
            "source": {"component": "nvshare-kubelet", "host": self._node},
            "firstTimestamp": _now(), "lastTimestamp": _now(), "count": 1,
        })

    def _mark(self, pod: Pod, wrong: str) -> bool:
        """Writes the condition: whether and why annotations are refused. False: not written."""
        path = f"{NAMESPACE}{pod.namespace}/pods/{pod.name}/status"
        return self._write(f"the status of {pod}", "PATCH", path, {
            "metadata": {"uid": pod.uid},       # not for a new pod of the same name
            "status": {"conditions": [{
                "type": CONDITION, "status": "True" if wrong else "False",
                "reason": REFUSED if wrong else "NothingRefused", "message": wrong,
                "lastTransitionTime": _now(),
            }]},
        })

    def _write(self, what: str, method: str, path: str, body: Any) -> bool:
        try:
            server(self._kubeconfig).ask(method, path, body).close()
        except TROUBLES as error:
            logger.warning("%s is not written: %s", what, error)
            return False
        return True


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
