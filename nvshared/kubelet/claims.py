# SPDX-License-Identifier: Apache-2.0
"""Claims of DRA: what Kubernetes has allocated of our cards, and the terms that a pod gets by it.

    status:
      allocation:
        devices:
          results: [{driver: gpu.nvshare.com, pool: NODE, device: gpu-…, request: gpu,
                     consumedCapacity: {memory: 12Gi, compute: "50", clients: "1"}}]
          config: [{opaque: {driver: gpu.nvshare.com, parameters: {weight: 200}}}]
      reservedFor: [{resource: pods, name: train, uid: …}]

A pod is a tenant, whose terms are the same on each card and hold for all its containers together.
So what its claims consume of one card is added up, and must be the same on each of several cards.
Pods that use one claim have equal parts of it. What was not asked for is not limited.
"""

import json
import logging
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from pathlib import Path
from typing import Any

from nvshared.errors import InvalidArgs, NvshareError
from nvshared.kubelet.container import replace
from nvshared.kubelet.pod import Claimed, Pod
from nvshared.quantity import priority, weight

DRIVER = "gpu.nvshare.com"
# Of what is consumed, the term that it is.
TERMS = {"memory": "memory-limit", "compute": "compute-limit"}
QUANTITY = re.compile(
    r"(\d{1,19}(?:\.\d{1,19})?)([numkMGTPE]|[KMGTPE]i|[eE][-+]?\d{1,2})?", re.ASCII)
DECIMAL, BINARY = "num kMGTPE", " KMGTPE"     # powers of 1000 and of 1024


@dataclass(frozen=True, slots=True)
class Share:
    """Of one card, for one request of a claim."""

    request: str
    pool: str
    device: str
    id: str                             # "" where the device is not for several

    consumed: tuple[tuple[str, int], ...]       # terms
    given: tuple[tuple[str, int], ...]          # terms, by opaque parameters


@dataclass(frozen=True, slots=True)
class Claim:
    """One that Kubernetes has allocated, as far as it is ours."""

    namespace: str
    name: str
    uid: str
    pods: tuple[tuple[str, str], ...]   # names and UIDs of those that may use it
    is_shareable: bool                  # pods may come that use it, too
    shares: tuple[Share, ...]

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def uids(self) -> list[str]:
        """Of its pods."""
        return [uid for _, uid in self.pods]


def device(uuid: str) -> str:
    """What a card is called in a ResourceSlice."""
    return uuid.lower()


def quantity(text: str) -> int:
    """Kubernetes' way to write a number, rounded up: 12Gi, 50, 1500m. Raises ValueError."""
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


def read(said: Mapping[str, Any]) -> Claim:
    """From the API server's object. Raises InvalidArgs."""
    meta = said["metadata"]
    called = f"{meta['namespace']}/{meta['name']}"
    status = said.get("status") or {}
    devices = (status.get("allocation") or {}).get("devices") or {}
    try:
        shares = tuple(
            _share(result, devices.get("config") or ())
            for result in devices.get("results") or () if result["driver"] == DRIVER
        )
    except ValueError as wrong:
        raise InvalidArgs(f"claim {called}: {wrong}") from wrong
    if not shares:
        raise InvalidArgs(f"claim {called} has nothing of {DRIVER}")
    return Claim(
        meta["namespace"], meta["name"], meta["uid"],
        tuple(
            (one["name"], one["uid"]) for one in status.get("reservedFor") or ()
            if one["resource"] == "pods"
        ),
        not any(one["kind"] == "Pod" for one in meta.get("ownerReferences") or ()),
        shares,
    )


def _share(result: Mapping[str, Any], configs: Iterable[Mapping[str, Any]]) -> Share:
    request = result["request"]
    given: dict[str, int] = {}
    for config in configs:              # those of the class first, and then the claim's own
        opaque = config.get("opaque") or {}
        for_whom = config.get("requests") or ()
        if opaque.get("driver") == DRIVER and (
                not for_whom or {request, request.partition("/")[0]} & set(for_whom)):
            given |= parameters(opaque.get("parameters"))
    consumed = {}
    for name, text in (result.get("consumedCapacity") or {}).items():
        term = TERMS.get(name.removeprefix(f"{DRIVER}/"))
        if term and (value := quantity(text)):
            consumed[term] = value
    return Share(
        request, result["pool"], result["device"], result.get("shareID") or "",
        tuple(consumed.items()), tuple(given.items()),
    )


def _weight(value: Any) -> int:
    if type(value) in (int, str):
        return weight(str(value))
    raise ValueError("give a whole number")


PARAMETERS: Mapping[str, Callable[[Any], int]] = {
    "weight": _weight, "priority": lambda value: priority(str(value))}


def parameters(said: Any) -> dict[str, int]:
    """Terms, of what a claim or a class says for us. Raises ValueError."""
    if not isinstance(said, dict):
        raise ValueError(f"its parameters are no object: {said!r}")
    found = {}
    for name, value in said.items():
        if name not in PARAMETERS:
            raise ValueError(f"there is no parameter {name!r}; there are {', '.join(PARAMETERS)}")
        try:
            found[name] = PARAMETERS[name](value)
        except ValueError as wrong:
            raise ValueError(f"its {name} cannot be {value!r}; {wrong}") from None
    return found


def terms(claims: Iterable[Claim], *, strictly: bool = True) -> dict[str, int]:
    """Of a pod that has all of these. Raises InvalidArgs where they do not go together, if
    `strictly`; they may not while they are taken away one by one."""
    by_card: dict[str, dict[str, int]] = defaultdict(dict)
    found: dict[str, int] = {}
    for claim in claims:
        for share in claim.shares:
            here = by_card[share.device]
            for term, value in share.consumed:
                part = max(1, value // len(claim.pods))
                here[term] = here.get(term, 0) + part
            for term, value in share.given:
                if found.setdefault(term, value) != value and strictly:
                    raise InvalidArgs(
                        f"claim {claim}: its pod was to have a {term} of {found[term]} and of "
                        f"{value}", "a pod has one for all its GPUs")
    for term in TERMS.values():
        values = {here.get(term, 0) for here in by_card.values()} or {0}
        if len(values) > 1 and strictly:
            raise InvalidArgs(
                f"a pod was to have a {term} of {' and of '.join(map(str, sorted(values)))} on "
                "different GPUs", "give it the same on each, or use several pods")
        if value := max(values):
            found[term] = value
    return found


logger = logging.getLogger(__name__)

FILE = "claims.json"


class Prepared:
    """Several threads may use it."""

    def __init__(self, state: Path) -> None:
        self._path = state / FILE
        self._lock = threading.Lock()
        self._said: dict[str, Any] = {}         # by the claims' UIDs
        try:
            for said in json.loads(self._path.read_text()):
                self._said[read(said).uid] = said
        except FileNotFoundError:
            return
        except (OSError, NvshareError, ValueError, KeyError, TypeError, AttributeError) as error:
            # Terms hold on in nvshared; kubelet asks for what a container needs that starts.
            logger.warning("%s is not used: %s", self._path, error)

    def claims(self) -> list[Claim]:
        """All of them."""
        with self._lock:
            return [read(said) for said in self._said.values()]

    def terms(self, *news: Claim, without: str = "", strictly: bool = False) -> Claimed:
        """For each pod of these claims, before and now, what all its claims give it; for all pods
        if there are no news.

        `without`: the UID of a claim that is let go of. Raises InvalidArgs where claims do not go
        together, if `strictly`.
        """
        before = {claim.uid: claim for claim in self.claims()}
        now = before | {claim.uid: claim for claim in news}
        concerned = {*(claim.uid for claim in news), without} - {""} or set(now)
        now.pop(without, None)
        pods = {
            Pod(claim.namespace, name, uid, f"pod:{uid}")
            for claims in (before, now) for key, claim in claims.items() if key in concerned
            for name, uid in claim.pods
        }
        return {
            pod: terms(
                (claim for claim in now.values() if pod.uid in claim.uids), strictly=strictly)
            for pod in pods
        }

    def devices(self, claim: Claim) -> set[str]:
        """All that the pods of a claim have, by it and by others."""
        return {
            share.device for one in (*self.claims(), claim) for share in one.shares
            if set(one.pods) & set(claim.pods)
        }

    def without(self, pod: str) -> list[Any]:
        """What is left of claims that other pods use, too, when this one is gone."""
        with self._lock:
            return [
                said | {"status": said["status"] | {"reservedFor": [
                    one for one in said["status"]["reservedFor"] if one["uid"] != pod]}}
                for said in self._said.values()
                if (claim := read(said)).is_shareable and pod in claim.uids
            ]

    def keep(self, said: Any) -> None:
        """Remembers a claim. Raises NvshareError."""
        with self._lock:
            wanted = ("namespace", "name", "uid", "ownerReferences")
            meta = {key: one for key, one in said["metadata"].items() if key in wanted}
            self._said[meta["uid"]] = {"metadata": meta, "status": said["status"]}
            self._write()

    def forget(self, uid: str) -> None:
        """It is not prepared any more. Raises NvshareError."""
        with self._lock:
            if self._said.pop(uid, None) is not None:
                self._write()

    def forget_but(self, pods: Collection[str]) -> None:
        """Forgets claims that none of these pods uses."""
        for claim in self.claims():
            if not any(uid in pods for uid in claim.uids):
                logger.info("claim %s is gone", claim)
                self.forget(claim.uid)

    def _write(self) -> None:
        try:
            replace(self._path, json.dumps(list(self._said.values())).encode())
        except OSError as error:
            raise NvshareError(f"cannot write to {self._path}: {error.strerror}") from error
