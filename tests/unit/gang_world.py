# SPDX-License-Identifier: Apache-2.0
"""Several cards with the daemon's real manager, and multi-rank programs, in virtual time.

Messages are delayed. A kernel of a team ends only when all ranks have submitted it, and ranks
submit several kernels ahead; so ranks never drain if their gates close at different kernels.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random

from nvshared.machine.nvml import Facts, Sample
from nvshared.machine.peer import Peer
from nvshared.machine.tenant import Kind, Tenant
from nvshared.scheduler.actions import Action, Crowded, Order, Run, TurnEnded, TurnStarted
from nvshared.scheduler.events import Event, Joined, Record, Settings
from nvshared.settings.defaults import Defaults, GPUDefaults
from nvshared.sharing.gpu import GPU, Client
from nvshared.sharing.manager import Manager
from nvshared.units import GIB, MIB, MILLISECOND, SECOND
from tests.unit.scheduler_hookmodel import DRAIN_PATIENCE, Hook
from tests.unit.scripted import NO_RESERVE, Noted, Time, peer

CARD = 4 * GIB


@dataclass(eq=False)
class Seat(Noted):
    """The surroundings of a hook on one card; see scheduler_hookmodel.Surroundings."""

    machine: "Machine"
    gpu: GPU
    block: int = 32 * MIB
    slab: int = 128 * MIB
    bus: int = 50_000
    client: Client | None = None
    hook: Hook | None = None
    arrives: dict[str, int] = field(default_factory=dict)

    @property
    def now(self) -> int:
        return self.machine.time.now

    @now.setter
    def now(self, _: int) -> None:
        raise AssertionError("it is the machine's")

    def at(self, when: int, callback: Callable[[], None]) -> None:
        self.machine.time.timer(when, lambda: None if self.hook and self.hook.dead else callback())

    def say(self, hook: Hook, record: Record | Joined) -> None:
        self._travel("up", lambda: self._hear(hook, record))

    def _hear(self, hook: Hook, record: Event) -> None:
        if isinstance(record, Joined):
            assert self.client is not None
            self.gpu.join(
                self.client, record.memory, running=record.running, wants=record.wants,
                commit=record.commit)
        elif not hook.dead:
            self.gpu.tell(record)

    def order(self, order: Order) -> None:
        hook = self.hook
        assert hook is not None
        self.machine.steps += isinstance(order, Run) and order.step
        self._travel("down", lambda: None if hook.dead else hook.obey(order))

    def _travel(self, way: str, arrive: Callable[[], None]) -> None:
        when = self.now + self.machine.random.randint(1, self.machine.delay)
        when = self.arrives[way] = max(when, self.arrives.get(way, 0) + 1)
        self.machine.time.timer(when, arrive)

    def device_free(self) -> int:
        return CARD - sum(one.filled for one in self.machine.on(self.gpu))


class Rank(Hook):
    """A rank of a team. `work` counts kernels not yet submitted."""

    def __init__(self, id: int, world: Seat, team: "Team") -> None:
        super().__init__(id, world)
        self.team = team
        self.submitted = 0
        self.ended = 0
        self.depth = team.depth
        self.step: int | None = None    # us between single launches; None: not stepping
        self.next_step = 0

    def _proceed(self) -> None:
        if self.dead:
            return
        if self.open and not self.stopping:
            depth = self.depth if self.step is None else 1
            while self.work > 0 and self.submitted - self.ended < depth:
                if self.step is not None and self.world.now < self.next_step:
                    self.world.at(self.next_step, self._proceed)
                    break
                self.work -= 1
                self.submitted += 1
                self.flying = True
            self.team.meet()
        elif self.standing and not (self.granted or self.stopping or self.want_sent):
            super()._proceed()

    def landed(self, done: int | None = None) -> None:
        self.ended += 1
        self.computed += 1
        self.flying = self.submitted > self.ended
        self.next_step = self.world.now + (self.step or 0)
        if self.stopping:
            self._drained()
        else:
            self._proceed()

    def _run(self, order: Run) -> None:
        self.step = order.step_pause if order.step else None
        super()._run(order)

    def _stop(self) -> None:
        super()._stop()
        if self.stopping:
            began = self.stop_heard
            self.world.at(began + DRAIN_PATIENCE, lambda: self._give_up(began))

    def _give_up(self, began: int) -> None:
        if self.stopping and self.stop_heard == began and self.standing:
            self._reopen()


@dataclass(eq=False)
class Team:
    """Ranks with kernels that wait for each other."""

    machine: "Machine"
    kernel: int = 5 * MILLISECOND
    depth: int = 3
    ranks: list[Rank] = field(default_factory=list)
    flying: bool = False

    def meet(self) -> None:
        if not self.flying and all(one.submitted > one.ended for one in self.ranks):
            self.flying = True
            self.machine.time.timer(self.machine.time.now + self.kernel, self._landed)

    def _landed(self) -> None:
        for rank in self.ranks:
            rank.landed()
        self.flying = False             # after the loop: rank.landed() may submit more kernels
        self.meet()

    def compute(self, kernels: int) -> None:
        for rank in self.ranks:
            rank.compute(kernels)

    @property
    def left(self) -> int:
        return max(rank.work + rank.submitted - rank.ended for rank in self.ranks)


class Machine:
    def __init__(self, cards: int = 2, seed: int = 0, delay: int = 500, **settings: object) -> None:
        self.random = Random(seed)
        self.delay = delay
        self.time = Time()
        base = Settings(capacity=0, total=0, host_budget=80 * GIB, tq=SECOND, writeback=False)
        defaults = Defaults(
            replace(base, **settings),  # type: ignore[arg-type]
            lambda _: GPUDefaults(NO_RESERVE, 256 * MIB))
        self.manager = Manager(lambda: defaults, self.time.clock, self.time.timer)
        self.seats: list[Seat] = []
        self.gpus = [
            self.manager.add(
                Facts(index, f"GPU-{index:08x}-0000-0000-0000-000000000000", "Card",
                      f"00000000:{index:02x}:00.0", CARD),
                Sample(), gather=False)
            for index in range(cards)]
        self.starts: list[tuple[int, Client]] = []
        self.ends: list[tuple[int, Client, str]] = []
        self.steps = 0                  # number of RUN orders that allow one launch at a time
        self.frozen: list[Hook] = []
        self.crowded: list[tuple[Client, int, int]] = []    # client, bytes needed, bytes available
        for gpu in self.gpus:
            gpu.decided.connect(partial(self._note, gpu))
        self.manager.reload()

    def _note(self, gpu: GPU, now: int, _: Event, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, Crowded):
                self.crowded.append((gpu.clients[action.client], action.needs, action.room))
            if isinstance(action, TurnStarted):
                self.starts.append((now, gpu.clients[action.client]))
            elif isinstance(action, TurnEnded) and action.client in gpu.clients:
                self.ends.append((now, gpu.clients[action.client], str(action.reason)))

    def on(self, gpu: GPU) -> list[Hook]:
        return [
            seat.hook for seat in self.seats
            if seat.gpu is gpu and seat.hook is not None and not seat.hook.dead]

    def _seat(self, card: int, process: Peer) -> Seat:
        seat = Seat(self, self.gpus[card])
        seat.client = Client(self.manager.next_id(), seat.gpu, process, seat)
        self.seats.append(seat)
        return seat

    def freeze(self, hook: Hook) -> None:
        if not hook.busy:
            hook.busy = True
            self.frozen.append(hook)

    def thaw(self) -> None:
        for hook in self.frozen:
            hook.busy = False
            hook._carry_on()
        self.frozen.clear()

    def occupy(self, card: int, size: int) -> None:
        gpu = self.gpus[card]
        gpu.capacity.outside = size
        gpu.apply_capacity()

    def program(self, card: int, pid: int, size: int, pod: str = "") -> Hook:
        """Start a program that names no gang; its pod, if given, may form one."""
        process = peer(pid, 0)
        if pod:
            process = replace(process, tenants=(Tenant(Kind.POD, pod),))
        seat = self._seat(card, process)
        assert seat.client is not None
        seat.hook = Hook(seat.client.id, seat)
        self._grow(seat.hook, size)
        return seat.hook

    def team(self, cards: list[int], pids: list[int], size: int, *, name: str = "",
             expected: int = 0, depth: int = 3) -> Team:
        """Start one rank of `size` bytes on each card, in the process of that pid."""
        team = Team(self, depth=depth)
        for card, pid in zip(cards, pids, strict=True):
            self.rank(team, card, replace(peer(pid, 0), gang=name, gang_size=expected), size)
        return team

    def rank(self, team: Team, card: int, process: Peer, size: int) -> Rank:
        seat = self._seat(card, process)
        assert seat.client is not None
        rank = Rank(seat.client.id, seat, team)
        seat.hook = rank
        team.ranks.append(rank)
        self._grow(rank, size)
        return rank

    def _grow(self, hook: Hook, size: int) -> None:
        hook.hello()
        self.advance(50 * MILLISECOND)  # the manager splits the host budget
        hook.allocate(size)
        self.advance(50 * MILLISECOND)
        assert not hook.refused

    def client(self, hook: Hook) -> Client:
        return next(s.client for s in self.seats if s.hook is hook and s.client is not None)

    def kill(self, hook: Hook) -> None:
        hook.dead = True
        client = self.client(hook)
        self.time.timer(self.time.now + 1, lambda: client.gpu.leave(client))

    def advance(self, microseconds: int, until: Callable[[], bool] = lambda: False) -> None:
        end = self.time.now + microseconds
        while self.time.now < end and not until():
            self.time.pass_by(MILLISECOND)
