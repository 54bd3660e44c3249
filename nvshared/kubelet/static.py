# SPDX-License-Identifier: Apache-2.0
"""Finds static pods that run without the GPU share that they request, for nvshare's doctor.

    /var/lib/nvshare-kubelet/without-gpu.json
    [[what is wrong with a pod, what to do], ...]

If kubelet starts a static pod before our resource is registered, the pod gets no share, and kubelet
reports no error: static pods bypass Kubernetes' scheduler, which would have checked.
"""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nvshared.errors import NvshareError
from nvshared.kubelet.container import replace
from nvshared.kubelet.pod import RESOURCE, Pod
from nvshared.names import WITHOUT_GPU

logger = logging.getLogger(__name__)

REASON = "StartedWithoutGPU"
ADVICE = "move the static pod's file out of kubelet's folder and back, or use a DaemonSet"


class StaticPods:
    """The static pods of this node without their share."""

    def __init__(self, state: Path, holders: Callable[[], set[tuple[str, str]]]) -> None:
        """`holders` returns pods (kubelet's UID) and names of containers that have a share."""
        self._path = state / WITHOUT_GPU
        self._holders = holders
        self._without: dict[Pod, str] = {}      # problems that were reported, by pod

    def hear(self, news: str, what: Any) -> list[tuple[Pod, str]]:
        """Takes news of pods from the API server. Returns pods newly without a share, and why.

        While kubelet's checkpoint file cannot be read, none are found: nvshare-kubelet then offers
        no shares, and reports why.
        """
        if news == "LISTED":
            there = set(what)
            self._without = {one: why for one, why in self._without.items() if one in there}
        elif news == "DELETED":
            self._without.pop(what, None)
        said = []
        for one in what if news == "LISTED" else [what] if news != "DELETED" else []:
            if one.static and one not in self._without and (lacking := self._lacking(one)):
                self._without[one] = (
                    f"{', '.join(sorted(lacking))} started without {RESOURCE} and shares no GPU: "
                    "kubelet did not know of it yet")
                said.append((one, self._without[one]))
        try:
            found = sorted([f"{one}: {why}", ADVICE] for one, why in self._without.items())
            replace(self._path, json.dumps(found).encode())
        except OSError as error:
            logger.warning("%s is not written: %s", self._path, error.strerror)
        return said

    def _lacking(self, one: Pod) -> frozenset[str]:
        started = one.wanting.intersection(one.containers.values())
        try:
            has = {name for uid, name in self._holders() if uid == one.static} if started else set()
        except NvshareError:
            return frozenset()
        return started - has
