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

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from typing import Any

from nvshared.errors import InvalidArgs
from nvshared.names import PRIORITIES
from nvshared.quantity import weight

DRIVER = "gpu.nvshare.com"
# Of what is consumed, the term that it is.
TERMS = {"memory": "memory", "compute": "compute-limit"}
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


def _priority(value: Any) -> int:
    if type(value) is str and value in PRIORITIES:
        return PRIORITIES[value]
    raise ValueError(f"give {', '.join(PRIORITIES)}")


PARAMETERS: Mapping[str, Callable[[Any], int]] = {"weight": _weight, "priority": _priority}


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
