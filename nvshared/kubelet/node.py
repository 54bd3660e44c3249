# SPDX-License-Identifier: Apache-2.0
"""This node's object at the API server: labels, a condition, and a taint while the plugin leaves.

docs/kubernetes.md has the labels. The object is read again and again, and what differs is written:
a node that is registered anew has lost them."""

import http
import logging
import re
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nvshared.kubelet.api import FAILURES, NODES, SPREAD, RequestRefused, RetryPause, server
from nvshared.kubelet.card import Offer
from nvshared.kubelet.claims import PREFIX, RESOURCE, clipped
from nvshared.kubelet.pods import timestamp
from nvshared.units import MIB

logger = logging.getLogger(__name__)

PERIOD = 30.0                           # least seconds between readings; at most half as many more
LONGEST = 63                            # characters of a label's value
PROBLEM_CONDITION = f"{PREFIX}GPUProblem"       # True: a GPU of the node cannot be shared
MOST_IN_CONDITION = 4096                # bytes of the condition's message
LEAVING_TAINT = {"key": f"{PREFIX}gpu-leaving", "effect": "NoSchedule"}
TRIES = 5                               # attempts to change taints, which others change as well
Object = Mapping[str, Any]


def labels(offer: Offer) -> dict[str, str | None]:
    """The labels for an offer, of GPUs that can be shared; None: there is no such label."""
    offered = {card: number for card, number in offer.offered().items() if not offer.fault(card)}
    products = {re.sub(r"[^\w.-]+", "-", card.product, flags=re.ASCII)[:LONGEST].strip("-_.")
                for card in offered}
    values = {
        "shared": "true" if offered else "false",
        "count": str(len(offered)) if offered else None,
        "replicas": str(min(offered.values())) if offered else None,
        "memory": str(min(card.memory for card in offered) // MIB) if offered else None,
        "product": (products.pop() or None) if len(products) == 1 else None}
    return {f"{RESOURCE}.{name}": value for name, value in values.items()}


def is_tainted(node: Object) -> bool:
    taints = (node.get("spec") or {}).get("taints") or ()
    return any(one["key"] == LEAVING_TAINT["key"] for one in taints)


class NodeObject:
    """Keeps labels and condition as they are wanted, in a thread."""

    def __init__(self, kubeconfig: Path, name: str) -> None:
        self._kubeconfig = kubeconfig
        self._name = name
        self._labels: dict[str, str | None] = {}
        self._problem: str | None = None        # the condition's message; None: not known yet
        self._said: dict[str, str] = {}         # the last problem of each request, for the log
        self._hurry = threading.Event()
        self.may_untaint = False                # it serves: the taint is of an earlier process
        self.object: Object = {}                # as it was read last; empty: never
        self.read_at = 0.0                      # when that was
        threading.Thread(target=self._run, name="node", daemon=True).start()

    def publish(self, offer: Offer) -> None:
        """Sets the offer to publish. While nvshared is away, the labels stay."""
        wanted = labels(offer) if not offer.common_problem else self._labels
        problem = clipped(offer.problems(), MOST_IN_CONDITION)
        if (wanted, problem) != (self._labels, self._problem):
            self._labels, self._problem = wanted, problem
            self._hurry.set()

    def read_soon(self) -> None:
        """Has the object read now rather than after PERIOD."""
        self._hurry.set()

    @property
    def allocatable(self) -> int | None:
        """The number of shares that kubelet has told the API server; None: none, or not known."""
        shown = ((self.object.get("status") or {}).get("allocatable") or {}).get(RESOURCE)
        return int(shown) if isinstance(shown, str) and shown.isdecimal() else None

    @property
    def problem(self) -> str:
        """Why the last reading failed; "": it did not."""
        return self._said.get("the node", "")

    def read(self) -> Object:
        """Reads the node. Raises as APIServer.ask() does."""
        path = f"{NODES}/{self._name}?resourceVersion=0"       # the API server's cache will do
        try:
            found: Object = server(self._kubeconfig).send("GET", path)
        except RequestRefused as error:
            if error.status not in (http.HTTPStatus.FORBIDDEN, http.HTTPStatus.NOT_FOUND):
                raise
            raise RequestRefused(
                f"{error} (is {self._name!r} this node's name in Kubernetes? --node gives it)",
                error.status, error.retry_after) from error
        self.object, self.read_at = found, time.monotonic()
        return found

    def set_taint(self, *, is_leaving: bool) -> None:
        """Adds or removes LEAVING_TAINT. Raises as APIServer.ask() does."""
        api, path = server(self._kubeconfig), f"{NODES}/{self._name}"
        for number in range(TRIES):
            found = api.send("GET", path)
            if is_tainted(found) == is_leaving:
                return
            before = (found.get("spec") or {}).get("taints") or ()
            taints = [one for one in before if one["key"] != LEAVING_TAINT["key"]]
            taints += [LEAVING_TAINT] if is_leaving else []
            try:
                # Patches replace the whole list: with its version, no other taint is lost.
                version = found["metadata"]["resourceVersion"]
                api.send("PATCH", path, {
                    "metadata": {"resourceVersion": version}, "spec": {"taints": taints}})
                return
            except RequestRefused as error:
                if error.status != http.HTTPStatus.CONFLICT or number == TRIES - 1:
                    raise

    def _run(self) -> None:
        pause = RetryPause()
        while True:
            self._hurry.clear()
            error = self._attempt("the node", self.read)
            if error is None:
                error = self._attempt("labels of the node", self._write_labels)
                error = self._attempt("the condition of the node", self._write_condition) or error
                taint = LEAVING_TAINT["key"]
                error = self._attempt(
                    f"the taint of the node stays (kubectl taint node {self._name} {taint}- "
                    "removes it)", self._untaint) or error
            if error is not None:
                time.sleep(pause.seconds(error))
            else:
                self._hurry.wait(PERIOD * SPREAD.uniform(1, 1.5))

    def _attempt(self, words: str, act: Any) -> BaseException | None:
        """Calls `act`. Returns its error, which the log has once."""
        try:
            act()
        except FAILURES as error:
            if self._said.get(words) != str(error):
                logger.warning("%s: %s", words, error)
            self._said[words] = str(error)
            return error
        self._said.pop(words, None)
        return None

    def _write_labels(self) -> None:
        there = self.object["metadata"].get("labels") or {}
        if changed := {
                key: value for key, value in self._labels.items() if there.get(key) != value}:
            self._patch("", {"metadata": {"labels": changed}})
            logger.info("labels of the node: written")

    def _write_condition(self) -> None:
        if self._problem is None:
            return
        wanted = {
            "type": PROBLEM_CONDITION, "status": "True" if self._problem else "False",
            "reason": "GPUsNotShared" if self._problem else "AllGPUsShared",
            "message": self._problem or "all GPUs that are offered can be shared"}
        conditions = (self.object.get("status") or {}).get("conditions") or ()
        there: Object = next((one for one in conditions if one["type"] == PROBLEM_CONDITION), {})
        if any(there.get(key) != value for key, value in wanted.items()):
            now = timestamp()
            is_same = there.get("status") == wanted["status"]
            since = there.get("lastTransitionTime", now) if is_same else now
            self._patch("/status", {"status": {"conditions": [
                wanted | {"lastHeartbeatTime": now, "lastTransitionTime": since}]}})

    def _untaint(self) -> None:
        if self.may_untaint and is_tainted(self.object):
            self.set_taint(is_leaving=False)

    def _patch(self, part: str, body: Object) -> None:
        found = server(self._kubeconfig).send("PATCH", f"{NODES}/{self._name}{part}", body)
        if found.get("metadata", {}).get("name"):
            self.object = found
