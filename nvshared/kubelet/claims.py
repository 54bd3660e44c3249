# SPDX-License-Identifier: Apache-2.0
"""Pods, and DRA claims: shares of GPUs that Kubernetes has allocated to pods, with their terms.

A pod's terms are the same on each of its GPUs: capacity that its claims consume of one GPU is added
up, and the sum must be equal on each. Pods that use one claim get equal parts of its capacity."""

import logging
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, Decimal
from itertools import islice
from pathlib import Path
from typing import Any

from nvshared.errors import InvalidArgs, NvshareError
from nvshared.kept import NOISE, Complain, KeptFile
from nvshared.quantity import priority, weight
from nvshared.terms import TERMS

logger = logging.getLogger(__name__)

PREFIX = "nvshare.com/"
RESOURCE = f"{PREFIX}gpu"               # the extended resource; one unit is one share of a GPU
# Annotations of KAI's scheduler and of NVIDIA's GPU sharing: see docs/kubernetes.md.
FRACTION, MEMORY, CONTAINER = "gpu-fraction", "gpu-memory", "nvidia.com/container."
OF_CONTAINER = re.compile(
    rf"{re.escape(CONTAINER)}([a-z0-9-]+)\.gpu-memory\.(limit|request)", re.ASCII)
# What is kept of a pod is bounded, since whoever may create pods chooses it.
MOST_NOTES = 4096                       # bytes of annotations, keys and values
LONGEST_NOTE = 64                       # characters of a value; no valid one is as long
MOST_NAMES = 128                        # containers, and claims, of a pod
LONGEST_REFUSAL = 8192                  # characters of our condition's message
# Annotations of a static pod's mirror. Only a hash is accepted: a UID would name another tenant.
STATIC, MIRROR = "kubernetes.io/config.hash", "kubernetes.io/config.mirror"
HASH = re.compile(r"[0-9a-f]{32}", re.ASCII)
# A condition in the pod's status: why annotations were refused.
REFUSED_CONDITION = f"{PREFIX}AnnotationRefused"
# Our annotations, after PREFIX; annotations.py parses them.
NOTES = frozenset(term.annotation for term in TERMS.values() if term.annotation)
STATUSES = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")
FILE = "claims.json"
DRIVER = "gpu.nvshare.com"
# For each capacity of a device, the term that is set to the amount that a claim consumes.
CAPACITIES = {"memory": "memory-limit", "compute": "compute-limit"}
QUANTITY = re.compile(
    r"(\d{1,19}(?:\.\d{1,19})?)([numkMGTPE]|[KMGTPE]i|[eE][-+]?\d{1,2})?", re.ASCII)
PARAMETERS: Mapping[str, Callable[[str], int]] = {"weight": weight, "priority": priority}
METADATA = ("namespace", "name", "uid", "ownerReferences")
DECIMAL, BINARY = "num kMGTPE", " KMGTPE"     # prefixes from 1000 ** -3, and from 1024 ** 0


@dataclass(frozen=True, slots=True)
class Pod:
    namespace: str
    name: str
    uid: str                            # UID at the API server
    tenant: str                         # the pod's tenant in nvshared: pod:UID; if static, pod:HASH
    created: str = field(default="", compare=False)
    annotations: Mapping[str, str] = field(default_factory=dict, compare=False)     # keys used here
    containers: Mapping[str, str] = field(default_factory=dict, compare=False)      # names by id
    static: str = field(default="", compare=False)      # a static pod's hash; "": not static
    # Names of the containers that request shares.
    requesting: frozenset[str] = field(default=frozenset(), compare=False)
    refused: str = field(default="", compare=False)     # message of REFUSED_CONDITION
    priority_class: tuple[str, int] = field(default=("", 0), compare=False)     # name and value
    unread: int = field(default=0, compare=False)       # annotations beyond MOST_NOTES
    claims: frozenset[str] = field(default=frozenset(), compare=False)  # claims that it names
    is_admitted: bool = field(default=True, compare=False)      # kubelet has acknowledged it
    is_ended: bool = field(default=False, compare=False)        # it has succeeded or failed

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


Claimed = Mapping[Pod, dict[str, int]]  # for each pod the terms that its claims set


def pod(api_object: Mapping[str, Any], *, foreign: bool = False) -> Pod:
    """Makes a Pod from an API object. `foreign`: with annotations of other software.

    Raises KeyError, TypeError, AttributeError if the object is malformed."""
    meta = api_object["metadata"]
    status, spec = api_object.get("status") or {}, api_object.get("spec") or {}
    every = meta.get("annotations") or {}
    uid, named = meta["uid"], every.get(STATIC, "")
    static = named if named == every.get(MIRROR) and HASH.fullmatch(named) else ""
    kept, unread = _notes(every, foreign=foreign)
    containers = (
        (id, one["name"]) for kind in STATUSES for one in status.get(kind) or ()
        if (id := one.get("containerID", "").partition("://")[2]))
    requesting = (
        one["name"] for kind in ("containers", "initContainers") for one in spec.get(kind) or ()
        if str(((one.get("resources") or {}).get("limits") or {}).get(RESOURCE, 0)) != "0")
    claims = (
        name for one in spec.get("resourceClaims") or () if (name := one.get("resourceClaimName")))
    return Pod(
        meta["namespace"], meta["name"], uid, f"pod:{static or uid}",
        meta.get("creationTimestamp") or "", kept, dict(islice(containers, MOST_NAMES)), static,
        frozenset(islice(requesting, MOST_NAMES)),
        "".join(
            one.get("message", "") for one in status.get("conditions") or ()
            if one["type"] == REFUSED_CONDITION and one["status"] == "True")[:LONGEST_REFUSAL],
        (spec.get("priorityClassName") or "", spec.get("priority") or 0),
        unread, frozenset(islice(claims, MOST_NAMES)), bool(status.get("startTime")),
        status.get("phase") in ("Succeeded", "Failed"))


def _notes(every: Mapping[str, str], *, foreign: bool) -> tuple[dict[str, str], int]:
    """The annotations that set terms, within MOST_NOTES; and how many more there are."""
    ours = sorted(key for key in every if key.startswith(PREFIX))
    known = [key for key in ours if key.removeprefix(PREFIX) in NOTES]
    others = sorted(
        key for key in every if key in (FRACTION, MEMORY) or OF_CONTAINER.fullmatch(key))
    kept: dict[str, str] = {}
    size = 0
    wanted = dict.fromkeys((*known, *(others if foreign else ()), *ours))
    for key in wanted:
        text = every[key]
        text = text if len(text) <= LONGEST_NOTE else f"{text[:LONGEST_NOTE]}…"
        size += len(key.encode()) + len(text.encode())
        if size > MOST_NOTES:
            break
        kept[key] = text
    return kept, len(wanted) - len(kept)


def clipped(text: str, most: int) -> str:
    """The text, cut to at most `most` bytes in UTF-8."""
    taken = text.encode()
    return text if len(taken) <= most else taken[:most - 3].decode(errors="ignore") + "…"


@dataclass(frozen=True, slots=True)
class ClaimShare:
    request: str
    pool: str
    device: str
    id: str                             # id of the share; "": the claim has the whole device
    consumed: Mapping[str, int]         # values by term, from the consumed capacity
    given: Mapping[str, int]            # values by term, from opaque parameters


@dataclass(frozen=True, slots=True)
class Claim:
    namespace: str
    name: str
    uid: str
    pods: tuple[Pod, ...]               # pods for which the claim is reserved
    is_shareable: bool                  # whether the claim may be reserved for further pods later
    shares: tuple[ClaimShare, ...]
    api_object: Any = field(compare=False)    # the parts of the API object that read() needs

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def uids(self) -> list[str]:
        return [pod.uid for pod in self.pods]

    def without(self, gone: Collection[str]) -> "Claim":
        pods = [one for one in self.api_object["status"]["reservedFor"] if one["uid"] not in gone]
        return read(self.api_object | {"status": self.api_object["status"] | {"reservedFor": pods}})


def quantity(text: str) -> int:
    """Parses a Kubernetes quantity, rounded up: 12Gi, 50, 1500m. Raises ValueError."""
    found = QUANTITY.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no quantity")
    number, unit = Decimal(found[1]), found[2] or ""
    if unit.endswith("i"):
        number *= 1024 ** BINARY.index(unit[0])
    elif len(unit) > 1:
        number *= Decimal(10) ** int(unit[1:])
    elif unit:
        number *= Decimal(1000) ** (DECIMAL.index(unit) - DECIMAL.index(" "))
    return int(number.to_integral_value(ROUND_CEILING))


def read(api_object: Mapping[str, Any]) -> Claim:
    """Makes a Claim from the API server's object. Raises InvalidArgs."""
    meta = api_object["metadata"]
    name = f"{meta['namespace']}/{meta['name']}"
    status = api_object.get("status") or {}
    devices = (status.get("allocation") or {}).get("devices") or {}
    try:
        shares = tuple(
            _share(result, devices.get("config") or ())
            for result in devices.get("results") or () if result["driver"] == DRIVER)
    except ValueError as wrong:
        raise InvalidArgs(f"claim {name}: {wrong}") from wrong
    if not shares:
        raise InvalidArgs(f"claim {name} has nothing of {DRIVER}")
    return Claim(
        meta["namespace"], meta["name"], meta["uid"],
        tuple(
            Pod(meta["namespace"], one["name"], one["uid"], f"pod:{one['uid']}")
            for one in status.get("reservedFor") or () if one["resource"] == "pods"),
        not any(one["kind"] == "Pod" for one in meta.get("ownerReferences") or ()),
        shares,
        {"metadata": {key: meta.get(key) for key in METADATA}, "status": _needed(status)})


def _needed(status: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of a claim's status that read() needs: the rest may have hundreds of kilobytes."""
    devices = status["allocation"]["devices"]
    results = [
        {key: one[key] for key in ("request", "driver", "pool", "device", "shareID") if key in one}
        | {"consumedCapacity": {
            name: text for name, text in (one.get("consumedCapacity") or {}).items()
            if name.removeprefix(f"{DRIVER}/") in CAPACITIES}}
        for one in devices["results"] if one["driver"] == DRIVER]
    config = [{key: one[key] for key in ("requests", "opaque") if key in one}
              for one in devices.get("config") or ()
              if (one.get("opaque") or {}).get("driver") == DRIVER]
    pods = [{key: one[key] for key in ("resource", "name", "uid")}
            for one in status.get("reservedFor") or () if one["resource"] == "pods"]
    return {
        "allocation": {"devices": {"results": results, "config": config}}, "reservedFor": pods}


def _share(result: Mapping[str, Any], configs: Iterable[Mapping[str, Any]]) -> ClaimShare:
    request = result["request"]
    given: dict[str, int] = {}
    for config in configs:              # the claim's follow the class's and override
        opaque = config.get("opaque") or {}
        requests = config.get("requests") or ()
        if opaque.get("driver") == DRIVER and (
                not requests or {request, request.partition("/")[0]} & set(requests)):
            given |= parameters(opaque.get("parameters"))
    consumed = {
        term: value for name, text in (result.get("consumedCapacity") or {}).items()
        if (term := CAPACITIES.get(name.removeprefix(f"{DRIVER}/"))) and (value := quantity(text))}
    return ClaimShare(
        request, result["pool"], result["device"], result.get("shareID") or "", consumed, given)


def parameters(values: Any) -> dict[str, int]:
    """Parses the opaque parameters of a claim or device class into terms. Raises ValueError."""
    if not isinstance(values, dict):
        raise ValueError(f"its parameters are no object: {values!r}")
    found = {}
    for name, value in values.items():
        if name not in PARAMETERS:
            raise ValueError(f"there is no parameter {name!r}; there are {', '.join(PARAMETERS)}")
        try:
            found[name] = PARAMETERS[name](str(value))
        except ValueError as wrong:
            raise ValueError(f"its {name} cannot be {value!r}; {wrong}") from None
    return found


def terms(claims: Iterable[Claim], *, strictly: bool = True) -> dict[str, int]:
    """The terms of a pod with these claims. `strictly`: raises InvalidArgs for contradictions."""
    by_card: dict[str, dict[str, int]] = defaultdict(dict)
    found: dict[str, int] = {}
    for claim in claims:
        for share in claim.shares:
            amounts = by_card[share.device]
            for term, value in share.consumed.items():
                part = max(1, value // len(claim.pods))
                amounts[term] = amounts.get(term, 0) + part
            for term, value in share.given.items():
                if found.setdefault(term, value) != value and strictly:
                    raise InvalidArgs(
                        f"claim {claim}: its pod was to have a {term} of {found[term]} and of "
                        f"{value}", "a pod has one for all its GPUs")
    for term in CAPACITIES.values():
        values = {amounts.get(term, 0) for amounts in by_card.values()} or {0}
        if len(values) > 1 and strictly:
            raise InvalidArgs(
                f"a pod was to have a {term} of {' and of '.join(map(str, sorted(values)))} on "
                "different GPUs", "give it the same on each, or use several pods")
        if value := max(values):
            found[term] = value
    return found


class Prepared:
    """The prepared claims, kept in a file. Thread-safe."""

    def __init__(self, state: Path) -> None:
        self._file = KeptFile(state / FILE, version=None)
        self._lock = threading.Lock()
        # By UID. What is not understood is not missed for long: nvshared has the terms, and kubelet
        # prepares claims again for new containers.
        found, again = self._file.load(_prepared)
        self._claims = found or {}
        if again:
            with suppress(OSError):     # it is put aside, so nothing is lost
                self._write(self._claims)

    def _write(self, claims: Mapping[str, Claim]) -> None:
        self._file.replace([one.api_object for one in claims.values()])

    def claims(self) -> list[Claim]:
        with self._lock:
            return list(self._claims.values())

    def terms(self, pods: Iterable[Pod], *, strictly: bool = False) -> Claimed:
        """For each of these pods, terms() of all its prepared claims."""
        claims = self.claims()
        return {
            pod: terms((one for one in claims if pod.uid in one.uids), strictly=strictly)
            for pod in pods}

    def devices(self, claim: Claim) -> set[str]:
        """The devices that the claim's pods get by this claim or any prepared claim."""
        return {
            share.device for one in (*self.claims(), claim) for share in one.shares
            if set(one.pods) & set(claim.pods)}

    def change(self, uid: str, claim: Claim | None) -> set[Pod]:
        """Replaces a claim; None: removes it. Returns old and new pods. Raises NvshareError."""
        with self._lock:
            before, claims = self._claims.get(uid), dict(self._claims)
            if claim is not None:
                claims[uid] = claim
            elif before is not None:
                del claims[uid]
            try:
                self._write(claims)
            except OSError as error:
                failure = NvshareError(
                    f"cannot write to {self._file.path}: {error.strerror or error}")
                now, earlier = (one.pods if one else () for one in (claim, before))
                if not set(now) <= set(earlier):
                    raise failure from error
                # Until its claims are unprepared, kubelet keeps a pod, and volumes of the pod may
                # have filled the disk. After a restart, pods that are gone lose their claims.
                logger.warning("claims that have ended stay in the file: %s", failure)
            self._claims = claims
            return {pod for one in (before, claim) if one is not None for pod in one.pods}


def _prepared(entries: Any, wrong: Complain) -> dict[str, Claim]:
    if not isinstance(entries, list):
        raise ValueError("it is no list of claims")
    found: dict[str, Claim] = {}
    for number, entry in enumerate(entries, 1):
        try:
            claim = read(entry)
            if claim.uid in found:
                raise ValueError("a second one with its UID")
            found[claim.uid] = claim
        except (NvshareError, *NOISE) as error:
            wrong(f"claim {number}: {error!r:.299}")
    return found
