# SPDX-License-Identifier: Apache-2.0
"""All GPUs of the machine, their clients, and the settings that may be changed while running.

Run-time changes override the configuration until they are reset. The state file keeps them."""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

from nvshared.clock import Clock, Timer
from nvshared.errors import ConfigError, InvalidArgs, NoSuchClient, NoSuchGPU, NvshareError
from nvshared.faults import Faults
from nvshared.kept import KeptFile
from nvshared.lanes import Run, call, here
from nvshared.machine import checkpoint, host
from nvshared.machine.nvml import Facts, Sample
from nvshared.machine.peer import Peer
from nvshared.names import POLICIES
from nvshared.quantity import LONGEST_TQ
from nvshared.scheduler.domains import Domains, SharedBudget
from nvshared.scheduler.events import AUTO_TQ_MOST, AntiThrash, Awaited, Settings
from nvshared.settings.defaults import Defaults
from nvshared.settings.state import Overrides, StateFile, saved
from nvshared.sharing.balancing import Balancing
from nvshared.sharing.budget import Budget, Lending
from nvshared.sharing.disk import Disk
from nvshared.sharing.gangs import Gangs
from nvshared.sharing.gpu import GPU, NAMED, Client
from nvshared.sharing.moving import Moving
from nvshared.sharing.saving import Saving
from nvshared.sharing.tenancy import Tenancy
from nvshared.signal import Signal
from nvshared.terms import Term
from nvshared.units import GIB, MILLISECOND, SECOND

LATE = 60 * SECOND                      # us after the start: later clients cause no recount
FETCHED_WITHIN = 10 * SECOND            # us for reading the files of the settings
REFUSED_MOST = 4                        # refused programs of one account that are noted
APART = SECOND                          # us between SafeBudget recounts; 1,000 processes take 0.1 s

logger = logging.getLogger(__name__)


class Manager:
    def __init__(
        self, read: Callable[[], Defaults], clock: Clock, timer: Timer,
        store: StateFile | None = None, tenancy: Tenancy | None = None, run: Run = here,
    ) -> None:
        """`store` keeps changes made at run time. `run`: Lanes.run, for the disk and parks."""
        self.gpus: list[GPU] = []       # in the order of NVML's indices
        self.gpu_new: Signal[GPU] = Signal("gpu_new")
        self.gpu_removed: Signal[GPU] = Signal("gpu_removed")
        self.reloaded: Signal[()] = Signal("reloaded")
        self.changed: Signal[()] = Signal("changed")    # list of GPUs or default settings changed
        self.faults = Faults(self.changed.emit)     # of the daemon as a whole
        self.socket = ""                # path of the socket at which programs find the daemon
        self.files: list[KeptFile] = []     # of the state folder
        # Whether the terms of clients are in their file; set by the daemon if it has such a file.
        self.saved_terms: Callable[[], Future[None]] = saved
        self.look_for_faults: Callable[[], Awaitable[None]] = _nothing      # set by Checks
        self._refused: dict[int, Peer] = {}     # by pid: programs with a library of another version
        self.domains = Domains()
        # Reads a process's memory limits, then calls the function; int: host bytes of a client that
        # has not joined yet, else 0. False: a recent read suffices, no call. Set by ControlGroups.
        self.read_limits: Callable[[Peer, int, Callable[[], None]], bool] = lambda *_: False
        self._read, self._run = read, run
        # Reads the files of which `read` makes the next Defaults, in a thread; a result that is an
        # NvshareError is raised by read_again().
        self.fetch: Callable[[], object] = bool
        self._defaults = read()
        self.tenancy = tenancy or Tenancy()
        self._overrides = {} if store is None else store.load()
        self._store = store
        self._clock, self._timer = clock, timer
        self._ids = count(1)
        self._draining = False
        self._awaited: set[object] = set()
        self.gangs = Gangs(clock, timer)
        self.budget = Budget("host", SharedBudget(self._defaults.settings.host_budget), timer)
        self.moving = Moving(self.gpus, self.budget.shared, self.ask_helper, run)
        self.balancing = Balancing(self.gpus, self.moving)
        self.saving = Saving(self.gpus, self.moving)
        self.disk = Disk(clock, timer, run, self.faults)
        self._budgets = {"host": self.budget, "disk": self.disk.budget}     # by tier
        self._lending = Lending(timer)
        self._apply()

    def use_limits(self, read: Callable[[Peer, int, Callable[[], None]], bool]) -> None:
        """Sets the function that reads a process's memory limits."""
        self.read_limits = read

    def use_checks(self, look_for_faults: Callable[[], Awaitable[None]]) -> None:
        """Sets the function that looks for faults."""
        self.look_for_faults = look_for_faults

    @property
    def settings(self) -> Settings:
        """The settings of GPUs without settings of their own."""
        return self._effective("")

    @property
    def tq(self) -> int:
        """The default quantum of GPUs in microseconds; if it is auto, the longest automatic one."""
        return AUTO_TQ_MOST if self.settings.tq is None else self.settings.tq

    @property
    def clients(self) -> Iterator[Client]:
        """All clients of all GPUs, oldest first on each."""
        return (client for gpu in self.gpus for client in gpu.clients.values())

    def add(self, facts: Facts, sample: Sample, *, gather: bool) -> GPU:
        """Adds a card. `gather`: it first waits for the HELLO of an earlier daemon's clients."""
        settings = self._for(facts)
        gpu = GPU(
            facts, settings if gather else replace(settings, gather=0),
            self._defaults.card(facts).allowances, self._clock, self._timer, self.domains,
            {tier: budget.shared for tier, budget in self._budgets.items()})
        gpu.take(sample)
        if not gather and sample.memory_used is not None:
            gpu.capacity.sampled(sample.memory_used, 0)
            gpu.apply_capacity()
        gpu.client_new.connect(self.gangs.join)
        gpu.client_removed.connect(self.gangs.leave)
        gpu.happened.connect(lambda *_: self.gangs.happened(gpu))
        self.moving.follow(gpu)
        self.saving.follow(gpu)
        for budget in self._budgets.values():
            budget.add(gpu)
        self._lending.add(gpu)
        self.tenancy.follow(gpu)
        if gather and self._awaited:
            gpu.tell(Awaited(expected=True))
        self.gpus.append(gpu)
        self.gpus.sort(key=lambda one: one.facts.index)
        if facts.mig:
            gpu.faults.set("gpu-mig", "it was so when nvshared found it")
        self.gpu_new.emit(gpu)
        self.changed.emit()
        return gpu

    def remove(self, gpu: GPU) -> None:
        """Removes a lost card. Its remaining clients get their answers from it, and go unseen."""
        self.gpus.remove(gpu)
        for budget in self._budgets.values():
            budget.remove(gpu)
        self._lending.remove(gpu)
        self.tenancy.unfollow(gpu)
        self.gpu_removed.emit(gpu)
        self.changed.emit()

    def replace(self, lost: GPU, facts: Facts, sample: Sample) -> GPU:
        """Manages a lost card anew, as the driver has found it again.

        Its clients say HELLO again, as after a restart of the daemon."""
        clients = tuple(lost.clients.values())
        self.remove(lost)
        gpu = self.add(facts, sample, gather=bool(clients))
        gpu.faults.set("gpu-unreliable", lost.faults.detail("gpu-unreliable"))  # until forget()
        for client in clients:
            # A parked program keeps its place: moving.py restores it on a card that there is.
            if not client.parking.state:
                client.link.resume_on(gpu)
        return gpu

    def forget(self, gpu: GPU) -> Future[None]:
        """Forgets a lost card and its settings, or errors that the driver has reported of a card.

        Raises InvalidArgs if there is nothing to forget. The future raises NotKept."""
        uuid = gpu.facts.uuid
        if gpu.lost:
            self.remove(gpu)
            if uuid in self._overrides:
                return self._set_overrides(
                    {key: one for key, one in self._overrides.items() if key != uuid})
        elif gpu.faults.detail("gpu-unreliable"):
            gpu.faults.set("gpu-unreliable", "")
        else:
            raise InvalidArgs(f"{gpu} ({gpu.facts.name}) is there, and nothing is known against it",
                              "only lost GPUs and reported errors can be forgotten")
        return saved()

    def log_unused_settings(self) -> None:
        """Logs which GPUs have settings of their own, but are not known here: the state folder may
        come from another machine, or a GPU was replaced."""
        known = {"", *(gpu.facts.uuid for gpu in self.gpus)}
        if absent := [uuid for uuid, one in self._overrides.items() if one and uuid not in known]:
            logger.warning(
                "settings of GPUs that this machine does not have are not in force: %s; make them "
                "for its GPUs; nvsharectl reset drops these, and all other settings made by "
                "commands", ", ".join(absent))

    def link(self, gpu: GPU, facts: Facts) -> None:
        """Notes which other cards a card reaches now."""
        if (facts.linked, facts.reached) != (gpu.facts.linked, gpu.facts.reached):
            now = replace(gpu.facts, linked=facts.linked, reached=facts.reached)
            gpu.link(gpu.others, now)
            self._lending.use(self._defaults.neighbour)

    def await_hello(self, session: object, *, awaited: bool) -> None:
        """Notes whether a connected client has yet to send HELLO; all schedulers wait for it."""
        before = bool(self._awaited)
        (self._awaited.add if awaited else self._awaited.discard)(session)
        if bool(self._awaited) is not before:
            for gpu in self.gpus:
                gpu.tell(Awaited(expected=not before))

    async def ask_helper(self, *command: Any, **more: Any) -> checkpoint.Answer:
        """checkpoint.ask(), of which the fault helper-failing shows the last failure."""
        try:
            answer = await checkpoint.ask(*command, **more)
        except NvshareError as error:
            self.faults.set("helper-failing", error.message)
            raise
        self.faults.set("helper-failing", "")
        return answer

    @property
    def refused(self) -> tuple[Peer, ...]:
        """Programs that were refused because their library is of another version."""
        return tuple(self._refused.values())

    def note_refused(self, peer: Peer) -> None:
        """Notes a program that is refused because its library is of another version."""
        same = sum(one.account == peer.account for one in self._refused.values())
        if peer.pid in self._refused or same < REFUSED_MOST:
            self._refused[peer.pid] = peer
        self._set_refused()

    def forget_refused(self, ended: Iterable[Peer]) -> None:
        for peer in ended:
            if self._refused.get(peer.pid) is peer:
                del self._refused[peer.pid]
        self._set_refused()

    def _set_refused(self) -> None:
        named = [f"{peer} of uid {peer.owner}" for peer in self._refused.values()]
        more = f" and {len(named) - NAMED} more" if len(named) > NAMED else ""
        self.faults.set("library-refused", ", ".join(named[:NAMED]) + more)

    def next_id(self) -> int:
        return next(self._ids)

    def gpu(self, name: str) -> GPU:
        """Returns the GPU with this index, UUID or PCI address. Raises NoSuchGPU."""
        wanted = name.strip().lower()
        for gpu in self.gpus:
            if wanted in gpu.facts.names:
                return gpu
        known = ", ".join(str(gpu.facts.index) for gpu in self.gpus) or "none"
        raise NoSuchGPU(
            f"there is no GPU {name!r}",
            f"the indices are: {known}; a UUID or a PCI address will do too")

    def client(self, id: int) -> Client:
        """Returns the client with this id. Raises NoSuchClient."""
        for client in self.clients:
            if client.id == id:
                return client
        raise NoSuchClient(f"there is no client {id}; it may have ended")

    def clients_by_pid(self, pid: int) -> tuple[Client, ...]:
        return tuple(client for client in self.clients if client.peer.pid == pid)

    def set_tq(self, tq: int | None, gpu: GPU | None = None) -> Future[None]:
        """Sets the quantum in us (None: auto) of one GPU, or of all. Raises InvalidArgs.

        The future is done when the change is on the disk, and raises NotKept if it is not written.
        """
        if tq is not None and not MILLISECOND <= tq <= LONGEST_TQ * SECOND:
            raise InvalidArgs(
                f"the quantum cannot be {tq / SECOND:.10g} seconds",
                f"give {MILLISECOND / SECOND:g} to {LONGEST_TQ}")
        return self._override(gpu, tq=tq)

    def set_anti_thrash(self, mode: str, gpu: GPU | None = None) -> Future[None]:
        """Like set_tq. Raises InvalidArgs unless `mode` is auto, on or off."""
        try:
            value = AntiThrash(mode)
        except ValueError:
            raise InvalidArgs(
                f"the anti-thrash mode cannot be {mode!r}", "give auto, on or off") from None
        return self._override(gpu, anti_thrash=value)

    def set_policy(self, name: str, gpu: GPU | None = None) -> Future[None]:
        """Like set_tq. Raises InvalidArgs unless `name` is one of POLICIES."""
        if name not in POLICIES:
            *most, last = POLICIES
            raise InvalidArgs(
                f"the policy cannot be {name!r}", f"give {', '.join(most)} or {last}")
        return self._override(gpu, policy=name)

    def set_term(self, id: int, term: Term, value: int, *, by_owner: bool = False) -> None:
        """Changes a client's term. Raises NoSuchClient, InvalidArgs."""
        client = self.client(id)
        client.set_terms(client.terms.having(term, value, by_owner=by_owner))

    def drain(self, on: bool) -> None:
        """Sets whether the daemon is about to end; all clients that fit are then loaded."""
        if on != self._draining:
            self._draining = on
            self.gangs.drain(on)
            for gpu in self.gpus:
                gpu.configure(self._for(gpu.facts))

    def set_safe_budget(self, size: int) -> None:
        """Sets the host budget in bytes, unless it is configured."""
        if self._defaults.safe:
            settings = replace(self._defaults.settings, host_budget=size)
            self._defaults = replace(self._defaults, settings=settings)
            self.budget.resize(size)

    async def read_again(self) -> None:
        """Reads the files of the configuration in a thread, then applies them, as reload() does."""
        fetched = await call(self._run, "settings", self.fetch, FETCHED_WITHIN)
        if fetched is None:
            fetched = ConfigError("the folder of the settings does not answer")
        if isinstance(fetched, NvshareError):
            self.faults.set("settings-refused", fetched.message)
            raise fetched
        self.reload()

    def reload(self) -> None:
        """Applies the configuration as read last. Raises ConfigError; then nothing has changed."""
        try:
            self._defaults = self._read()
        except NvshareError as error:
            self.faults.set("settings-refused", error.message)
            raise
        self.faults.set("settings-refused", "")
        self._apply()
        self.reloaded.emit()

    def reset_settings(self) -> Future[None]:
        """Removes all changes made at run time, so that the configuration applies again."""
        return self._set_overrides({})

    def _override(self, gpu: GPU | None, **changed: Any) -> Future[None]:
        overrides = self._overrides
        if gpu is None:                 # removes these settings of single GPUs
            overrides = {
                uuid: {name: value for name, value in one.items() if name not in changed}
                for uuid, one in overrides.items()}
        key = "" if gpu is None else gpu.facts.uuid
        return self._set_overrides({**overrides, key: overrides.get(key, {}) | changed})

    def _set_overrides(self, overrides: Overrides) -> Future[None]:
        self._overrides = overrides
        self._apply()
        return saved() if self._store is None else self._store.save(overrides)

    def _apply(self) -> None:
        for gpu in self.gpus:
            gpu.configure(self._for(gpu.facts), self._defaults.card(gpu.facts).allowances)
        self.budget.resize(self._defaults.settings.host_budget)
        self.disk.use(self._defaults.disk)
        self._lending.use(self._defaults.neighbour)
        self.moving.use(self._defaults.deep_idle)
        self.balancing.use(on=self._defaults.balance)
        self.changed.emit()

    def _for(self, facts: Facts) -> Settings:
        settings = replace(self._effective(facts.uuid), step=self._defaults.card(facts).step)
        if self._draining:
            return replace(settings, draining=True, anti_thrash=AntiThrash.OFF)
        return settings

    def _effective(self, uuid: str) -> Settings:
        overrides = self._overrides.get("", {}) | self._overrides.get(uuid, {})
        return replace(self._defaults.settings, **overrides)


class SafeBudget:
    """The host budget if none is configured: at start it is computed from the free host memory.

    It is computed again ("recount") once an earlier daemon's clients have reported their memory,
    and when a client joins within LATE: a later client could choose the time. It never shrinks."""

    def __init__(self, clock: Clock, timer: Timer, run: Run = here) -> None:
        self.bytes = host.safe_budget()
        self._clock, self._timer, self._run = clock, timer, run
        self._until = clock() + LATE
        self._next = clock()            # earliest time of the next recount
        self._due = False

    def follow(self, manager: Manager) -> None:
        self._manager = manager
        # Recount in this thread, so that it is done before any client is refused.
        manager.budget.gathered.connect(partial(self._recount, here))
        manager.gpu_new.connect(lambda gpu: gpu.client_new.connect(self._client_joined))

    def _client_joined(self, client: Client) -> None:
        late = not self._manager.budget.shared.gathering and self._clock() < self._until
        if late and _swapped(client) and not self._due:
            self._due = True
            if self._clock() >= self._next:
                self._recount(self._run)
            else:
                self._timer(self._next, partial(self._recount, self._run))

    def _recount(self, run: Run) -> None:
        self._due = False
        self._next = self._clock() + APART
        held: Counter[int] = Counter()
        for client in self._manager.clients:
            held[client.peer.pid] += _swapped(client)
        held = +held                    # drops processes that report no host memory
        if held:
            run(self, partial(host.safe_budget, held), self._recounted)

    def _recounted(self, more: int | None) -> None:
        if more is not None and more > self.bytes:
            self.bytes = more
            self._manager.set_safe_budget(more)
            logger.debug("with what programs hold already, %.1f GiB is safe to take", more / GIB)


async def _nothing() -> None:
    return None


def _swapped(client: Client) -> int:
    """The bytes of host memory that a client holds, by its reports."""
    return client.memory.host + client.memory.beyond + client.parking.context
