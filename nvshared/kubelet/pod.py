# SPDX-License-Identifier: Apache-2.0
"""The part of a pod's API object that nvshare-kubelet needs."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PREFIX = "nvshare.com/"
RESOURCE = f"{PREFIX}gpu"               # the extended resource; one is a share of a GPU
# Annotations of KAI's scheduler and of NVIDIA's GPU sharing: annotations.py.
FRACTION, MEMORY, CONTAINER = "gpu-fraction", "gpu-memory", "nvidia.com/container."
# Annotations of a static pod's mirror. The hash names the pod's cgroup. Only a hash is accepted: an
# API server's UID there would give the pod the tenant of another pod.
STATIC, MIRROR = "kubernetes.io/config.hash", "kubernetes.io/config.mirror"
HASH = re.compile(r"[0-9a-f]{32}", re.ASCII)
# A condition in the pod's status: why annotations were refused.
CONDITION = f"{PREFIX}AnnotationRefused"
STATUSES = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod of this node."""

    namespace: str
    name: str
    uid: str                            # the API server's
    tenant: str                         # its name in nvshared: pod:UID, or pod:HASH if static
    created: str = field(default="", compare=False)
    annotations: Mapping[str, str] = field(default_factory=dict, compare=False)     # with a meaning
    containers: Mapping[str, str] = field(default_factory=dict, compare=False)      # names by id
    static: str = field(default="", compare=False)      # kubelet's id of a static pod
    wanting: frozenset[str] = field(default=frozenset(), compare=False)     # that request shares
    refused: str = field(default="", compare=False)     # the message of its condition
    priority_class: tuple[str, int] = field(default=("", 0), compare=False)     # name and value

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


Claimed = Mapping[Pod, dict[str, int]]  # terms that pods have by claims


def pod(api_object: Mapping[str, Any]) -> Pod:
    """Makes a Pod from an API object. Raises KeyError, TypeError, AttributeError if malformed."""
    meta = api_object["metadata"]
    status, spec = api_object.get("status") or {}, api_object.get("spec") or {}
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
    """The text, cut to at most `most` bytes in UTF-8."""
    taken = text.encode()
    return text if len(taken) <= most else taken[:most - 3].decode(errors="ignore") + "…"
