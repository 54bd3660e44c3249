# SPDX-License-Identifier: Apache-2.0
"""The terms (limits, weight, priority) that a pod's annotations set, and how values are parsed.

    nvshare.com/gpu-memory-limit: "4096"        MiB, or with a unit: 4Gi
    nvshare.com/gpu-core-limit: "60"            percent of the time
    nvshare.com/gpu-core-request: "30"
    nvshare.com/host-memory-limit: 32Gi         for what leaves the GPUs
    nvshare.com/priority: background
    nvshare.com/weight: "200"

With --foreign-annotations those of KAI's scheduler and of NVIDIA's GPU sharing set the memory
limit, too. Of several, the first one in this list counts, after nvshare.com/gpu-memory-limit:

    nvidia.com/container.NAME.gpu-memory.limit: 8Gi     the sum over the pod's containers
    nvidia.com/container.NAME.gpu-memory.request: 4Gi   of a container that has no such limit
    gpu-memory: "4096"                                  MiB
    gpu-fraction: "0.5"                                 of the memory of the node's smallest GPU
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from nvshared.kubelet.claims import quantity
from nvshared.kubelet.pod import CONTAINER, FRACTION, MEMORY, PREFIX
from nvshared.quantity import LARGEST, limit
from nvshared.quantity import priority as priority_named
from nvshared.units import MIB

LIMIT = "memory-limit"                  # the term that foreign annotations set
OF_CONTAINER = re.compile(
    rf"{re.escape(CONTAINER)}([a-z0-9-]+)\.gpu-memory\.(limit|request)", re.ASCII)
# PriorityClasses by name or by value, and the nvshare priority of each. The last match counts.
Classes = Sequence[tuple[str | range, int]]


class Unknown(Exception):
    """An annotation's value cannot be computed until nvshared has reported the GPUs' sizes."""


class Requested(NamedTuple):
    """The text that annotations give for one term (memory limit, weight, ...), not parsed yet."""

    key: str                            # name of the annotation, or of several, joined by " + "
    text: str
    parse: Callable[[str], int]         # raises ValueError, Unknown


def _whole(text: str) -> int:
    if re.fullmatch(r"[1-9]\d{0,8}", text, re.ASCII):
        return int(text)
    raise ValueError("give a whole number from 1")


def _memory(text: str) -> int:
    with suppress(ValueError):
        # Kubernetes' 4Gi is our 4GiB, its 4G our 4GB.
        return limit(f"{text}B") if text[-1:].isalpha() else _whole(text) * MIB
    raise ValueError("give a number of MiB, or a size such as 4Gi")


# For each annotation: the term that it sets, and the parser of its value.
MEANINGS: Mapping[str, tuple[str, Callable[[str], int]]] = {
    f"{PREFIX}gpu-memory-limit": (LIMIT, _memory),
    f"{PREFIX}gpu-core-limit": ("compute-limit", _whole),
    f"{PREFIX}gpu-core-request": ("compute-request", _whole),
    f"{PREFIX}host-memory-limit": ("host-memory-limit", _memory),
    f"{PREFIX}priority": ("priority", priority_named),
    f"{PREFIX}weight": ("weight", _whole),
}


def _nothing(_text: str) -> int:
    raise ValueError(f"it means nothing; there are {', '.join(MEANINGS)}")


def _mebibytes(text: str) -> int:
    with suppress(ValueError):
        return _whole(text) * MIB
    raise ValueError("give a whole number of MiB")


def _sum(text: str) -> int:
    with suppress(ValueError):
        sizes = [quantity(part.strip()) for part in text.split(" + ")]
        if min(sizes) >= MIB and sum(sizes) <= LARGEST:
            return sum(sizes)
    raise ValueError("give a size of at least 1Mi, such as 4Gi")


def _fraction(smallest: Callable[[], int], text: str) -> int:
    if not re.fullmatch(r"0?\.\d{1,9}", text, re.ASCII) or not float(text):
        raise ValueError("give a number between 0 and 1, such as 0.5")
    if memory := smallest():
        return max(MIB, int(float(text) * memory))
    raise Unknown


def meanings(
    annotations: Mapping[str, str], smallest: Callable[[], int] | None
) -> dict[str, Requested]:
    """The requested values by term. An unknown nvshare.com/ annotation is listed by its own name.

    `smallest` returns the bytes of the node's smallest GPU, 0 while unknown; None: annotations of
    other projects are ignored.
    """
    found = {}
    for key, text in annotations.items():
        if key.startswith(PREFIX):
            term, parse = MEANINGS.get(key, (key, _nothing))
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
