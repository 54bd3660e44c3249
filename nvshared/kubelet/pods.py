# SPDX-License-Identifier: Apache-2.0
"""Watches this node's pods, and writes their events and a condition of their status."""

import json
import logging
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

from nvshared.containers.cdi import replace
from nvshared.errors import NvshareError
from nvshared.kubelet.annotations import PATIENCE, Classes, PodTerms
from nvshared.kubelet.api import FAILURES, RequestRefused, RetryPause, is_passing, server, watch
from nvshared.kubelet.card import checkpoint
from nvshared.kubelet.claims import (
    REFUSED_CONDITION,
    RESOURCE,
    Claim,
    Pod,
    Prepared,
    clipped,
    pod,
    read,
)
from nvshared.names import WITHOUT_GPU

logger = logging.getLogger(__name__)

REFUSED = "AnnotationRefused"
UNAVAILABLE = "GPUsNotShared"
WITHOUT_SHARE = "StartedWithoutGPU"
MOST_IN_EVENT = 1024                    # bytes of an event's message that the API server accepts
MOST_WRITES = 1000                      # events and conditions that wait for the API server
# Events of an object, as client-go bounds them: so many at once, then one in so many seconds.
MOST_EVENTS, EVENT_PERIOD = 25, 300.0
MOST_TRIES = 12                         # attempts to write one, also as client-go does
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


class Writes:
    """Writes events and conditions to the API server, in a thread. What fails is repeated, after
    the others; what the API server refuses is dropped."""

    def __init__(self, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig
        # By a key of the object: what is written, method, path and body.
        self._pending: OrderedDict[object, tuple[str, str, str, Any]] = OrderedDict()
        self._changed = threading.Condition()
        self._spare: dict[str, tuple[float, float]] = {}    # events left, and when, by the object
        threading.Thread(target=self._run, name="writes", daemon=True).start()

    def put(self, key: object, words: str, method: str, path: str, body: Any) -> None:
        """Queues a request in the place of an earlier one with this key. `words`: for the log."""
        with self._changed:
            if len(self._pending) >= MOST_WRITES and key not in self._pending:
                logger.warning("%s is not written: %d others wait", words, MOST_WRITES)
                return
            self._pending[key] = words, method, path, body
            self._changed.notify()

    def may_write_event(self, uid: str) -> bool:
        """Whether an object has an event left. Counts it."""
        now = time.monotonic()
        with self._changed:
            spare, last = self._spare.pop(uid, (MOST_EVENTS, now))
            spare = min(MOST_EVENTS, spare + (now - last) / EVENT_PERIOD)
            self._spare[uid] = max(spare - 1, spare % 1), now
            while len(self._spare) > MOST_WRITES:
                del self._spare[next(iter(self._spare))]
        return spare >= 1

    def _run(self) -> None:
        pause, failures = RetryPause(), Counter[object]()
        while True:
            with self._changed:
                while not self._pending:
                    self._changed.wait()
                key, request = next(iter(self._pending.items()))
            words, method, path, body = request
            again = 0.0
            try:
                server(self._kubeconfig).ask(method, path, body).close()
            except FAILURES as error:
                failures[key] += 1
                if failures[key] < MOST_TRIES and is_passing(error):
                    again = pause.seconds(error)
                if failures[key] == 1 or not again:
                    logger.warning("%s is not written: %s", words, error)
            with self._changed:
                if again:
                    self._pending.move_to_end(key)
                else:
                    del failures[key]
                    if self._pending[key] is request:
                        del self._pending[key]
            time.sleep(again)


class Pods:
    """Watches this node's pods in one thread; that of PodTerms sends their terms to nvshared."""

    def __init__(
        self, bus: str, kubeconfig: Path, node: str, prepared: Prepared,
        static_pods: StaticPods, classes: Classes, smallest: Callable[[], int] | None,
        *, may_change: bool = False,
    ) -> None:
        """`classes`, `smallest`: as for PodTerms. `may_change`: set_options() is called."""
        self.prepared = prepared
        self._kubeconfig = kubeconfig
        self._node = node
        self._static = static_pods
        self._writes = Writes(kubeconfig)
        self._terms = PodTerms(
            bus, self._write_pod_event, self._write_condition,
            prepared.terms(pod for one in prepared.claims() for pod in one.pods), classes, smallest)
        # UIDs of claims that an earlier process prepared; their pods may have been deleted since.
        self._before = {claim.uid for claim in prepared.claims()}
        self._lock = threading.RLock()          # of prepared claims, and of these:
        self._pods: dict[str, Pod] = {}         # by UID
        # By UID of a claim and of a pod that names it: the API server was asked for the claim.
        self._asked: set[tuple[str, str]] = set()
        self._hurry = threading.Event()
        threading.Thread(target=self._answer, name="claims", daemon=True).start()
        threading.Thread(
            target=watch, name="pods", daemon=True, args=(
                "annotations of pods", kubeconfig, "/api/v1/pods", node, not self._before,
                partial(pod, foreign=may_change or smallest is not None), self._handle)).start()

    def set_options(self, classes: Classes, smallest: Callable[[], int] | None) -> None:
        """Changes options: as for annotations.PodTerms."""
        self._terms.handle("SETTINGS", (classes, smallest))

    def nvshared_is_back(self) -> None:
        """Sends all names and terms again: nvshared may have lost them in a restart."""
        self._terms.handle("RESTARTED")

    def arriving(self) -> int:
        """The number of pods that are bound to this node, request shares and are not admitted."""
        with self._lock:
            return sum(bool(one.requesting) and not one.is_admitted for one in self._pods.values())

    def ask(self, namespace: str, name: str) -> Claim:
        """Fetches a claim from the API server. Raises Refused, NvshareError; KeyError and such."""
        try:
            found = server(self._kubeconfig).send("GET", CLAIM.format(namespace, name))
        except FAILURES as error:
            said = f"claim {namespace}/{name} is not known: {error}"
            if isinstance(error, RequestRefused):
                raise RequestRefused(said, error.status, error.retry_after) from error
            raise NvshareError(said) from error
        return read(found)

    def claim(self, claim: Claim) -> None:
        """Sets a claim's terms for its pods. Raises NvshareError if nvshared refuses them."""
        with self._lock:
            before = {one.uid: one for one in self.prepared.claims()}.get(claim.uid)
            pods = self.prepared.change(claim.uid, claim)
        try:
            terms = self.prepared.terms(pods, strictly=True)
            self._terms.claim(terms).result(3 * PATIENCE)
        except (NvshareError, TimeoutError) as error:
            self.renew(claim.uid, before)
            raise NvshareError(str(error) or "nvshared does not confirm the terms") from error
        self._hurry.set()

    def renew(self, uid: str, claim: Claim | None) -> None:
        """Updates a claim after its pods changed; None: it is unprepared. Raises NvshareError."""
        with self._lock:
            self._terms.claim(self.prepared.terms(self.prepared.change(uid, claim)))

    def _handle(self, event: str, payload: Any) -> None:
        """Handles an event of watch(). A pod that has ended is as good as deleted."""
        if event == "LISTED":
            payload = [one for one in payload if not one.is_ended]
        elif payload.is_ended:
            event = "DELETED"
        self._terms.handle(event, payload)
        for one, why in self._static.handle(event, payload):
            self._write_pod_event(one, f"{why}; {ADVICE}", WITHOUT_SHARE)
        pods: list[Pod] = payload if event == "LISTED" else [payload]
        present = {one.uid for one in pods}
        with self._lock:
            if event == "LISTED":
                self._pods.clear()
            for one in pods:
                if event == "DELETED":
                    self._pods.pop(one.uid, None)
                else:
                    self._pods[one.uid] = one
            for claim in self.prepared.claims():
                try:
                    self._drop_pods(claim, event, present)
                except NvshareError as error:       # the other claims and pods are handled
                    logger.warning("claim %s is not changed: %s", claim, error)
            self._before.clear()
        self._hurry.set()

    def _drop_pods(self, claim: Claim, event: str, present: set[str]) -> None:
        """Takes pods that are gone out of a prepared claim. Raises NvshareError."""
        pods = set(claim.uids)
        gone = pods & present if event == "DELETED" and claim.is_shareable else set()
        if claim.uid in self._before:
            gone = pods - present
            if gone == pods:
                logger.info("claim %s is gone", claim)
                self.renew(claim.uid, None)
                return
        if gone:
            self.renew(claim.uid, claim.without(gone))

    def _questions(self) -> list[tuple[Claim, set[tuple[str, str]]]]:
        """Claims that pods name which they are not known to be reserved for; these pairs."""
        with self._lock:
            claims = [one for one in self.prepared.claims() if one.is_shareable]
            self._asked &= {(one.uid, pod) for one in claims for pod in self._pods}
            found = [(claim, {
                (claim.uid, one.uid) for one in self._pods.values()
                if one.namespace == claim.namespace and claim.name in one.claims
                and one.uid not in claim.uids} - self._asked) for claim in claims]
            return [(claim, pairs) for claim, pairs in found if pairs]

    def _answer(self) -> None:
        """Asks for claims that further pods name, which kubelet does not report."""
        pause, delay, problem = RetryPause(), None, ""
        while True:
            self._hurry.wait(delay)
            self._hurry.clear()
            delay = None
            for claim, pairs in self._questions():
                try:
                    self._renew_by_answer(claim)
                    problem = ""
                except FAILURES as error:
                    if getattr(error, "status", 0) != HTTPStatus.NOT_FOUND:
                        if problem != (problem := f"claim {claim} is not known: {error}"):
                            logger.warning("%s", problem)
                        delay = delay or pause.seconds(error)
                        continue
                with self._lock:
                    self._asked |= pairs

    def _renew_by_answer(self, claim: Claim) -> None:
        now = self.ask(claim.namespace, claim.name)
        with self._lock:
            there = {one.uid: one for one in self.prepared.claims()}.get(now.uid)
            if there is not None and now.uids != there.uids:
                self.renew(now.uid, now)

    def write_node_event(self, why: str) -> None:
        """Writes why GPUs are not offered as an event of the node."""
        self._write_event(UNAVAILABLE, why, "default", {
            "kind": "Node", "name": self._node, "uid": self._node})  # uid of kubelet's own events

    def _write_pod_event(self, pod: Pod, why: str, reason: str = REFUSED) -> None:
        """Writes an event of the pod, which `kubectl describe` shows, and a line of the journal."""
        if self._write_event(reason, why, pod.namespace, {
                "kind": "Pod", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid}):
            logger.warning("%s: %s", pod, clipped(why, MOST_IN_EVENT))

    def _write_event(self, reason: str, why: str, namespace: str, involved: dict[str, str]) -> bool:
        """Writes an event, unless there are too many of the object: False."""
        if not self._writes.may_write_event(involved["uid"]):
            return False
        self._writes.put(object(), "the event", "POST", f"{NAMESPACE}{namespace}/events", {
            "metadata": {"generateName": f"{involved['name']}.", "namespace": namespace},
            "involvedObject": {"apiVersion": "v1", **involved},
            "type": "Warning", "reason": reason, "message": clipped(why, MOST_IN_EVENT),
            "source": {"component": "nvshare-kubelet", "host": self._node},
            "firstTimestamp": timestamp(), "lastTimestamp": timestamp(), "count": 1})
        return True

    def _write_condition(self, pod: Pod, refusals: str) -> None:
        """Writes REFUSED_CONDITION of the pod: whether annotations are refused, and why."""
        path = f"{NAMESPACE}{pod.namespace}/pods/{pod.name}/status"
        self._writes.put(pod.uid, f"the status of {pod}", "PATCH", path, {
            "metadata": {"uid": pod.uid},       # a later pod of this name gets no condition
            "status": {"conditions": [{
                "type": REFUSED_CONDITION, "status": "True" if refusals else "False",
                "reason": REFUSED if refusals else "NothingRefused", "message": refusals,
                "lastTransitionTime": timestamp()}]}})


def timestamp() -> str:
    """The present time, as Kubernetes writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
