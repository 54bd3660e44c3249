# SPDX-License-Identifier: Apache-2.0
"""One card with its own scheduler, tenants and clock.

It is the simulated world of the scheduler's tests, without their checks at each step.
"""

import time
from collections import Counter
from collections.abc import Generator
from dataclasses import replace
from random import Random

from bench.simulate.engine import Engine
from bench.simulate.fair import Fair
from bench.simulate.tenant import Piece, Program, Tenant
from nvshared.scheduler.events import Event, Joined, Settings, TenantChanged, TenantTerms
from nvshared.sharing.tenancy import Tenancy
from nvshared.units import GIB
from tests.unit.scheduler_hookmodel import Hook
from tests.unit.scheduler_world import World

BUS = 45_000                            # bytes per us, each direction; an H200 has 36,000 to 50,000
DELAY = 200                             # most microseconds that a message takes

Life = Generator[int | Piece, None, None]


class Card(World):
    """A simulated card with tenants by name; microseconds and bytes."""

    def __init__(self, settings: Settings, seed: str, tenancy: Tenancy) -> None:
        super().__init__(settings, block=2 * GIB, slab=2 * GIB, bus=BUS, delay=DELAY, accounts=1)
        self.random = Random(seed)
        self.seed = seed
        self.began = self.now
        self.engine = Engine(self)
        self.fair = Fair()
        self.tenants_here: list[Tenant] = []
        self.decisions: list[int] = []  # ns of processor time of each decision
        self._tenancy = tenancy
        self._told: set[str] = set()

    def tenant(self, name: str, kind: str, user: str) -> Tenant:
        tenant = Tenant(
            name, kind, user, self, Random(f"{self.seed} {name}"), self._tenancy.terms(name))
        self.tenants_here.append(tenant)
        for one in tenant.within:
            terms = self._tenancy.terms(one)
            if terms != TenantTerms() and one not in self._told:
                self._told.add(one)
                self.tell(TenantChanged(one, terms))
        return tenant

    def live(self, life: Life) -> None:
        """Runs a program's generator to its next wait: for a time, or until a piece is done."""
        match next(life, None):
            case Piece() as piece:
                piece.then = lambda: self.live(life)
            case int(wait):
                self.schedule(self.now + wait, lambda: self.live(life))

    def enter(self, tenant: Tenant) -> Program:
        program = Program(next(self._ids), self, tenant=tenant)
        self.welcome(program)
        return program

    def end(self, program: Program) -> None:
        self.engine.drop(program)
        self.count(program)
        for piece in program.pieces:
            program.tenant.done(piece)
        self.kill(program)

    def count(self, program: Program) -> None:
        """Adds the scheduler's counters of a program to the figures of its tenant."""
        view = self.scheduler.snapshot().clients.get(program.id)
        if view is not None:
            program.tenant.turns += view.counters.turns
            program.tenant.bytes_in += view.counters.bytes_in
            program.tenant.bytes_out += view.counters.bytes_out

    def got(self) -> Counter[Tenant]:
        """Returns the us of the card's time that each tenant has used until now."""
        found = Counter({tenant: tenant.got for tenant in self.tenants_here})
        for flyer, done in self.engine.under_way():
            if isinstance(flyer, Program):
                found[flyer.tenant] += round(done)
        return found

    def close(self) -> None:
        for hook in self.hooks.values():
            if isinstance(hook, Program):
                self.count(hook)
                if hook.since is not None:
                    hook.tenant.waits.append(self.now - hook.since)
        for tenant, got in self.got().items():
            tenant.got = got
            if tenant.wanted:
                tenant.settle()

    def tell(self, event: Event) -> None:
        if isinstance(event, Joined):
            hook: Hook | None = self.hooks.get(event.client)
            if isinstance(hook, Program):
                event = replace(event, account=hook.tenant.user, tenants=hook.tenant.within)
        began = time.thread_time_ns()
        actions = self.scheduler.handle(event, self.now)
        self.decisions.append(time.thread_time_ns() - began)
        for action in actions:
            self._carry(action)
        self._arm()

    def check(self) -> None:
        """Does nothing, unlike World.check(): the scheduler's tests check invariants."""

    def device_free(self) -> int:
        """The capacity, since no process outside of the simulation uses the card."""
        return self.settings.capacity
