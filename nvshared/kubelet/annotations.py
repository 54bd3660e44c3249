# SPDX-License-Identifier: Apache-2.0
"""Sends the names of this node's pods to nvshared, and sets their annotations as terms of their
tenants, also while they run (meanings.py).

nvshared validates the terms. If an annotation is refused, the term keeps its value: an event of the
pod gives the reason, and so does its status while the annotation is there. If an annotation is
removed, its term is reset, and so are all terms when the pod is gone. Terms that others have set
are not touched.

A DRA claim's terms are in force unless an annotation overrides them. An annotation cannot exceed
the memory and the time that are claimed. Without a priority from either, the pod's PriorityClass
sets it.
"""

import logging
import queue
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import Any

from nvshared.control import Daemon
from nvshared.errors import InvalidArgs, NotKept, NvshareError
from nvshared.kubelet.meanings import Asked, Classes, Unknown, meanings, priority
from nvshared.kubelet.pod import Claimed, Pod, clipped
from nvshared.quantity import sized

logger = logging.getLogger(__name__)

PATIENCE = 5.0                          # seconds for nvshared's reply
PERIOD = 2.0                            # seconds until nvshared is called again
MOST_IN_STATUS = 4096                   # bytes of a condition's message; the limit is 32,768


# Terms whose annotation cannot exceed the claim; each with the formatter of its value.
CLAIMED: Mapping[str, Callable[[int], str]] = {
    "memory-limit": sized, "compute-limit": lambda percent: f"{percent} %",
}
MOST_QUOTED = 60                        # characters of an annotation that a message quotes


class Terms:
    """The names and terms of pods, and which of them nvshared has. A thread sends the rest."""

    def __init__(
        self, bus: str, complain: Callable[[Pod, str], None],
        mark: Callable[[Pod, str], bool], claimed: Claimed,
        classes: Classes = (), smallest: Callable[[], int] | None = None,
    ) -> None:
        """`complain` reports a refused annotation once, as an event.

        `mark` sets the pod's status to all current refusals, "" for none; returns False if that
        failed. `claimed`: terms of claims from before our start, which nvshared has. `classes`,
        `smallest`: the meaning of PriorityClasses and foreign annotations, see meanings.py.
        """
        self._bus = bus
        self._complain = complain
        self._mark = mark
        self._classes = classes
        self._smallest = smallest
        self._news: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._pods: dict[str, Pod] = {}                 # as last reported by the API server, by uid
        self._renamed = False                           # nvshared lacks names of pods
        self._untold: dict[Pod, dict[str, int]] = {}    # terms to send; 0 resets a term
        self._set = {one: dict(terms) for one, terms in claimed.items()}    # terms in nvshared
        self._asked: dict[Pod, dict[str, int]] = {}     # terms by valid annotations
        self._wrong: dict[Pod, dict[str, str]] = {}     # reasons of refusals, by term or annotation
        self._refusals: dict[Pod, list[str]] = {}       # not sent as events yet
        self._unmarked: dict[str, str] = {}     # by uid: status that could not be written
        self._unread: set[Pod] = set()                  # with annotations that need the GPUs' sizes
        self._claimed = dict(claimed)
        self._before = set(claimed)                     # of these, pods that no list has had yet
        self._waiting: list[Future[None]] = []          # claims that nvshared does not have yet
        self._refused: NvshareError | None = None       # its error for one of them
        self._listed = False                            # terms of removed pods may be left
        threading.Thread(target=self._run, name="annotations", daemon=True).start()

    def hear(self, news: str, what: Any = None) -> None:
        """Queues news of pods from the API server, or AGAIN: nvshared has restarted."""
        self._news.put((news, what))

    def claim(self, claimed: Claimed) -> "Future[None]":
        """Sets the terms that pods have by claims. The future is done when nvshared has them."""
        known: Future[None] = Future()
        self.hear("CLAIMED", (claimed, known))
        return known

    def _run(self) -> None:
        trouble = ""
        while True:
            with suppress(queue.Empty):
                self._learn(*self._news.get(timeout=PERIOD if self._is_behind else None))
            if self._is_behind and self._news.empty():
                try:
                    with Daemon(self._bus, PATIENCE) as daemon:
                        self._settle(daemon)
                    trouble = ""
                    self._answer(self._refused)
                except NvshareError as error:
                    self._answer(error)
                    if trouble != (trouble := str(error)):
                        logger.warning("names and annotations of pods have to wait: %s", error)
            for one, whys in self._refusals.items():
                self._complain(one, ". ".join(whys))
            self._refusals.clear()
            if self._news.empty():
                self._show()

    @property
    def _is_behind(self) -> bool:
        return self._renamed or bool(self._untold or self._waiting) or self._listed

    def _answer(self, error: NvshareError | None) -> None:
        for known in self._waiting:
            if error is None:
                known.set_result(None)
            else:
                known.set_exception(error)
        self._waiting, self._refused = [], None

    def _learn(self, news: str, what: Any) -> None:
        if news == "LISTED":
            there = {one.uid: one for one in what}
            for one in [one for uid, one in self._pods.items() if uid not in there]:
                self._forget(one)
            for one in sorted(what, key=lambda one: one.created):
                self._see(one)
            for one in self._before:
                self._claim(one, self._claimed[one] if one.uid in there else {})
            self._before.clear()
            self._unmarked.clear()
            self._listed = self._renamed = True
        elif news == "CLAIMED":
            claimed, known = what
            for one, terms in claimed.items():
                self._claim(one, terms)
            self._waiting.append(known)
        elif news == "AGAIN":
            self._renamed |= bool(self._pods)
            unread, self._unread = self._unread, set()
            for one in unread & set(self._pods.values()):
                self._read(self._pods[one.uid], {})
            for one, terms in self._set.items():
                self._untold[one] = terms | self._untold.get(one, {})
        elif news == "DELETED":
            if what.uid in self._pods:
                self._forget(what)
        else:
            self._see(what)

    def _see(self, one: Pod) -> None:
        """Takes a new or changed pod, unless another pod has its tenant.

        A static pod's tenant is named by a hash in its annotations, which others could copy. The
        first pod with it is kubelet's: only kubelet knows the hash before.
        """
        for other in self._pods.values():
            if other.tenant == one.tenant and other.uid != one.uid:
                logger.warning("%s is ignored: it says that it is %s", one, other)
                return
        before = self._pods.get(one.uid)
        self._pods[one.uid] = one
        self._unmarked.pop(one.uid, None)
        self._renamed |= before is None or before.containers != one.containers
        self._read(one, {} if before is None else before.annotations)
        if before is None:
            self._want(one, "priority")

    def _forget(self, one: Pod) -> None:
        gone = self._pods.pop(one.uid)
        self._read(replace(one, annotations={}), gone.annotations)
        self._want(one, "priority")
        self._asked.pop(one, None)      # its claims stay until kubelet unprepares them
        self._wrong.pop(one, None)
        self._unmarked.pop(one.uid, None)
        self._renamed = True

    def _read(self, one: Pod, before: Mapping[str, str]) -> None:
        """Parses the annotations of a pod that have changed since `before`."""
        was, now = meanings(before, self._smallest), self._meant(one)
        for what in sorted(was.keys() | now.keys()):
            if what in was and what in now and was[what][:2] == now[what][:2]:
                continue
            self._wrong.get(one, {}).pop(what, None)
            value = 0
            if what in now:
                key, text, parse = now[what]
                try:
                    value = parse(text.strip())
                except Unknown:
                    self._unread.add(one)
                    continue
                except ValueError as wrong:
                    self._refuse(one, what, f"{key} cannot be {quoted(text)}; {wrong}")
                    continue
            if "/" not in what and self._is_claimed(one, what, value):
                self._asked.setdefault(one, {})[what] = value
                self._want(one, what)

    def _meant(self, one: Pod) -> dict[str, Asked]:
        known = self._pods.get(one.uid, one)    # a Pod made from a claim has no annotations
        return meanings(known.annotations, self._smallest)

    def _claim(self, one: Pod, terms: dict[str, int]) -> None:
        """Sets the terms that a pod has by claims."""
        before = self._claimed.pop(one, {})
        if terms:
            self._claimed[one] = terms
        for term in before.keys() | terms.keys():
            asked = self._asked.get(one, {})
            if not self._is_claimed(one, term, asked.get(term, 0)):
                del asked[term]
            self._want(one, term)

    def _is_claimed(self, one: Pod, term: str, value: int) -> bool:
        """Whether a term is within the pod's claim; if not, refuses its annotation."""
        most = self._claimed.get(one, {}).get(term, 0)
        if term not in CLAIMED or not 0 < most < value:
            return True
        words = CLAIMED[term]
        self._refuse(
            one, term,
            f"{self._meant(one)[term].key} cannot be {words(value)}: {words(most)} are claimed")
        return False

    def _want(self, one: Pod, term: str) -> None:
        """Queues a term for nvshared: by annotation, or else by claim, or by PriorityClass."""
        self._untold.setdefault(one, {})[term] = (
            self._asked.get(one, {}).get(term, 0) or self._claimed.get(one, {}).get(term, 0)
            or self._by_class(one, term))

    def _by_class(self, one: Pod, term: str) -> int:
        known = self._pods.get(one.uid)
        return priority(self._classes, *known.priority_class) if known and term == "priority" else 0

    def _settle(self, daemon: Daemon) -> None:
        """Sends nvshared the names and terms that it lacks. Raises NvshareError without a reply."""
        if self._renamed:
            daemon.set_pods(
                (one.tenant.partition(":")[2], one.namespace, one.name, one.containers)
                for one in self._pods.values()
            )
            self._renamed = False
        for one in list(self._untold):
            held = self._set.setdefault(one, {})
            for term, value in list(self._untold[one].items()):
                if value or term in held:
                    self._tell(daemon, one, term, value)
                del self._untold[one][term]
            del self._untold[one]
            if not held:
                del self._set[one]
        if self._listed:
            self._clean(daemon)
            self._listed = False

    def _tell(self, daemon: Daemon, one: Pod, term: str, value: int) -> None:
        try:
            source = ("annotation" if self._asked.get(one, {}).get(term) else
                      "claim" if self._claimed.get(one, {}).get(term) else "class")
            daemon.set_tenant_terms(one.tenant, {term: value}, source)
        except NotKept as error:
            logger.warning("%s: %s", one, error)
        except InvalidArgs as error:
            claimed = self._claimed.get(one, {}).get(term, 0)
            if value == claimed:
                self._refused = error
                self._complain(one, str(error))
                return
            asked = self._meant(one).get(term)
            key, text = (term, str(value)) if asked is None else asked[:2]
            why = str(error).replace(one.tenant, f"pod {one}")
            self._refuse(one, term, f"{key} cannot be {quoted(text)}: {why}")
            if self._asked.get(one, {}).pop(term, 0) and claimed and term not in self._set[one]:
                self._tell(daemon, one, term, claimed)
            return
        else:
            logger.info("%s: %s is %s now", one, term, value or "as it would be without us")
        if value:
            self._set[one][term] = value
        else:
            del self._set[one][term]

    def _clean(self, daemon: Daemon) -> None:
        """Resets terms of pods that were removed unseen: nvshared has no name for them."""
        claimed = {one.tenant for one in self._claimed}
        for tenant in daemon.tenants():
            by_hand = {term.name: 0 for term in tenant.terms if not term.rule}
            kind, _, name = tenant.name.partition(":")
            if kind == "pod" and "/" not in name and by_hand and not tenant.programs and (
                    tenant.name not in claimed):
                daemon.set_tenant_terms(tenant.name, by_hand)

    def _refuse(self, one: Pod, what: str, why: str) -> None:
        """Records the refusal of an annotation, by its term or key."""
        self._wrong.setdefault(one, {})[what] = why
        self._refusals.setdefault(one, []).append(why)

    def _show(self) -> None:
        """Writes the current refusals to the status of pods where it differs.

        A status that could not be written is retried when the pod changes, or when all are listed.
        """
        for one in list(self._pods.values()):
            wrong = clipped(". ".join(sorted(self._wrong.get(one, {}).values())), MOST_IN_STATUS)
            if wrong in (one.refused, self._unmarked.get(one.uid)):
                continue
            if self._mark(one, wrong):
                self._pods[one.uid] = replace(one, refused=wrong)
            else:
                self._unmarked[one.uid] = wrong


def quoted(text: str) -> str:
    """An annotation as a message quotes it: shortened, since events are limited in size."""
    return repr(text if len(text) <= MOST_QUOTED else f"{text[:MOST_QUOTED]}…")
