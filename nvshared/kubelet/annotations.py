# SPDX-License-Identifier: Apache-2.0
"""Sends the names of this node's pods to nvshared, and sets their annotations as tenants' terms.

docs/kubernetes.md has the annotations, and their precedence over claims and PriorityClasses. Terms
that were set in another way, such as with nvsharectl, are not touched while the pod exists."""

import logging
import queue
import re
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from nvshared.control import Daemon
from nvshared.errors import InvalidArgs, NotKept, NvshareError
from nvshared.kubelet import claims
from nvshared.kubelet.claims import (
    FRACTION,
    MEMORY,
    MOST_NOTES,
    OF_CONTAINER,
    PREFIX,
    Claimed,
    Pod,
)
from nvshared.quantity import LARGEST, limit
from nvshared.terms import PERCENT, SIZE, TERMS, WEIGHT, Unit
from nvshared.units import MIB

logger = logging.getLogger(__name__)

PATIENCE = 5.0                          # most seconds until nvshared replies
PERIOD = 2.0                            # seconds until a failed call of nvshared is repeated
MOST_IN_STATUS = 4096                   # most bytes of our condition's message; Kubernetes: 32,768
MOST_QUOTED = 60                        # characters of an annotation that a message quotes
ANNOTATION, CLAIM, CLASS = "annotation", "claim", "class"       # sources of a term
NONE = (0, CLASS)                       # value and source of a term that is not set
UNKNOWN = (-1, "")                      # value and source of a term that nvshared may lack

# Terms that an annotation cannot set above the claim's value.
CLAIMED = frozenset(claims.CAPACITIES.values())
REQUEST = "compute-request"             # the term of which all pods together have at most 100 %
BOUND = frozenset({REQUEST, "compute-limit"})   # a pod's request is at most its limit
LIMIT = "memory-limit"                  # the term that annotations of other software set
UNREAD = "annotations"                  # in place of a term: annotations beyond the bound
POD_TENANT = re.compile(r"\bpod:[^ ,;]+")        # in an error of nvshared
# By PriorityClass (name or range of values): the nvshare priority. The last match is used.
Classes = Sequence[tuple[str | range, int]]


class Requested(NamedTuple):
    """The text that annotations give for one term (memory limit, weight, ...), not parsed yet."""

    key: str                            # name of the annotation, or of several, joined by " + "
    text: str
    parse: Callable[[str], int | None]  # None: the GPUs' sizes are still unknown; raises ValueError


def _whole(text: str, most: int = 10**9, words: str = "") -> int:
    if re.fullmatch(r"[1-9]\d{0,8}", text, re.ASCII) and int(text) <= most:
        return int(text)
    raise ValueError(words or f"give a whole number from 1 to {most}")


_percent = partial(_whole, most=100, words="give a whole number from 1 to 100, of percent")


def _memory(text: str) -> int:
    with suppress(ValueError):
        # Kubernetes writes 4Gi and 4G for the sizes that nvshare writes as 4GiB and 4GB.
        return limit(f"{text}B") if text[-1:].isalpha() else _whole(text) * MIB
    raise ValueError("give a number of MiB, or a size such as 4Gi")


# Parsers of values that Kubernetes, or the admission policy, writes in another way than we.
_PARSERS: Mapping[Unit, Callable[[str], int]] = {
    SIZE: _memory, PERCENT: _percent, WEIGHT: partial(_whole, most=WEIGHT.most)}
# For each annotation: the term that it sets, and the parser of its value.
ANNOTATION_TERMS: Mapping[str, tuple[str, Callable[[str], int | None]]] = {
    f"{PREFIX}{term.annotation}": (term.name, _PARSERS.get(term.unit, term.unit.parse))
    for term in TERMS.values() if term.annotation}


def _mebibytes(text: str) -> int:
    with suppress(ValueError):
        return _whole(text) * MIB
    raise ValueError("give a whole number of MiB")


def _sum(text: str) -> int:
    with suppress(ValueError):
        sizes = [claims.quantity(part.strip()) for part in text.split(" + ")]
        if min(sizes) >= MIB and sum(sizes) <= LARGEST:
            return sum(sizes)
    raise ValueError("give a size of at least 1Mi, such as 4Gi")


def _unknown_annotation(_text: str) -> int:
    raise ValueError(f"no such annotation exists; there are {', '.join(ANNOTATION_TERMS)}")


def _fraction(smallest: Callable[[], int], text: str) -> int | None:
    if not re.fullmatch(r"0?\.\d{1,9}", text, re.ASCII) or not float(text):
        raise ValueError("give a number between 0 and 1, such as 0.5")
    memory = smallest()
    return max(MIB, int(float(text) * memory)) if memory else None


def requested_terms(
    annotations: Mapping[str, str], smallest: Callable[[], int] | None
) -> dict[str, Requested]:
    """The requested value of each term; an unknown nvshare.com/ annotation is a term of its own.

    `smallest`: bytes of the node's smallest GPU, 0 while unknown; None: only our annotations count.
    """
    found = {}
    for key, text in annotations.items():
        if key.startswith(PREFIX):
            term, parse = ANNOTATION_TERMS.get(key, (key, _unknown_annotation))
            found[term] = Requested(key, text, parse)
    if LIMIT in found or smallest is None:
        return found
    containers: dict[str, dict[str, tuple[str, str]]] = {}
    for key, text in sorted(annotations.items()):
        if match := OF_CONTAINER.fullmatch(key):
            containers.setdefault(match[1], {})[match[2]] = (key, text)
    if containers:
        keys, texts = zip(*(
            kinds.get("limit") or kinds["request"] for kinds in containers.values()), strict=True)
        found[LIMIT] = Requested(" + ".join(keys), " + ".join(texts), _sum)
    elif MEMORY in annotations:
        found[LIMIT] = Requested(MEMORY, annotations[MEMORY], _mebibytes)
    elif FRACTION in annotations:
        found[LIMIT] = Requested(FRACTION, annotations[FRACTION], partial(_fraction, smallest))
    return found


def priority(classes: Classes, name: str, value: int) -> int:
    """The nvshare priority for a PriorityClass of this name and value; 0: none."""
    found = (meant for which, meant in reversed(classes)
             if which == name or (isinstance(which, range) and value in which))
    return next(found, 0)


class PodTerms:
    def __init__(
        self, bus: str, report: Callable[[Pod, str], None],
        write_condition: Callable[[Pod, str], None], claimed: Claimed | None = None,
        classes: Classes = (), smallest: Callable[[], int] | None = None,
    ) -> None:
        """`report` writes an event of the pod; `write_condition` all refusals to its status."""
        self._bus = bus
        self._report = report
        self._write_condition = write_condition
        self._classes = classes
        self._smallest = smallest
        self._events: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._pods: dict[str, Pod] = {}                 # by uid, as the API server reported last
        self._annotated: dict[Pod, dict[str, int]] = {}     # terms that valid annotations set
        self._claimed = {pod: dict(terms) for pod, terms in (claimed or {}).items() if terms}
        self._reasons: dict[Pod, dict[str, str]] = {}   # why terms are refused now, see _refuse()
        self._refusals: dict[Pod, list[str]] = {}       # reasons that no event has reported yet
        # The terms that nvshare-kubelet has set in nvshared: value and source.
        self._set = {pod: dict.fromkeys(terms, UNKNOWN) for pod, terms in self._claimed.items()}
        # Pods of claims prepared by an earlier process. Until the API server's first list, nvshared
        # may have stricter terms of their annotations.
        self._unlisted = set(self._claimed)
        self._changed: set[Pod] = set()                 # pods with terms nvshared may not have
        self._again: set[Pod] = set()                   # pods that _retry() has read
        self._renamed = False                           # nvshared may have outdated names of pods
        self._listed = False                            # reset terms of pods that are not listed
        self._waiting: list[Future[None]] = []          # futures of claim() until terms are set
        self._claim_error: NvshareError | None = None       # nvshared's error for terms of claims
        threading.Thread(target=self._run, name="annotations", daemon=True).start()

    def handle(self, event: str, payload: Any = None) -> None:
        """Queues an event of api.watch(), or RESTARTED: nvshared has restarted, or SETTINGS with
        other `classes` and `smallest`."""
        self._events.put((event, payload))

    def claim(self, claimed: Claimed) -> "Future[None]":
        """Sets the terms that pods have by claims. The future is done when nvshared has them."""
        confirmed: Future[None] = Future()
        self.handle("CLAIMED", (claimed, confirmed))
        return confirmed

    def _run(self) -> None:
        problem = ""
        while True:
            with suppress(queue.Empty):
                self._apply(*self._events.get(timeout=PERIOD if self._is_behind else None))
            if self._is_behind and self._events.empty():
                try:
                    with Daemon(self._bus, PATIENCE) as daemon:
                        self._synchronize(daemon)
                    problem = ""
                except NvshareError as error:
                    self._claim_error = error
                    if problem != (problem := str(error)):
                        logger.warning("names and annotations of pods are not sent yet: %s", error)
                for confirmed in self._waiting:
                    if self._claim_error is None:
                        confirmed.set_result(None)
                    else:
                        confirmed.set_exception(self._claim_error)
                self._waiting, self._claim_error = [], None
            for pod, whys in self._refusals.items():
                self._report(pod, ". ".join(whys))
            self._refusals.clear()
            if self._events.empty():
                self._write_conditions()

    @property
    def _is_behind(self) -> bool:
        return bool(self._changed or self._waiting) or self._renamed or self._listed

    def _apply(self, event: str, payload: Any) -> None:
        if event == "LISTED":
            uids = {pod.uid for pod in payload}
            for pod in [pod for uid, pod in self._pods.items() if uid not in uids]:
                self._remove_pod(pod)
            for pod in sorted(payload, key=lambda pod: pod.created):
                self._update_pod(pod)
            self._unlisted.clear()
            self._listed = self._renamed = True
        elif event == "CLAIMED":
            claimed, confirmed = payload
            for pod, terms in claimed.items():
                self._claim(pod, terms)
            self._unlisted -= claimed.keys()
            self._waiting.append(confirmed)
        elif event == "SETTINGS":
            self._classes, self._smallest = payload
            self._annotated.clear()
            self._reasons.clear()
            for pod in self._pods.values():
                self._read(pod, {})
        elif event == "RESTARTED":
            self._renamed |= bool(self._pods)
            for pod, held in self._set.items():
                self._set[pod] = dict.fromkeys(held, UNKNOWN)
            self._changed.update(self._set.keys() - self._unlisted)
            for pod in self._pods.values():     # annotations may need the sizes of GPUs
                self._read(pod, pod.annotations)
        elif event == "DELETED":
            if payload.uid in self._pods:
                self._remove_pod(payload)
        else:
            self._update_pod(payload)

    def _update_pod(self, pod: Pod) -> None:
        """Stores a pod unless an earlier one has its tenant: users can copy a static pod's hash."""
        for other in self._pods.values():
            if other.tenant == pod.tenant and other.uid != pod.uid:
                logger.warning("%s is ignored: its annotations name the tenant of %s", pod, other)
                return
        before = self._pods.get(pod.uid)
        self._pods[pod.uid] = pod
        self._renamed |= before is None or before.containers != pod.containers
        self._read(pod, {} if before is None else before.annotations)

    def _remove_pod(self, pod: Pod) -> None:
        """Forgets a deleted pod. The terms of its claims stay until the claims are unprepared."""
        del self._pods[pod.uid]
        self._annotated.pop(pod, None)
        self._reasons.pop(pod, None)
        self._changed.add(pod)
        self._renamed = True

    def _read(self, pod: Pod, before: Mapping[str, str], again: Collection[str] = ()) -> None:
        """Parses a pod's annotations that are not in `before`, were not computable then, or set
        the terms `again`."""
        was, now = (requested_terms(annotations, self._smallest)
                    for annotations in (before, pod.annotations))
        annotated, reasons = self._annotated.setdefault(pod, {}), self._reasons.setdefault(pod, {})
        for term in was.keys() - now.keys():
            annotated.pop(term, None)
            reasons.pop(term, None)
        for term, (key, text, parse) in sorted(now.items()):
            is_known = term in annotated or term in reasons
            if is_known and term not in again and (
                    term in was and was[term][:2] == (key, text)):
                continue
            try:
                value = parse(text.strip())
            except ValueError as error:
                self._refuse(pod, term, f"{key} cannot be {quoted(text)}; {error}")
                continue
            if value is None:
                annotated.pop(term, None)
            elif self._is_claimed(pod, term, value):
                annotated[term] = value
            else:
                continue
            reasons.pop(term, None)
        why = (f"{pod.unread} further annotations are not read: all that set limits of a pod have "
               f"at most {MOST_NOTES} bytes together") if pod.unread else ""
        if why:
            self._refuse(pod, UNREAD, why)
        else:
            reasons.pop(UNREAD, None)
        self._compare(pod)

    def _claim(self, pod: Pod, terms: dict[str, int]) -> None:
        before = self._claimed.pop(pod, {})
        if terms:
            self._claimed[pod] = dict(terms)
        changed = {term for term in CLAIMED if before.get(term) != terms.get(term)}
        annotated = self._annotated.get(pod, {})
        for term in changed & annotated.keys():
            if 0 < terms.get(term, 0) < annotated[term]:
                del annotated[term]
        if known := self._pods.get(pod.uid):
            self._read(known, known.annotations, changed)
        self._compare(pod)

    def _is_claimed(self, pod: Pod, term: str, value: int) -> bool:
        """Whether a term's value is within the pod's claim; if not, refuses the annotation."""
        most = self._claimed.get(pod, {}).get(term, 0)
        if term not in CLAIMED or not 0 < most < value:
            return True
        key, words = self._annotation(pod, term)[0], TERMS[term].unit.show
        self._refuse(pod, term, f"{key} cannot be {words(value)}: {words(most)} are claimed")
        return False

    def _annotation(self, pod: Pod, term: str) -> tuple[str, str]:
        """The name of the annotation that sets a term, and the annotation's text."""
        known = self._pods[pod.uid]             # a Pod made from a claim has no annotations
        return requested_terms(known.annotations, self._smallest)[term][:2]

    def _desired(self, pod: Pod) -> dict[str, tuple[int, str]]:
        """By term: the value that a pod is to have, and its source."""
        known = self._pods.get(pod.uid)
        by_class = priority(self._classes, *known.priority_class) if known else 0
        found = {"priority": (by_class, CLASS)} if by_class else {}
        for source, terms in ((CLAIM, self._claimed), (ANNOTATION, self._annotated)):
            found |= {term: (value, source) for term, value in terms.get(pod, {}).items()}
        return found

    def _compare(self, pod: Pod) -> None:
        if self._desired(pod) != self._set.get(pod, {}):
            self._changed.add(pod)

    def _synchronize(self, daemon: Daemon) -> None:
        """Sends nvshared names and terms that it lacks. Raises NvshareError if no reply comes."""
        if self._renamed:
            self._name(daemon)
            self._renamed = False
        while self._changed:
            pod = next(iter(self._changed))
            held = self._set.setdefault(pod, {})
            for term in sorted(held.keys() | self._desired(pod).keys()):
                # If nvshared refuses the value of one source, the value of the next source is sent.
                while (wanted := self._desired(pod).get(term, NONE)) != held.get(term, NONE):
                    if not self._send(daemon, pod, term, *wanted):
                        break
            self._changed.remove(pod)
            if not held:
                del self._set[pod]
            self._changed |= self._again
            self._again.clear()
        if self._listed:
            self._reset_leftovers(daemon)
            self._listed = False

    def _name(self, daemon: Daemon) -> None:
        """Sends the names of all pods; of the pods alone if nvshared refuses these. A refusal of
        names must not keep terms from being sent."""
        for containers in (True, False):
            try:
                daemon.set_pods(
                    (pod.tenant.partition(":")[2], pod.namespace, pod.name,
                     pod.containers if containers else {}) for pod in self._pods.values())
            except InvalidArgs as error:
                logger.warning("nvshared refuses the names of %s of %d pods: %s",
                               "containers" if containers else "all", len(self._pods), error)
            else:
                return

    def _send(self, daemon: Daemon, pod: Pod, term: str, value: int, source: str) -> bool:
        """Sets a term, or resets it with value 0. False: nvshared refuses it for now."""
        held, by_class = self._set[pod], f"{CLASS} {term}"
        try:
            daemon.set_tenant_terms(pod.tenant, {term: value}, source)
            logger.info("%s: %s is %s now", pod, term, value or "reset")
        except NotKept as error:
            logger.warning("%s: %s", pod, error)
        except InvalidArgs as error:
            why = POD_TENANT.sub(       # others may be of any namespace
                lambda found: found[0] if found[0] == f"pod:{pod}" else "another pod",
                str(error).replace(pod.tenant, f"pod {pod}"))
            if source == ANNOTATION:
                key, text = self._annotation(pod, term)
                self._refuse(pod, term, f"{key} cannot be {quoted(text)}: {why}")
                before, its_source = held.get(term, NONE)
                if its_source == ANNOTATION:
                    self._annotated[pod][term] = before     # the previous value stays
                else:
                    del self._annotated[pod][term]
            elif source == CLAIM:
                self._claim_error = error
                self._report(pod, str(error))
                del self._claimed[pod][term]
            else:
                self._refuse(pod, by_class, f"{term} cannot be {value or 'reset'}: {why}")
                held[term] = UNKNOWN            # sent again if the pod changes or nvshared restarts
                return False
            return True
        self._reasons.get(pod, {}).pop(by_class, None)
        was, _ = held.get(term, NONE)
        if term == REQUEST and value < was:
            self._retry([*self._pods.values()])
        elif term in BOUND and was != UNKNOWN[0] and (value > was or not value):
            self._retry([pod])
        held[term] = value, source
        if not value:
            del held[term]
        return True

    def _retry(self, pods: Iterable[Pod]) -> None:
        """Reads refused annotations again that bound each other: there may be room for them now."""
        for pod in pods:
            if again := BOUND & self._reasons.get(pod, {}).keys():
                known = self._pods[pod.uid]         # with annotations, unlike a claim's
                self._read(known, known.annotations, again)
                self._again.add(pod)

    def _reset_leftovers(self, daemon: Daemon) -> None:
        """Resets terms of pods deleted while no nvshare-kubelet ran: only UIDs name them."""
        claimed = {pod.tenant for pod in self._claimed}
        for tenant in daemon.tenants():
            by_hand = {term.name: 0 for term in tenant.terms if not term.rule}
            kind, _, name = tenant.name.partition(":")
            if kind == "pod" and "/" not in name and by_hand and not tenant.programs and (
                    tenant.name not in claimed):
                daemon.set_tenant_terms(tenant.name, by_hand)

    def _refuse(self, pod: Pod, key: str, reason: str) -> None:
        """Records why `key` is refused: a term, an unknown annotation, or "class TERM". The event
        of a refusal is written once, until the reason is another."""
        reasons = self._reasons.setdefault(pod, {})
        if reasons.get(key) != reason:
            reasons[key] = reason
            self._refusals.setdefault(pod, []).append(reason)

    def _write_conditions(self) -> None:
        """Writes refusals to statuses that differ; after a failure, at the pod's next report."""
        for pod in list(self._pods.values()):
            reasons = ". ".join(sorted(self._reasons.get(pod, {}).values()))
            message = claims.clipped(reasons, MOST_IN_STATUS)
            if message != pod.refused:
                self._pods[pod.uid] = replace(pod, refused=message)
                self._write_condition(pod, message)


def quoted(text: str) -> str:
    """The text in quotes, at most MOST_QUOTED characters of it: events are limited in size."""
    return repr(text if len(text) <= MOST_QUOTED else f"{text[:MOST_QUOTED]}…")
