# SPDX-License-Identifier: Apache-2.0
"""Drives one scheduler event by event.

A hook is its memory figures only. The test sends every event itself; `obey` replies to orders as
hooks without failures do.
"""

from dataclasses import replace
from typing import Any

from nvshared.scheduler import Scheduler
from nvshared.scheduler.actions import (
    Action,
    Evict,
    Limits,
    Load,
    Preallocate,
    Run,
    Stop,
    Writeback,
    Yield,
)
from nvshared.scheduler.domains import Domains
from nvshared.scheduler.events import (
    AntiThrash,
    CommitAsked,
    Copies,
    Event,
    Evicted,
    Joined,
    Left,
    Loaded,
    Memory,
    MemoryChanged,
    Reopened,
    Settings,
    Stopped,
    Terms,
    TermsChanged,
    Tick,
    WentIdle,
    WrittenBack,
)
from nvshared.scheduler.snapshot import ClientView
from nvshared.units import GIB, SECOND


class Talk:
    """One scheduler; clients go by number. Sizes are given in GiB, times in seconds."""

    def __init__(self, capacity: float = 100, host: float = 1000,
                 mode: AntiThrash = AntiThrash.AUTO, step: float = 1000, gather: float = 0,
                 stuck_after: float = 10, domains: Domains | None = None,
                 writeback: bool = False, **settings: Any) -> None:
        """`stuck_after`: seconds after which an unanswered order is reported."""
        self.now = 0
        self.settings = Settings(capacity=int(capacity * GIB), total=int(capacity * GIB),
                                 host_budget=int(host * GIB), anti_thrash=mode,
                                 step=int(step * GIB), gather=int(gather * SECOND),
                                 stuck_after=int(stuck_after * SECOND), writeback=writeback,
                                 **settings)
        self.scheduler = Scheduler(self.settings, 0, domains)
        self.memory: dict[int, Memory] = {}
        self.granted: set[int] = set()
        self.swapped: dict[int, int] = {}  # bytes in host memory, by client id
        self.stop_sent: dict[int, int] = {}
        self.said: list[Action] = []    # all actions of the scheduler, oldest first

    def tell(self, event: Event) -> list[Action]:
        actions = self.scheduler.handle(event, self.now)
        self.said += actions
        self.stop_sent.update({a.client: self.now for a in actions if isinstance(a, Stop)})
        return actions

    def view(self, client: int) -> ClientView:
        return self.scheduler.snapshot().clients[client]

    def join(self, client: int, allocated: float = 0, resident: float = 0, *, pinned: float = 0,
             running: bool = False, wants: bool = False, commit: float = 0,
             domains: tuple[str, ...] = (), account: str = "",
             tenants: tuple[str, ...] = ()) -> list[Action]:
        """Send HELLO of a client with its resident and pinned memory as room."""
        self.memory[client] = Memory(int(allocated * GIB), int(resident * GIB), int(pinned * GIB),
                                     room=int((resident + pinned) * GIB))
        if running:
            self.granted.add(client)
        return self.tell(Joined(
            client, self.memory[client], running, wants, int(commit * GIB), domains,
            account, tenants=tenants))

    def leave(self, client: int) -> list[Action]:
        del self.memory[client]
        return self.tell(Left(client))

    def limit(self, client: int, memory: float) -> list[Action]:
        return self.tell(TermsChanged(client, Terms(memory_limit=int(memory * GIB))))

    def set(self, client: int, **figures: float) -> Memory:
        """Changes figures without a report; in GiB, except `answered` and `pin_reason`."""
        changed: dict[str, Any] = {
            name: value if name in ("answered", "pin_reason") else int(value * GIB)
            for name, value in figures.items()}
        self.memory[client] = replace(self.memory[client], **changed)
        return self.memory[client]

    def changed(self, client: int, **figures: float) -> list[Action]:
        """Send MEMORY."""
        return self.tell(MemoryChanged(client, self.set(client, **figures)))

    def want(self, client: int, **figures: float) -> list[Action]:
        """Send MEMORY with the flag that a thread waits at the gate."""
        return self.tell(MemoryChanged(client, self.set(client, **figures), wants=True))

    def idle(self, client: int) -> list[Action]:
        return self.tell(WentIdle(client, self.memory[client]))

    def ask(self, client: int, number: int, size: float, pins: float = 0) -> list[Action]:
        """Send COMMIT."""
        return self.tell(CommitAsked(
            client, self.memory[client], number, int(size * GIB), int(pins * GIB)))

    def beyond(self, client: int, number: int, size: float) -> list[Action]:
        """Send COMMIT for memory beyond the size of the card."""
        return self.tell(CommitAsked(client, self.set(client, beyond=size), number, 0))

    def copying(self, client: int, *, inward: bool = False, outward: bool = False) -> list[Action]:
        return self.tell(Copies(client, self.memory[client], inward, outward))

    def stopped(self, client: int, wants: bool = True) -> list[Action]:
        """Send STOPPED after a drain that took all the time since the STOP."""
        self.granted.discard(client)
        drained = self.now - self.stop_sent.get(client, self.now)
        return self.tell(Stopped(client, self.memory[client], wants, drained))

    def reopened(self, client: int) -> list[Action]:
        return self.tell(Reopened(client, self.memory[client]))

    def evicted(self, order: Evict, **flags: Any) -> list[Action]:
        """Send MOVED: all that host memory allows was evicted, or nothing if a flag is given."""
        client, memory = order.client, self.memory[order.client]
        moved = 0
        if not flags and client not in self.granted:
            too_much = max(0, memory.filled - order.room)
            swapped = self.swapped.get(client, 0)
            moved = min(too_much, memory.resident, max(memory.host, order.host) - swapped)
            self.swapped[client] = swapped + moved
            flags = {"no_memory": True} if moved < min(too_much, memory.resident) else {}
        stays = memory.resident - moved
        room = max(order.room, stays + memory.pinned)
        host = max(memory.host, self.swapped.get(client, 0))
        self.memory[client] = replace(memory, resident=stays, room=room, host=host)
        return self.tell(Evicted(client, self.memory[client], order.number, moved, **flags))

    def loaded(self, order: Load, lacking: float = 0, **flags: Any) -> list[Action]:
        """Send MOVED after a LOAD up to the room, less the GiB that the driver lacks."""
        client, memory = order.client, self.memory[order.client]
        can = max(0, order.room - memory.pinned - memory.pending - int(lacking * GIB))
        resident = min(memory.allocated, max(memory.resident, can))
        came = resident - memory.resident
        swapped = max(0, self.swapped.get(client, 0) - came)
        self.swapped[client] = swapped
        host = min(memory.host, max(order.host, swapped))
        self.memory[client] = replace(memory, resident=resident, room=order.room, host=host)
        return self.tell(Loaded(client, self.memory[client], order.number, came, **flags))

    def written_back(self, order: Writeback, ready: float | None = None,
                     **flags: Any) -> list[Action]:
        """Send MOVED after a WRITEBACK of all that host memory allows, or of `ready` GiB."""
        client, memory = order.client, self.memory[order.client]
        swapped = self.swapped.get(client, 0)
        can = max(memory.host, order.host) - swapped
        has = min(order.size, can) if ready is None else int(ready * GIB)
        if ready is None and has < order.size:
            flags = {"no_memory": True}
        host = max(memory.host, swapped + has)
        self.memory[client] = replace(memory, host=host)
        return self.tell(WrittenBack(client, self.memory[client], order.number, has, **flags))

    def obey(self, actions: list[Action], rounds: int = 1000) -> list[Action]:
        """Reply to EVICT and LOAD, and to the orders that follow. Returns all actions."""
        everything = list(actions)
        waiting = list(actions)
        for _ in range(rounds):
            if not waiting:
                break
            action = waiting.pop(0)
            new: list[Action] = []
            if isinstance(action, Evict):
                new = self.evicted(action)
            elif isinstance(action, Load):
                new = self.loaded(action)
            elif isinstance(action, Run):
                self.granted.add(action.client)
            everything += new
            waiting += new
        assert not waiting, "it never came to rest"
        return everything

    def run(self, client: int, size: float, domains: tuple[str, ...] = ()) -> list[Action]:
        self.join(client, size, domains=domains)
        return self.obey(self.want(client))

    def go_idle(self, client: int) -> None:
        """A holder reports that it is idle, and stops when the scheduler says so."""
        self.obey(self.idle(client))
        self.obey(self.stopped(client, wants=False))

    def wait(self, seconds: float) -> list[Action]:
        """Let time pass, with a Tick at each deadline."""
        end = self.now + round(seconds * SECOND)
        actions: list[Action] = []
        while (deadline := self.scheduler.deadline()) is not None and deadline <= end:
            assert deadline > self.now, "time stands still"
            self.now = deadline
            actions += self.tell(Tick())
        self.now = end
        return actions


def two_programs(size: float) -> Talk:
    """Two programs of `size` GiB that want turns on a card of 100 GiB."""
    talk = Talk()
    talk.run(1, size)
    talk.run(2, size)
    return talk


def stops(actions: list[Action]) -> list[int]:
    return [action.client for action in actions if isinstance(action, Stop)]


def runs(actions: list[Action]) -> list[int]:
    return [action.client for action in actions if isinstance(action, Run)]


def paced(actions: list[Action]) -> list[tuple[int, bool]]:
    """The clients that RUN was sent to, and whether their work in flight is bounded."""
    return [(a.client, a.pace) for a in actions if isinstance(a, Run)]


def evicts(actions: list[Action]) -> list[tuple[int, float]]:
    """Client and room in GiB of each EVICT."""
    return [(a.client, a.room / GIB) for a in actions if isinstance(a, Evict)]


def loads(actions: list[Action]) -> list[tuple[int, float]]:
    """Client and room in GiB of each LOAD."""
    return [(a.client, a.room / GIB) for a in actions if isinstance(a, Load)]


def writebacks(actions: list[Action]) -> list[Writeback]:
    return [action for action in actions if isinstance(action, Writeback)]


def preallocations(actions: list[Action]) -> list[Preallocate]:
    return [action for action in actions if isinstance(action, Preallocate)]


def yields(actions: list[Action]) -> list[int]:
    return [action.client for action in actions if isinstance(action, Yield)]


def limits(actions: list[Action], client: int) -> list[Limits]:
    return [action for action in actions if isinstance(action, Limits) and action.client == client]


def answer(talk: Talk, client: int, size: float, number: int = 1, pins: float = 0) -> Limits:
    """The answer to a COMMIT, at once or once other clients have carried out their orders."""
    actions = talk.obey(talk.ask(client, number, size, pins))
    found, = (one for one in limits(actions, client) if one.number == number)
    return found
