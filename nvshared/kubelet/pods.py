# SPDX-License-Identifier: Apache-2.0
"""Watches this node's pods, and writes their events and a condition of their status."""

import json
import logging
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nvshared.errors import NvshareError
from nvshared.kubelet.annotations import PATIENCE, Classes, Terms
from nvshared.kubelet.api import FAILURES, server, watch
from nvshared.kubelet.card import checkpoint
from nvshared.kubelet.claims import CONDITION, RESOURCE, Claim, Pod, Prepared, clipped, pod, read
from nvshared.kubelet.container import replace
from nvshared.names import WITHOUT_GPU

logger = logging.getLogger(__name__)

REFUSED = "AnnotationRefused"
UNAVAILABLE = "GPUsNotShared"
WITHOUT_SHARE = "StartedWithoutGPU"
MOST_IN_EVENT = 1024                    # bytes of an event's message that the API server accepts
NAMESPACE = "/api/v1/namespaces/"
CLAIM = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims/{}"
ADVICE = "move the static pod's file out of kubelet's folder and back, or use a DaemonSet"


class StaticPods:
    """Finds static pods that run without the GPU share that they request, for nvshare's doctor.

    If kubelet starts a static pod before our resource is registered, the pod gets no share, and
    kubelet reports no error: static pods bypass Kubernetes' scheduler."""

    def __init__(self, state: Path, kubelet: Path) -> None:
        self._path = state / WITHOUT_GPU
        self._kubelet = kubelet
        self._without: dict[Pod, str] = {}      # why a pod has no share, for nvshare's doctor

    def handle(self, event: str, payload: Any) -> list[tuple[Pod, str]]:
        """Handles an event of api.watch(). Returns pods newly found without a share, and why."""
        pods: list[Pod] = payload if event == "LISTED" else [] if event == "DELETED" else [payload]
        gone = self._without.keys() - pods if event == "LISTED" else {payload}.difference(pods)
        for one in gone:
            self._without.pop(one, None)
        found = []
        for one in pods:
            if one.static and one not in self._without and (
                    names := self._containers_without_share(one)):
                self._without[one] = (
                    f"{', '.join(sorted(names))} started without {RESOURCE} and shares no GPU: "
                    "kubelet did not know of it yet")
                found.append((one, self._without[one]))
        try:
            reports = sorted([f"{one}: {why}", ADVICE] for one, why in self._without.items())
            replace(self._path, json.dumps(reports).encode())
        except OSError as error:
            logger.warning("%s is not written: %s", self._path, error.strerror)
        return found

    def _containers_without_share(self, one: Pod) -> frozenset[str]:
        started = one.requesting.intersection(one.containers.values())
        try:
            return started and started.difference(
                entry.container for entry in checkpoint(self._kubelet)
                if entry.resource == RESOURCE and entry.pod == one.static)
        except NvshareError:            # nvshare-kubelet then offers no shares, and reports why
            return frozenset()


class Pods:
    """Watches this node's pods in one thread; the thread of Terms sends their terms to nvshared."""

    def __init__(
        self, bus: str, kubeconfig: Path, node: str, prepared: Prepared,
        static_pods: StaticPods, classes: Classes, smallest: Callable[[], int] | None,
    ) -> None:
        """`classes`, `smallest`: as for annotations.Terms."""
        self.prepared = prepared
        self._kubeconfig = kubeconfig
        self._node = node
        self._static = static_pods
        self._terms = Terms(
            bus, self._write_pod_event, self._write_condition,
            prepared.terms(pod for one in prepared.claims() for pod in one.pods), classes, smallest)
        # UIDs of claims that an earlier process prepared; their pods may have been deleted since.
        self._before = {claim.uid for claim in prepared.claims()}
        threading.Thread(target=watch, name="pods", daemon=True, args=(
            "annotations of pods", kubeconfig, "/api/v1/pods", node, pod, self._handle)).start()

    def nvshared_is_back(self) -> None:
        """Sends all names and terms again: nvshared may have lost them in a restart."""
        self._terms.handle("RESTARTED")

    def ask(self, namespace: str, name: str) -> Claim:
        """Fetches a claim from the API server. Raises NvshareError; KeyError and such."""
        try:
            found = server(self._kubeconfig).send("GET", CLAIM.format(namespace, name))
        except FAILURES as error:
            raise NvshareError(f"claim {namespace}/{name} is not known: {error}") from error
        return read(found)

    def claim(self, claim: Claim) -> None:
        """Sets a claim's terms for its pods. Raises NvshareError if nvshared refuses them."""
        before = {one.uid: one for one in self.prepared.claims()}.get(claim.uid)
        pods = self.prepared.change(claim.uid, claim)
        try:
            terms = self.prepared.terms(pods, strictly=True)
            self._terms.claim(terms).result(3 * PATIENCE)
        except (NvshareError, TimeoutError) as error:
            self.renew(claim.uid, before)
            raise NvshareError(str(error) or "nvshared does not confirm the terms") from error

    def renew(self, uid: str, claim: Claim | None) -> None:
        """Updates a claim after its pods changed; None: it is unprepared. Raises NvshareError."""
        self._terms.claim(self.prepared.terms(self.prepared.change(uid, claim)))

    def _handle(self, event: str, payload: Any) -> None:
        self._terms.handle(event, payload)
        for one, why in self._static.handle(event, payload):
            self._write_pod_event(one, f"{why}; {ADVICE}", WITHOUT_SHARE)
        present = {one.uid for one in payload} if event == "LISTED" else {payload.uid}
        for claim in self.prepared.claims():
            pods = set(claim.uids)
            gone = pods & present if event == "DELETED" and claim.is_shareable else set()
            if claim.uid in self._before:
                gone = pods - present
                if gone == pods:
                    logger.info("claim %s is gone", claim)
                    self.renew(claim.uid, None)
                    continue
            if gone:
                claim = claim.without(gone)
                self.renew(claim.uid, claim)
            if claim.is_shareable and event in ("LISTED", "ADDED") and present - pods:
                # Kubelet does not report further pods of a claim, so the API server is asked.
                now = self.ask(claim.namespace, claim.name)
                if now.uid == claim.uid and now.uids != claim.uids:
                    self.renew(now.uid, now)
        self._before.clear()

    def write_node_event(self, why: str) -> None:
        """Writes why GPUs are not offered as an event of the node. Blocks for the response."""
        self._write_event(UNAVAILABLE, why, "default", {
            "kind": "Node", "name": self._node, "uid": self._node})  # uid of kubelet's own events

    def _write_pod_event(self, pod: Pod, why: str, reason: str = REFUSED) -> None:
        """Writes an event of the pod, which `kubectl describe` shows, and a line of the journal."""
        logger.warning("%s: %s", pod, clipped(why, MOST_IN_EVENT))
        self._write_event(reason, why, pod.namespace, {
            "kind": "Pod", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid})

    def _write_event(self, reason: str, why: str, namespace: str, involved: dict[str, str]) -> None:
        self._write("the event", "POST", f"{NAMESPACE}{namespace}/events", {
            "metadata": {"generateName": f"{involved['name']}.", "namespace": namespace},
            "involvedObject": {"apiVersion": "v1", **involved},
            "type": "Warning", "reason": reason, "message": clipped(why, MOST_IN_EVENT),
            "source": {"component": "nvshare-kubelet", "host": self._node},
            "firstTimestamp": _now(), "lastTimestamp": _now(), "count": 1})

    def _write_condition(self, pod: Pod, refusals: str) -> None:
        """Writes the pod's condition CONDITION: whether annotations are refused, and why."""
        path = f"{NAMESPACE}{pod.namespace}/pods/{pod.name}/status"
        self._write(f"the status of {pod}", "PATCH", path, {
            "metadata": {"uid": pod.uid},       # a later pod of this name gets no condition
            "status": {"conditions": [{
                "type": CONDITION, "status": "True" if refusals else "False",
                "reason": REFUSED if refusals else "NothingRefused", "message": refusals,
                "lastTransitionTime": _now()}]}})

    def _write(self, written: str, method: str, path: str, body: Any) -> None:
        try:
            server(self._kubeconfig).ask(method, path, body).close()
        except FAILURES as error:
            logger.warning("%s is not written: %s", written, error)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
