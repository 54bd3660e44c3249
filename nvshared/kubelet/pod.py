# SPDX-License-Identifier: Apache-2.0
"""What we need to know of a pod, from all that the API server says."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PREFIX = "nvshare.com/"
RESOURCE = f"{PREFIX}gpu"               # a share
# Annotations of KAI's scheduler and of NVIDIA's GPU sharing: meanings.py.
FRACTION, MEMORY, CONTAINER = "gpu-fraction", "gpu-memory", "nvidia.com/container."
# Of a static pod's mirror: what the control group is named after. A pod that has an identifier of
# the API server's there would set the terms of another one.
STATIC, MIRROR = "kubernetes.io/config.hash", "kubernetes.io/config.mirror"
HASH = re.compile(r"[0-9a-f]{32}", re.ASCII)
# A condition of its status: what is wrong with our annotations.
CONDITION = f"{PREFIX}AnnotationRefused"
STATUSES = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")


@dataclass(frozen=True, slots=True)
class Pod:
    """One of this node's."""

    namespace: str
    name: str
    uid: str                            # by which the API server knows it
    tenant: str                         # and nvshared
    created: str = field(default="", compare=False)
    annotations: Mapping[str, str] = field(default_factory=dict, compare=False)     # that may count
    containers: Mapping[str, str] = field(default_factory=dict, compare=False)      # names by id
    static: str = field(default="", compare=False)      # by which kubelet knows a static pod
    wanting: frozenset[str] = field(default=frozenset(), compare=False)     # containers, of a share
    refused: str = field(default="", compare=False)     # what its status says is wrong
    priority_class: tuple[str, int] = field(default=("", 0), compare=False)     # name and value

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


Claimed = Mapping[Pod, dict[str, int]]  # terms that claims give


def pod(said: Mapping[str, Any]) -> Pod:
    """From the API server's object. Raises KeyError, TypeError, AttributeError if it is none."""
    meta, status, spec = said["metadata"], said.get("status") or {}, said.get("spec") or {}
    every = meta.get("annotations") or {}
    uid, named = meta["uid"], every.get(STATIC, "")
    static = named if named == every.get(MIRROR) and HASH.fullmatch(named) else ""
    return Pod(
        meta["namespace"], meta["name"], uid, f"pod:{static or uid}",
        meta.get("creationTimestamp") or "",
        {key: text for key, text in every.items()
         if key.startswith((PREFIX, CONTAINER)) or key in (FRACTION, MEMORY)},
        {
            id: one["name"] for kind in STATUSES for one in status.get(kind) or ()
            if (id := one.get("containerID", "").partition("://")[2])
        },
        static,
        frozenset(
            one["name"] for kind in ("containers", "initContainers")
            for one in spec.get(kind) or ()
            if str(((one.get("resources") or {}).get("limits") or {}).get(RESOURCE, 0)) != "0"
        ),
        "".join(
            one.get("message", "") for one in status.get("conditions") or ()
            if one["type"] == CONDITION and one["status"] == "True"
        ),
        (spec.get("priorityClassName") or "", spec.get("priority") or 0),
    )


def clipped(text: str, most: int) -> str:
    """At most so many bytes of it, in UTF-8."""
    taken = text.encode()
    return text if len(taken) <= most else taken[:most - 3].decode(errors="ignore") + "…"
