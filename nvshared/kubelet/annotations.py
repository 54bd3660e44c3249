# SPDX-License-Identifier: Apache-2.0
"""The annotations of this node's pods, which are set as terms of their tenants, live.

    nvshare.com/gpu-memory-limit: "4096"        MiB, or with a unit: 4Gi
    nvshare.com/gpu-core-limit: "60"            percent of the time
    nvshare.com/weight: "200"

nvshared says what it takes. What makes no sense is refused, and what held goes on to hold: an event
of the pod says why. An annotation that is taken away is a term that is taken back, and all are when
the pod is gone. Nobody else's terms are touched.
"""

import logging
import queue
import re
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from nvshared.control import Daemon
from nvshared.errors import InvalidArgs, NotKept, NvshareError
from nvshared.quantity import limit
from nvshared.units import MIB

logger = logging.getLogger(__name__)

PREFIX = "nvshare.com/"
# Of a static pod's mirror: what the control group is named after. A pod that has an identifier of
# the API server's there would set the terms of another one.
STATIC, MIRROR = "kubernetes.io/config.hash", "kubernetes.io/config.mirror"
HASH = re.compile(r"[0-9a-f]{32}", re.ASCII)
PATIENCE = 5.0                          # seconds for nvshared's answer
PERIOD = 2.0                            # until it is asked again


def _whole(text: str) -> int:
    if re.fullmatch(r"[1-9]\d{0,8}", text, re.ASCII):
        return int(text)
    raise ValueError("give a whole number from 1")


def _memory(text: str) -> int:
    with suppress(ValueError):
        # Kubernetes' 4Gi is our 4GiB, its 4G our 4GB.
        return _whole(text) * MIB if text.isdecimal() else limit(f"{text}B")
    raise ValueError("give a number of MiB, or a size such as 4Gi")


# The term that each sets, and how its text is read.
MEANINGS: Mapping[str, tuple[str, Callable[[str], int]]] = {
    f"{PREFIX}gpu-memory-limit": ("memory", _memory),
    f"{PREFIX}gpu-core-limit": ("compute-limit", _whole),
    f"{PREFIX}weight": ("weight", _whole),
}


@dataclass(frozen=True, slots=True)
class Pod:
    """One of this node's."""

    namespace: str
    name: str
    uid: str                            # by which the API server knows it
    tenant: str                         # and nvshared

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def pod(meta: Mapping[str, Any]) -> tuple[Pod, dict[str, str]]:
    """From its metadata; with our annotations."""
    every = meta.get("annotations") or {}
    ours = {key: text for key, text in every.items() if key.startswith(PREFIX)}
    uid, named = meta["uid"], every.get(STATIC, "")
    static = named == every.get(MIRROR) and HASH.fullmatch(named)
    return Pod(meta["namespace"], meta["name"], uid, f"pod:{named if static else uid}"), ours


class Terms:
    """What pods ask for, and what of it nvshared has been told. A thread tells it."""

    def __init__(self, bus: str, complain: Callable[[Pod, str], None]) -> None:
        self._bus = bus
        self._complain = complain
        self._news: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._texts: dict[Pod, dict[str, str]] = {}     # annotations as they were last seen
        self._untold: dict[Pod, dict[str, int]] = {}    # terms; 0 is one that is taken back
        self._set: dict[Pod, dict[str, int]] = {}       # as nvshared has them from us
        self._there: set[str] | None = None             # tenants, where others may have left terms
        threading.Thread(target=self._run, name="annotations", daemon=True).start()

    def hear(self, news: str, what: Any = None) -> None:
        """What the API server says of pods; or AGAIN: nvshared is back, and may know nothing."""
        self._news.put((news, what))

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
                except NvshareError as error:
                    if trouble != (trouble := str(error)):
                        logger.warning("annotations of pods have to wait: %s", error)

    @property
    def _is_behind(self) -> bool:
        return bool(self._untold) or self._there is not None

    def _learn(self, news: str, what: Any) -> None:
        if news == "LISTED":
            there = dict(map(pod, what))
            gone = set(self._texts.keys() - there.keys())
            self._there = {one.tenant for one in there}
        elif news == "AGAIN":
            for one, terms in self._set.items():
                self._untold[one] = terms | self._untold.get(one, {})
            return
        else:
            there = dict([pod(what)])
            gone = set(there) if news == "DELETED" else set()
        for one, texts in there.items():
            self._read(one, {} if one in gone else texts)
        for one in list(gone):
            self._read(one, {})
            del self._texts[one]

    def _read(self, one: Pod, texts: dict[str, str]) -> None:
        """What is new in a pod's annotations."""
        before = self._texts.get(one, {})
        self._texts[one] = texts
        for key in sorted(before.keys() | texts.keys()):
            if texts.get(key) == before.get(key):
                continue
            term, parse = MEANINGS.get(key, ("", _whole))
            try:
                if key not in texts:
                    value = 0
                elif not term:
                    raise ValueError(f"it means nothing; there are {', '.join(MEANINGS)}")
                else:
                    value = parse(texts[key].strip())
            except ValueError as wrong:
                self._refuse(one, f"{key} cannot be {texts[key]!r}; {wrong}")
            else:
                if term:
                    self._untold.setdefault(one, {})[term] = value

    def _settle(self, daemon: Daemon) -> None:
        """Tells nvshared what it does not know yet. Raises NvshareError if it does not answer."""
        for one in list(self._untold):
            held = self._set.setdefault(one, {})
            for term, value in list(self._untold[one].items()):
                if value or term in held:
                    self._tell(daemon, one, term, value)
                del self._untold[one][term]
            del self._untold[one]
            if not held:
                del self._set[one]
        if self._there is not None:
            self._clean(daemon, self._there)
            self._there = None

    def _tell(self, daemon: Daemon, one: Pod, term: str, value: int) -> None:
        try:
            daemon.set_tenant_terms(one.tenant, {term: value})
        except NotKept as error:
            logger.warning("%s: %s", one, error)
        except InvalidArgs as error:
            self._refuse(one, str(error))
            return
        else:
            logger.info("%s: %s is %s now", one, term, value or "as it would be without us")
        if value:
            self._set[one][term] = value
        else:
            del self._set[one][term]

    def _clean(self, daemon: Daemon, there: set[str]) -> None:
        """Takes back what pods left that went while nobody looked."""
        for tenant in daemon.tenants():
            by_hand = {term.name: 0 for term in tenant.terms if not term.rule}
            if by_hand and not tenant.programs and tenant.name not in there and (
                    tenant.name.startswith("pod:")):
                daemon.set_tenant_terms(tenant.name, by_hand)

    def _refuse(self, one: Pod, why: str) -> None:
        logger.warning("%s: %s", one, why)
        self._complain(one, why)
