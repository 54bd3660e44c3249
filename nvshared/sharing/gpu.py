# SPDX-License-Identifier: Apache-2.0
"""One GPU: its scheduler, NVML's figures of the card, and the clients on it."""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from operator import add
from typing import NamedTuple, Protocol

from nvshared.clock import Clock, Timer
from nvshared.errors import GPULost
from nvshared.faults import CRITICAL, Faults
from nvshared.machine.capacity import Allowances, Capacity
from nvshared.machine.nvml import Facts, Sample
from nvshared.machine.peer import Peer, shown
from nvshared.machine.tenant import Kind
from nvshared.scheduler import Scheduler, actions, events
from nvshared.scheduler.domains import Domains, Neighbour, SharedBudget
from nvshared.scheduler.events import Settings, TenantTerms
from nvshared.scheduler.snapshot import ClientView
from nvshared.scheduler.tenants import Usage
from nvshared.sharing.client_terms import ClientTerms
from nvshared.sharing.dispatcher import Dispatcher
from nvshared.sharing.inflight_page import InflightPage
from nvshared.sharing.listed import Listed
from nvshared.sharing.parking import Parking
from nvshared.sharing.turn_log import TurnLog
from nvshared.signal import Signal
from nvshared.units import SECOND

JOINS_WITHIN = 2 * SECOND               # us from HELLO to a pause that began before it
NAMED = 3                               # most processes named in the fault gpu-unshared
GONE_KNOWN = 1000                       # tenants without clients: usage kept per card

logger = logging.getLogger(__name__)


class Link(Protocol):
    """Sends a client's hook the scheduler's orders, and the orders of moving.py to be parked."""

    def order(self, order: actions.Order) -> None:
        """Sends an order. Must not raise; a broken link reports that its client left."""

    @property
    def has_turn(self) -> bool:
        """Whether an order for a turn is held back until the parked program is restored."""

    @property
    def has_file(self) -> bool:
        """Whether the hook has a file on the disk, which would not be saved with its process."""

    def leave(self) -> None:
        """Has the hook of a parked client close its connection, as the process is to be dumped."""

    async def park(self, context: int, *, ahead: bool) -> None:
        """Makes the hook keep all threads out of the driver. Raises NvshareError if it refuses.

        `ahead`: only if no thread wants the GPU. `context`: Client.context, for a later daemon."""

    def confirm_checkpoint(self) -> None:
        """Notes that the process has been checkpointed."""

    def resume_on(self, gpu: "GPU") -> None:
        """Lets the program's threads call the driver again, on this card: its process was restored
        there, or has never been checkpointed."""

    def give_up(self) -> None:
        """Makes each driver call of the program fail, as the process cannot be restored."""


class PodNames(NamedTuple):
    namespace: str
    name: str
    containers: Mapping[str, str]       # names by container id

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class EarlierTimes(NamedTuple):
    """A client's times before this daemon knew it, or before it was on this card; us."""

    held: int = 0                       # with its gate open
    waited: int = 0                     # it waited for its gate
    idle: int = 0                       # for which it had been idle when it connected


class Client:
    """One process on one GPU. Figures are from its last record, in bytes and microseconds."""

    def __init__(
        self, id: int, gpu: "GPU", peer: Peer, link: Link, terms: ClientTerms | None = None,
    ) -> None:
        self.id = id                    # unique while the daemon runs, never used again
        self.gpu = gpu
        self.peer = peer
        self.link = link
        self.terms = terms or ClientTerms()
        self.past = EarlierTimes()
        self.recalled = False           # an earlier daemon has kept its terms
        self.joined = gpu.now           # us, when it connected
        self.goes_on = False            # an earlier daemon knew it, or it was on another card
        self.pod: PodNames | None = None    # of its pod, once nvshare-kubelet has sent them
        self.domains: tuple[str, ...] = ()  # names of the host memory limits that apply to it
        self.private = 0                # bytes of private memory of its process, when it joined
        self.turns = TurnLog()
        self.gang = ""                  # name of its gang, see gangs.py; "": none
        self.inflight_page = InflightPage()
        self.parking = Parking()

    def __str__(self) -> str:
        return f"{self.name}[{self.peer.pid}]"

    @property
    def name(self) -> str:
        """The title that the process gave itself, else the name of its pod, else of the process."""
        return self.peer.title or (self.peer.name if self.pod is None else str(self.pod))

    @property
    def tenant(self) -> str:
        """The displayed name of its tenant."""
        return self.gpu.shown(self.counted_for)

    @property
    def counted_for(self) -> str:
        """The tenant that its use counts for: users by number, pods by namespace and name."""
        return str(self.peer.tenant) if self.pod is None else f"{Kind.POD}:{self.pod}"

    @property
    def user(self) -> str:
        """The displayed name of its user."""
        return self.gpu.shown(str(self.peer.tenants[0])).partition(":")[2]

    @property
    def container(self) -> str:
        """The name of the client's container within its pod; "": unknown."""
        return "" if self.pod is None else self.pod.containers.get(self.peer.tenant.container, "")

    def remember(self, past: EarlierTimes, terms: ClientTerms) -> None:
        """Takes over the client's times and terms from an earlier daemon, or another card."""
        self.past, self.terms = past, terms

    def recall(self, past: EarlierTimes, terms: ClientTerms | None) -> None:
        """Takes over the times and terms that an earlier daemon has kept; None: no terms."""
        self.recalled = terms is not None
        self.remember(past, terms or self.terms)

    def rename(self, pod: PodNames | None) -> None:
        """Names the pod of the process."""
        self.pod = pod

    def join_gang(self, name: str) -> None:
        """Names the gang of the client; "": none."""
        self.gang = name

    def bind(self, domains: tuple[str, ...]) -> None:
        """Names the host memory limits that apply to the client."""
        self.domains = domains

    def note_private(self, private: int) -> None:
        """Records the private memory of the process, when the client joins."""
        self.private = private

    def set_terms(self, terms: ClientTerms) -> None:
        self.terms = terms
        self._apply_terms()
        self.gpu.terms_changed.emit(self)

    def suspend_to_park(self, suspended: bool) -> None:
        """Suspends the client to park it, whatever its terms say; False: only its terms decide."""
        self.parking.suspend(suspended)
        self._apply_terms()

    def _apply_terms(self) -> None:
        terms = self.terms.in_force
        self.gpu.tell(events.TermsChanged(
            self.id, replace(terms, suspended=terms.suspended or self.parking.suspended)))

    @property
    def state(self) -> str:
        return self.parking.state or str(self.view.state)

    @property
    def memory(self) -> events.Memory:
        return self.gpu.scheduler.memory(self.id)

    @property
    def view(self) -> ClientView:
        return self.gpu.snapshot().clients[self.id]

    @property
    def usage(self) -> Usage:
        """The client's use of the card since it joined, until now."""
        return self.gpu.scheduler.usage(self.id, self.gpu.now)

    @property
    def held(self) -> int:
        """Microseconds with its gate open, under earlier daemons and on earlier cards too."""
        return self.past.held + self.usage.held

    @property
    def waited(self) -> int:
        """Microseconds in which it waited for its gate, earlier daemons and cards included."""
        return self.past.waited + self.usage.waited

    @property
    def waiting(self) -> int:
        """Microseconds since it began to wait; 0: it does not wait."""
        waiting = self.view.waiting
        return 0 if waiting is None else waiting + self.gpu.since()

    @property
    def idle(self) -> int:
        """Microseconds since its last work, also under an earlier daemon; 0: it is not idle."""
        if self.view.idle is None:
            return 0
        idle, connected = self.view.idle + self.gpu.since(), self.gpu.now - self.joined
        if self.past.idle and idle + JOINS_WITHIN >= connected:
            return self.past.idle + connected   # it has had no work since it connected
        return idle

    @property
    def position(self) -> int:
        """Its position in the queue; 1: it is next; 0: it is not queued."""
        wait = self.gpu.snapshot().waits.get(self.id)
        return 0 if wait is None else wait.position

    @property
    def expected(self) -> int | None:
        """Estimated microseconds until its turn; 0: it does not wait; None: unknown."""
        if self.view.waiting is None:
            return 0
        wait = self.gpu.snapshot().waits.get(self.id)
        return None if wait is None or wait.left is None else max(0, wait.left - self.gpu.since())


class GPU(Dispatcher):
    def __init__(
        self, facts: Facts, settings: Settings, allowances: Allowances, clock: Clock,
        timer: Timer, domains: Domains | None = None,
        budgets: Mapping[str, SharedBudget] | None = None,
    ) -> None:
        """`domains` and `budgets` (by tier) are shared by all cards."""
        self.neighbour = Neighbour(facts.uuid)      # memory lent to other cards; see budget.py
        self.others: tuple[GPU, ...] = ()           # all other cards
        self.facts = facts
        self.sample = Sample()          # NVML's last sample; empty if NVML does not answer
        self.capacity = Capacity(facts.memory_total, allowances)
        self.clients: dict[int, Client] = {}
        self.processes: Counter[int] = Counter()    # number of clients by pid
        # Usage of ended clients by tenant; the tenant of the client that ended last is last.
        self._gone: dict[str, Usage] = {}
        self.faults = Faults(lambda: self.changed.emit(), facts.index)
        self._listed = Listed()
        # Calls its argument once the sample is fresh, at once while NVML stalls. Set by Sampler.
        self.request_sample: Callable[[Callable[[], None]], None] = lambda done: done()
        # Asks NVML for the bytes of the card in use now, or used by the process of this pid. None:
        # it does not say, or not in time. Set by Sampler.
        self.measure: Callable[[int | None], Awaitable[int | None]] = self._last_measured
        # Returns the displayed name of a tenant. Set by Tenancy.
        self.shown: Callable[[str], str] = str
        # Returns a joining client's tenants' terms that the scheduler lacks. Set by Tenancy.
        self.terms_of: Callable[[Client], Mapping[str, TenantTerms]] = lambda client: {}

        # Emitted before the scheduler knows the client, with the memory that its HELLO reports.
        self.client_joins: Signal[Client, events.Memory] = Signal("client_joins")
        self.client_new: Signal[Client] = Signal("client_new")
        self.client_removed: Signal[Client] = Signal("client_removed")
        self.terms_changed: Signal[Client] = Signal("terms_changed")
        # Emitted with a report of the scheduler, or the LIMITS that refuse a COMMIT.
        self.reported: Signal[Client, actions.Report | actions.Limits] = Signal("reported")
        self.failed: Signal[()] = Signal("failed")
        self.sampled: Signal[Sample] = Signal("sampled")

        super().__init__(
            Scheduler(
                replace(settings, capacity=self.capacity.bytes, total=self.capacity.offered),
                clock(), domains, budgets, self.neighbour),
            clock, timer)

    def __str__(self) -> str:
        return f"gpu{self.facts.index}"

    def use_tenancy(
        self, shown: Callable[[str], str],
        terms_of: Callable[[Client], Mapping[str, TenantTerms]],
    ) -> None:
        """Sets functions that name tenants, and return the terms of a joining client's tenants."""
        self.shown, self.terms_of = shown, terms_of

    def use_sampler(
        self, request_sample: Callable[[Callable[[], None]], None],
        measure: Callable[[int | None], Awaitable[int | None]],
    ) -> None:
        """Sets the functions that sample the card."""
        self.request_sample, self.measure = request_sample, measure

    def link(self, others: "tuple[GPU, ...]", facts: Facts | None = None) -> None:
        """Sets all other cards, or facts that name those that the card reaches."""
        self.others, self.facts = others, facts or self.facts

    def take(self, sample: Sample) -> None:
        """Replaces NVML's last sample."""
        self.sample = sample

    @property
    def settings(self) -> Settings:
        return self.scheduler.settings

    @property
    def tq(self) -> int:
        """The quantum in force in us; if it is auto and no client waits, the last automatic one."""
        return self.snapshot().tq if self.settings.tq is None else self.settings.tq

    @property
    def state(self) -> str:
        """gathering, idle, shared (all run at once), turns, busy (short turns), or lost."""
        return "lost" if self.lost else str(self.snapshot().state)

    @property
    def lost(self) -> str:
        """Why the card is lost; "": it is not."""
        return self.faults.detail("gpu-lost")

    @property
    def fault(self) -> str:
        """Why the card cannot be relied on; "": nothing is known to be wrong with it."""
        return self.lost or self.faults.avoided(CRITICAL)

    @property
    def holders(self) -> tuple[Client, ...]:
        return tuple(self.clients[id] for id in self.snapshot().holders if id in self.clients)

    @property
    def strangers(self) -> dict[int, int]:
        """Bytes of the card by pid, of processes that are not clients, in NVML's last sample."""
        pids = {client.peer.pid for gpu in (self, *self.others) for client in gpu.clients.values()}
        held = self.sample.processes or ()
        return {one.pid: one.memory or 0 for one in held if one.pid not in pids}

    @property
    def may_lend(self) -> bool:
        """Whether clients of other cards may borrow memory of this card."""
        return any(one.clients and self.neighbour in one.neighbour.reachable for one in self.others)

    @property
    def occupied(self) -> dict[int, int]:
        """Bytes of the card by client id: clients' reports, and loans to other cards' clients."""
        own = {c.id: c.memory.resident + c.memory.pinned for c in self.clients.values()}
        return own | {id: loan.held for id, loan in self.neighbour.loans.items()}

    def evaluate_processes(self, sample: Sample, before: Mapping[int, int]) -> None:
        """Evaluates the processes of a sample. `before`: `occupied` before the query."""
        if sample.processes is None:
            return                      # the last known list stays in force
        strangers, before_alone = self.strangers, self.neighbour.alone
        lasting = self._listed.lasting(strangers)
        # With clients of which NVML lists none, the strangers may be these under other pids.
        unshared = lasting if self._listed.lists_clients or not self.clients else []
        more = f" and {len(unshared) - NAMED} more" if len(unshared) > NAMED else ""
        self.faults.set("gpu-unshared", ", ".join(map(shown, unshared[:NAMED])) + more)
        self.neighbour.find_alone(not strangers or (bool(before_alone) and not lasting))
        if self.neighbour.alone != before_alone:
            self.tell(events.Tick())
        self._listed.keep(
            sample.processes, (client.peer.pid for client in self.clients.values()))
        if evidence := self._evidence(lambda client: bool(client.peer.account)):
            filled = {id: min(before.get(id, 0), now) for id, now in self.occupied.items()}
            self._decide(events.Seen(evidence, filled))
        self.sampled.emit(sample)

    def _evidence(self, among: Callable[[Client], bool]) -> dict[int, events.Evidence]:
        return self._listed.evidence(
            (one.id, one.peer.pid, one.memory) for one in self.clients.values() if among(one))

    def _first_evidence(self, client: Client, memory: events.Memory) -> events.Evidence:
        """Returns evidence for the memory that a joining client claims from an earlier daemon."""
        if not memory.filled and not memory.host:
            return events.Evidence(0, 0)
        seen = self._evidence(lambda one: one.peer.pid == client.peer.pid)[client.id]
        return replace(seen, host=client.private) if memory.host else seen

    def join(
        self, client: Client, memory: events.Memory, *, running: bool, wants: bool, commit: int,
        lender: bytes = b"", before: Client | None = None,
    ) -> None:
        """Adds a client after HELLO. `before`: the same client on its last card.

        Raises GPULost if the card is lost, unless an earlier daemon knew the client: its program
        then gets the driver's error."""
        client.goes_on = bool(running or wants or memory.filled or memory.host or memory.disk)
        if not client.goes_on:
            self._require_card()
        account = client.peer.account
        self.capacity.joined(client.id, account, (before and before.parking.context_size) or None)
        self.apply_capacity()
        self.clients[client.id] = client
        self.processes[client.peer.pid] += 1
        self.client_joins.emit(client, memory)
        if before is not None:
            client.remember(EarlierTimes(before.held, before.waited), before.terms)
            client.parking.follow(before.parking)
        evidence = self._first_evidence(client, memory) if account else events.Evidence()
        memory, owes = self._checked_loan(client, memory, lender)
        self.tell(events.Joined(
            client.id, memory, running, wants, commit, client.domains, account, evidence,
            tuple(map(str, client.peer.sharers)), self.terms_of(client), owes,
            client.terms.in_force))
        self.client_new.emit(client)
        if before is not None or client.terms != ClientTerms():
            self.terms_changed.emit(client)

    def _checked_loan(
        self, client: Client, memory: events.Memory, lender: bytes
    ) -> tuple[events.Memory, str]:
        """Returns `memory`, `borrowed` cut to NVML's figure, and the lender's UUID or ""."""
        found = [one for one in self.others if one.facts.uuid_bytes == lender]
        if not found or self.state != "gathering":
            return memory, ""
        if client.peer.account:
            shown = sum(
                one.memory or 0 for one in found[0].sample.processes or ()
                if one.pid == client.peer.pid)
            memory = replace(memory, borrowed=min(memory.borrowed, shown))
        return memory, found[0].facts.uuid

    def leave(self, client: Client) -> None:
        """Removes a client whose connection has ended. No-op when repeated."""
        if self.clients.get(client.id) is not client:
            return
        self._keep_usage(client)
        self.tell(events.Left(client.id))
        client.inflight_page.close()
        del self.clients[client.id]
        self.processes[client.peer.pid] -= 1
        if not self.processes[client.peer.pid]:
            del self.processes[client.peer.pid]
        self.capacity.forget(client.id)
        self.capacity.release(client.id)
        self.apply_capacity()
        self.client_removed.emit(client)

    def usage_by_tenant(self) -> dict[str, Usage]:
        """Returns each tenant's use of the card so far, ended clients included."""
        found = dict(self._gone)
        for client in self.clients.values():
            name = client.counted_for
            found[name] = _sum(found.get(name), client.usage)
        return {self.shown(name): usage for name, usage in found.items()}

    def _keep_usage(self, client: Client) -> None:
        name = client.counted_for
        self._gone[name] = _sum(self._gone.pop(name, None), client.usage)
        if len(self._gone) > GONE_KNOWN:
            living = {one.counted_for for one in self.clients.values() if one is not client}
            for old in [one for one in self._gone if one not in living][:-GONE_KNOWN]:
                del self._gone[old]

    def configure(self, settings: Settings, allowances: Allowances | None = None) -> None:
        """Applies new settings; capacity, total and host budget stay as they are."""
        if allowances is not None:
            self.capacity.allowances = allowances
        before = self.settings
        settings = replace(
            settings, capacity=self.capacity.bytes, total=self.capacity.offered,
            host_budget=before.host_budget)
        if settings != before:
            self.tell(events.SettingsChanged(settings))

    def expect_context(self, client: Client) -> None:
        """Reserves memory for a client's context that will be restored, or has been."""
        self.capacity.joined(client.id, client.peer.account, client.parking.context_size or None)
        self.apply_capacity()

    def hold_context(self, client: Client) -> None:
        """Keeps memory free for a client's context until release_context()."""
        self.capacity.hold(client.id, client.parking.context_size)
        self.apply_capacity()

    def release_context(self, client: Client) -> None:
        self.capacity.release(client.id)
        self.apply_capacity()

    async def _last_measured(self, pid: int | None) -> int | None:
        """The figure of the last sample, for `measure`."""
        if pid is None:
            return self.sample.memory_used
        return next((one.memory for one in self.sample.processes or () if one.pid == pid), None)

    def apply_capacity(self) -> None:
        if self.capacity.bytes != self.settings.capacity:
            self.tell(events.CapacityChanged(self.capacity.bytes))

    def preempt(self) -> None:
        """Ends the current turns now if other clients wait. Raises GPULost."""
        self._require_card()
        self.tell(events.Preempted())

    def lose(self, why: str) -> None:
        if not self.lost:
            self.faults.set("gpu-lost", why)
            self.tell(events.CardLost())

    def _require_card(self) -> None:
        if self.lost:
            raise GPULost(f"{self} ({self.facts.name}) is lost: {self.lost}")

    def _send(self, order: actions.Order) -> None:
        if order.client in self.clients:
            self.clients[order.client].link.order(order)

    def _report(self, now: int, action: actions.Action) -> None:
        if (client := self.clients.get(action.client)) is None:
            return
        if isinstance(action, actions.TurnStarted):
            client.turns.begin(client.view, now)
        elif isinstance(action, actions.TurnEnded):
            client.turns.end(str(action.reason), action.held_time)
        if isinstance(action, actions.Report) or (
                isinstance(action, actions.Limits) and action.reason):
            self.reported.emit(client, action)

    def _fail(self) -> None:
        self.faults.set("gpu-lost", "its scheduler failed")
        self.failed.emit()


def _sum(one: Usage | None, other: Usage) -> Usage:
    return other if one is None else Usage(*map(add, one, other))
