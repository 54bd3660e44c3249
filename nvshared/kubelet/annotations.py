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
from nvshared.kubelet.meanings import Classes, Unknown, meanings, priority
from nvshared.kubelet.pod import Claimed, Pod, clipped
from nvshared.quantity import sized

logger = logging.getLogger(__name__)

PATIENCE = 5.0                          # seconds for nvshared's reply
PERIOD = 2.0                            # seconds until nvshared is called again
MOST_IN_STATUS = 4096                   # bytes of a condition's message; the limit is 32,768
MOST_QUOTED = 60                        # characters of an annotation that a message quotes
ANNOTATION, CLAIM, CLASS = "annotation", "claim", "class"       # what sets a term
NONE = (0, CLASS)                       # value and source of a term that is not set,
UNKNOWN = (-1, "")                      # and of one that nvshared may have or not

# Terms whose annotation cannot exceed the claim; each with the formatter of its value.
CLAIMED: Mapping[str, Callable[[int], str]] = {
    "memory-limit": sized, "compute-limit": lambda percent: f"{percent} %",
}


class Terms:
    """The names and terms of pods, and which of them nvshared has. A thread sends the rest."""

    def __init__(
        self, bus: str, complain: Callable[[Pod, str], None],
        mark: Callable[[Pod, str], None], classes: Classes = (),
        smallest: Callable[[], int] | None = None,
    ) -> None:
        """`complain` reports a refused annotation once, as an event.

        `mark` sets the pod's status to all current refusals, "" for none. `classes`, `smallest`:
        the meaning of PriorityClasses and foreign annotations, see meanings.py.
        """
        self._bus = bus
        self._complain = complain
        self._mark = mark
        self._classes = classes
        self._smallest = smallest
        self._news: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._pods: dict[str, Pod] = {}                 # as last reported by the API server, by uid
        self._asked: dict[Pod, dict[str, int]] = {}     # terms by valid annotations
        self._claimed: dict[Pod, dict[str, int]] = {}   # terms by claims
        self._wrong: dict[Pod, dict[str, str]] = {}     # reasons of refusals, by term or annotation
        self._refusals: dict[Pod, list[str]] = {}       # not sent as events yet
        # The terms that we have set in nvshared: value and what sets it.
        self._set: dict[Pod, dict[str, tuple[int, str]]] = {}
        self._changed: set[Pod] = set()                 # whose terms may differ from those there
        self._renamed = False                           # nvshared lacks names of pods
        self._listed = False                            # terms of removed pods may be left
        self._waiting: list[Future[None]] = []          # claims that nvshared does not have yet
        self._refused: NvshareError | None = None       # its error for one of them
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
        return bool(self._changed or self._waiting) or self._renamed or self._listed

    def _answer(self, error: NvshareError | None) -> None:
        for known in self._waiting:
            if error is None:
                known.set_result(None)
            else:
                known.set_exception(error)
        self._waiting, self._refused = [], None

    def _learn(self, news: str, what: Any) -> None:
        if news == "LISTED":
            there = {one.uid for one in what}
            for one in [one for uid, one in self._pods.items() if uid not in there]:
                self._forget(one)
            for one in sorted(what, key=lambda one: one.created):
                self._see(one)
            self._listed = self._renamed = True
        elif news == "CLAIMED":
            claimed, known = what
            for one, terms in claimed.items():
                self._claim(one, terms)
            self._waiting.append(known)
        elif news == "AGAIN":
            self._renamed |= bool(self._pods)
            for one, held in self._set.items():
                self._set[one] = dict.fromkeys(held, UNKNOWN)
            self._changed.update(self._set)
            for one in self._pods.values():     # some may need the sizes of GPUs
                self._read(one, one.annotations)
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
        self._renamed |= before is None or before.containers != one.containers
        self._read(one, {} if before is None else before.annotations)

    def _forget(self, one: Pod) -> None:
        """Takes a removed pod. Its claims stay until kubelet unprepares them."""
        del self._pods[one.uid]
        self._asked.pop(one, None)
        self._wrong.pop(one, None)
        self._changed.add(one)
        self._renamed = True

    def _read(self, one: Pod, before: Mapping[str, str]) -> None:
        """Parses the annotations of a pod that differ from `before`, or were not computable."""
        was, now = meanings(before, self._smallest), meanings(one.annotations, self._smallest)
        asked, wrong = self._asked.setdefault(one, {}), self._wrong.setdefault(one, {})
        for term in was.keys() - now.keys():
            asked.pop(term, None)
            wrong.pop(term, None)
        for term, (key, text, parse) in sorted(now.items()):
            is_known = term in asked or term in wrong
            if is_known and term in was and was[term][:2] == (key, text):
                continue
            wrong.pop(term, None)
            try:
                value = parse(text.strip())
            except Unknown:
                asked.pop(term, None)
            except ValueError as error:
                self._refuse(one, term, f"{key} cannot be {quoted(text)}; {error}")
            else:
                if self._is_claimed(one, term, value):
                    asked[term] = value
        self._compare(one)

    def _claim(self, one: Pod, terms: dict[str, int]) -> None:
        """Sets the terms that a pod has by claims."""
        self._claimed[one] = dict(terms)
        if not terms:
            del self._claimed[one]
        asked = self._asked.get(one, {})
        for term, value in list(asked.items()):
            if not self._is_claimed(one, term, value):
                del asked[term]
        self._compare(one)

    def _is_claimed(self, one: Pod, term: str, value: int) -> bool:
        """Whether a term is within the pod's claim; if not, refuses its annotation."""
        most = self._claimed.get(one, {}).get(term, 0)
        if term not in CLAIMED or not 0 < most < value:
            return True
        key, words = self._meant(one, term)[0], CLAIMED[term]
        self._refuse(one, term, f"{key} cannot be {words(value)}: {words(most)} are claimed")
        return False

    def _meant(self, one: Pod, term: str) -> tuple[str, str]:
        """The annotation of a term, and its text."""
        known = self._pods[one.uid]             # a Pod made from a claim has no annotations
        return meanings(known.annotations, self._smallest)[term][:2]

    def _wanted(self, one: Pod) -> dict[str, tuple[int, str]]:
        """The terms that a pod is to have, and what sets each."""
        known = self._pods.get(one.uid)
        by_class = priority(self._classes, *known.priority_class) if known else 0
        found = {"priority": (by_class, CLASS)} if by_class else {}
        for source, terms in ((CLAIM, self._claimed), (ANNOTATION, self._asked)):
            found |= {term: (value, source) for term, value in terms.get(one, {}).items()}
        return found

    def _compare(self, one: Pod) -> None:
        if self._wanted(one) != self._set.get(one, {}):
            self._changed.add(one)

    def _settle(self, daemon: Daemon) -> None:
        """Sends nvshared the names and terms that it lacks. Raises NvshareError without a reply."""
        if self._renamed:
            daemon.set_pods(
                (one.tenant.partition(":")[2], one.namespace, one.name, one.containers)
                for one in self._pods.values()
            )
            self._renamed = False
        while self._changed:
            one = next(iter(self._changed))
            held = self._set.setdefault(one, {})
            for term in sorted(held.keys() | self._wanted(one).keys()):
                # A refused value is wanted no longer: then the next source sets the term.
                while (wanted := self._wanted(one).get(term, NONE)) != held.get(term, NONE):
                    self._tell(daemon, one, term, *wanted)
            self._changed.remove(one)
            if not held:
                del self._set[one]
        if self._listed:
            self._clean(daemon)
            self._listed = False

    def _tell(self, daemon: Daemon, one: Pod, term: str, value: int, source: str) -> None:
        """Sets or, with the value 0, resets a term in nvshared."""
        held = self._set[one]
        try:
            daemon.set_tenant_terms(one.tenant, {term: value}, source)
            logger.info("%s: %s is %s now", one, term, value or "as it would be without us")
        except NotKept as error:
            logger.warning("%s: %s", one, error)
        except InvalidArgs as error:
            if source == ANNOTATION:
                key, text = self._meant(one, term)
                why = str(error).replace(one.tenant, f"pod {one}")
                self._refuse(one, term, f"{key} cannot be {quoted(text)}: {why}")
                before, its_source = held.get(term, NONE)
                if its_source == ANNOTATION:
                    self._asked[one][term] = before     # the earlier value stays
                else:
                    del self._asked[one][term]
                return
            self._refused = error
            self._complain(one, str(error))
            if source == CLAIM:
                del self._claimed[one][term]
                return
        held[term] = value, source
        if not value:
            del held[term]

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

        A status that could not be written is retried when the pod changes, or when all are listed:
        then the API server reports the status that the pod has.
        """
        for one in list(self._pods.values()):
            wrong = clipped(". ".join(sorted(self._wrong.get(one, {}).values())), MOST_IN_STATUS)
            if wrong != one.refused:
                self._pods[one.uid] = replace(one, refused=wrong)
                self._mark(one, wrong)


def quoted(text: str) -> str:
    """An annotation as a message quotes it: shortened, since events are limited in size."""
    return repr(text if len(text) <= MOST_QUOTED else f"{text[:MOST_QUOTED]}…")
