# SPDX-License-Identifier: Apache-2.0
"""Invented kinds of tenants of a lab's cards: notebooks, trainings, services and batch jobs.

docs/internals/benchmarks.md has their sizes and times.
"""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from math import exp, log
from random import Random

from bench.simulate.card import Card, Life
from bench.simulate.tenant import Program, Tenant
from nvshared.units import MIB, MILLISECOND, SECOND

MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
AGAIN = 10 * MINUTE                     # us from a refused allocation to another try
GRAIN = 32 * MIB                        # granularity of allocations


@dataclass(frozen=True, slots=True)
class Kind:
    part: int                           # percent of all tenants
    name: str                           # name of a tenant, with its number
    life: Callable[[Card, Tenant], list[Life]]      # a generator for each of its programs


def between(random: Random, least: float, most: float) -> float:
    """Returns a random value between the two; its logarithm is uniformly distributed."""
    return exp(random.uniform(log(least), log(most)))


def lifelong(card: Card, tenant: Tenant, part: float, kernel: int) -> Generator[int, None, Program]:
    """Starts programs until one gets `part` (0 to 1) of the card's memory; returns that one."""
    size = max(GRAIN, int(part * card.settings.capacity) // GRAIN * GRAIN)
    while True:
        program = card.enter(tenant)
        program.kernel = kernel
        yield 100 * MILLISECOND
        program.allocate(size)
        while program.commit_waits:
            yield 100 * MILLISECOND
        if program.allocated == size:
            return program
        tenant.refused += 1
        card.end(program)
        yield AGAIN


def notebook(card: Card, tenant: Tenant) -> Life:
    chance = tenant.random
    yield int(max(0, chance.gauss(9.5, 1.5)) * HOUR)
    ends = card.now + chance.uniform(2, 8) * HOUR
    part = between(chance, 0.01, 0.15)
    program = yield from lifelong(card, tenant, part, 10 * MILLISECOND)
    while card.now < ends:
        yield program.submit(int(between(chance, 0.5, 60) * SECOND))
        yield int(chance.expovariate(1 / 30) * MINUTE)
    card.end(program)


def training(card: Card, tenant: Tenant) -> Life:
    chance = tenant.random
    yield int(chance.uniform(6, 20) * HOUR)
    part = chance.uniform(0.55, 0.95)
    program = yield from lifelong(card, tenant, part, chance.randint(20, 200) * MILLISECOND)
    yield program.submit(int(between(chance, 0.5, 3) * HOUR))
    card.end(program)


def service(card: Card, tenant: Tenant) -> Life:
    chance = tenant.random
    pause = int(between(chance, 20, 5000) * MILLISECOND)
    size = int(chance.uniform(0.1, 0.3) * min(pause, 200 * MILLISECOND))
    part = between(chance, 0.02, 0.15)
    program = yield from lifelong(card, tenant, part, min(size, 20 * MILLISECOND))
    while True:
        yield int(chance.expovariate(1 / 8) * HOUR)
        for _ in range(int(between(chance, 20, 120) * SECOND / pause)):
            program.submit(size)
            yield pause


def job(card: Card, tenant: Tenant, begins: int) -> Life:
    chance = tenant.random
    yield begins
    part = between(chance, 0.05, 0.4)
    program = yield from lifelong(card, tenant, part, chance.randint(10, 100) * MILLISECOND)
    yield program.submit(int(between(chance, 0.5, 15) * MINUTE))
    card.end(program)


def jobs(card: Card, tenant: Tenant) -> list[Life]:
    begins = int(tenant.random.uniform(0, 23) * HOUR)
    return [job(card, tenant, begins) for _ in range(tenant.random.choice((1, 1, 1, 4)))]


KINDS: Mapping[str, Kind] = {
    "notebook": Kind(50, "unit:jupyter-u{}.service", lambda card, tenant: [notebook(card, tenant)]),
    "training": Kind(4, "pod:train/t{}", lambda card, tenant: [training(card, tenant)]),
    "service": Kind(12, "pod:serve/s{}", lambda card, tenant: [service(card, tenant)]),
    "batch": Kind(34, "job:{}", jobs),
}
