# SPDX-License-Identifier: Apache-2.0
"""Simulates a day on several cards, each in its own process, and computes figures of the day."""

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from bench.simulate.card import Card
from bench.simulate.kinds import HOUR, KINDS, MINUTE
from nvshared.machine.capacity import Capacity
from nvshared.machine.nvml import Facts
from nvshared.scheduler.events import Settings
from nvshared.settings.config import load
from nvshared.settings.defaults import derive
from nvshared.settings.rules import Rule
from nvshared.sharing.tenancy import Tenancy
from nvshared.units import GIB, SECOND

SPAN = 10 * MINUTE                      # us of one point in the plots
USERS = 3                               # tenants of each user
STEP = 32 * GIB                         # bytes of a move; smaller, real steps take long to simulate


@dataclass(frozen=True, slots=True)
class Wanted:
    """The card and tenants to simulate; sizes in bytes."""

    tenants: int = 1000
    cards: int = 16
    memory: int = 139 * GIB             # bytes of each card
    host: int = 1024 * GIB              # bytes of host memory for evicted memory
    hours: float = 24
    seed: int = 1
    policy: Path | None = None          # a file in the form of nvshared.conf
    tq: str | None = None               # the quantum, in place of the policy's


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of some or all tenants; seconds, GiB and parts of the cards' whole time."""

    tenants: int
    asked: float
    share: float
    entitled: float
    waits: int
    wait: float                         # seconds at a closed gate; median
    wait_99th: float
    late: float                         # request to result, over GPU time; median
    late_99th: float
    turns: int
    out: float
    into: float
    refused: int                        # programs that found no memory, and tried again later


@dataclass(frozen=True, slots=True)
class Outcome:
    """Results of the tenants of one card, or of all cards."""

    waits: dict[str, list[int]]         # us of waits by kind of tenant
    late: dict[str, list[float]]
    sums: dict[str, dict[str, float]]
    shares: dict[str, list[float]]      # by kind: one value for each SPAN
    decisions: list[int]                # ns of processor time


def settings(wanted: Wanted) -> tuple[Settings, tuple[Rule, ...]]:
    """The settings and rules that a daemon would use. Raises ConfigError, InvalidArgs."""
    given = {} if wanted.tq is None else {"tq": wanted.tq}
    read = load(wanted.policy or Path(os.devnull), {}, given)
    card = Facts(0, "GPU-simulated", "simulated", "", wanted.memory)
    defaults = derive(replace(read, swap_budget=None), [card], 0)   # not this machine's budget
    room = Capacity(card.memory_total, defaults.card(card).allowances)
    return replace(defaults.settings, capacity=room.bytes, total=room.offered,
                   host_budget=wanted.host, gather=0,
                   step=min(STEP, max(GIB, room.bytes // 8))), read.rules


def simulate(wanted: Wanted) -> Outcome:
    """Simulates all cards, as many at a time as there are processors."""
    cards = range(wanted.cards)
    if wanted.cards == 1:
        return merged([one(wanted, 0)])
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        return merged(list(pool.map(one, [wanted] * wanted.cards, cards)))


def one(wanted: Wanted, number: int) -> Outcome:
    found, rules = settings(wanted)
    tenancy = Tenancy()
    tenancy.use(rules)
    card = Card(found, f"{wanted.seed}", tenancy)
    for tenant, kind in enumerate(_kinds(wanted)):
        if tenant % wanted.cards == number:
            known = card.tenant(KINDS[kind].name.format(tenant), kind, f"user:u{tenant // USERS}")
            for life in KINDS[kind].life(card, known):
                card.live(life)
    shares: dict[str, list[float]] = {kind: [] for kind in KINDS}
    before = _got(card)
    for _ in range(round(wanted.hours * HOUR / SPAN)):
        card.advance(SPAN)
        now = _got(card)
        for kind, values in shares.items():
            values.append((now[kind] - before[kind]) / SPAN)
        before = now
    return outcome(card, shares)


def outcome(card: Card, shares: dict[str, list[float]]) -> Outcome:
    card.close()
    of = {kind: [one for one in card.tenants_here if one.kind == kind] for kind in KINDS}
    return Outcome(
        {kind: [wait for one in tenants for wait in one.waits] for kind, tenants in of.items()},
        {kind: [late for one in tenants for late in one.late] for kind, tenants in of.items()},
        {kind: {
            "tenants": len(tenants), "time": card.now - card.began,
            **{name: sum(getattr(one, name) for one in tenants) for name in (
                "asked", "got", "entitled", "turns", "bytes_out", "bytes_in", "refused")},
        } for kind, tenants in of.items()},
        shares, card.decisions)


def merged(outcomes: Sequence[Outcome]) -> Outcome:
    first = outcomes[0]
    return Outcome(
        {kind: [wait for one in outcomes for wait in one.waits[kind]] for kind in KINDS},
        {kind: [late for one in outcomes for late in one.late[kind]] for kind in KINDS},
        {kind: {name: sum(one.sums[kind][name] for one in outcomes) for name in first.sums[kind]}
         for kind in KINDS},
        {kind: [sum(values) / len(outcomes) for values in zip(
            *(one.shares[kind] for one in outcomes), strict=True)] for kind in KINDS},
        [spent for one in outcomes for spent in one.decisions])


def figures(outcome: Outcome, kinds: Iterable[str]) -> Figures:
    names = [*kinds]
    waits = sorted(wait for kind in names for wait in outcome.waits[kind])
    late = sorted(one for kind in names for one in outcome.late[kind])
    total = {name: sum(outcome.sums[kind][name] for kind in names)
             for name in next(iter(outcome.sums.values()))}
    time = outcome.sums[names[0]]["time"]
    return Figures(tenants=int(total["tenants"]), asked=round(total["asked"] / SECOND),
                   share=round(total["got"] / time, 4), entitled=round(total["entitled"] / time, 4),
                   waits=len(waits), wait=part(waits, 0.5) / SECOND,
                   wait_99th=part(waits, 0.99) / SECOND, late=round(part(late, 0.5), 3),
                   late_99th=round(part(late, 0.99), 3), turns=int(total["turns"]),
                   out=round(total["bytes_out"] / GIB, 1), into=round(total["bytes_in"] / GIB, 1),
                   refused=int(total["refused"]))


def part(values: Sequence[float], where: float) -> float:
    """Returns the quantile `where` (0 to 1) of sorted values; 0 if there are no values."""
    return values[min(len(values) - 1, int(where * len(values)))] if values else 0


def _kinds(wanted: Wanted) -> list[str]:
    every = [kind for kind, one in KINDS.items() for _ in range(one.part)]
    found = [every[number * 100 // wanted.tenants % 100] for number in range(wanted.tenants)]
    Random(wanted.seed).shuffle(found)
    return found


def _got(card: Card) -> Counter[str]:
    found: Counter[str] = Counter()
    for tenant, got in card.got().items():
        found[tenant.kind] += got
    return found
