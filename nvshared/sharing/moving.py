# SPDX-License-Identifier: Apache-2.0
"""Parks programs: checkpoints them off their card, and restores them there or on another card.

If a step fails, the program goes on as before. nvshare-checkpoint may be killed at any step: then
the driver is asked for the state of the process, and NVML for its card."""

import asyncio
import contextlib
import logging
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Any

from nvshared.clock import repeat
from nvshared.errors import InvalidArgs, NoSuchClient, NvshareError
from nvshared.lanes import Run, call, here
from nvshared.machine import cgroup, checkpoint, host
from nvshared.machine.checkpoint import Answer, NotSent, Step
from nvshared.scheduler.actions import ClientState
from nvshared.scheduler.client import PACE, Average
from nvshared.scheduler.domains import SharedBudget
from nvshared.sharing.gpu import GPU, Client, Parkable
from nvshared.sharing.sampler import take_samples
from nvshared.units import MIB, SECOND

PARKING, PARKED, RESTORING = "parking", "parked", "restoring"
MOVED = "moved"                         # a new Client on another card replaces this one

CLEAR = frozenset({"running", "checkpointed", "failed"})    # final states of a process

CHECK_EVERY = 0.01                      # seconds between checks of an awaited condition
EVICTED_WITHIN = 60.0                   # seconds for the eviction, else the program is not parked
JOINED_WITHIN = 2.0                     # seconds from a restore on another card to HELLO there
FREE_READ_WITHIN = 5 * SECOND           # us to read the limits of cgroups; later the park fails
RETRY_AFTER = 2.0                       # seconds from a failure to the next attempt
RETRY_AFTER_MOST = 60.0                 # seconds: longest pause between failing helpers, see _try()
HELPERS_AT_ONCE = 4                     # nvshare-checkpoint processes (helpers) of an account
PARKS_AT_ONCE = 3                       # under deep-idle; one helper remains for waking clients
NOT_SENT = "not asked"                  # Answer.state if no helper got the command
# CUresults that may be temporary: CUDA_ERROR_OUT_OF_MEMORY, NOT_READY (a thread is stopped).
TEMPORARY_ERRORS = frozenset({2, 600})
PARK_RETRY_AFTER = 60 * SECOND          # us from a failure to the next attempt under deep-idle
PACE_LEAST = 256 * MIB                  # smaller evictions do not enter the estimate of us per byte
IDLE_CHECK_EVERY = 1.0                  # seconds between searches for clients to park

Ask = Callable[..., Awaitable[Answer]]  # the type of checkpoint.ask()

logger = logging.getLogger(__name__)


def start_task(tasks: set[asyncio.Task[Any]], work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Starts a task that goes on if its caller is cancelled; `tasks` holds it until it ends."""
    task = asyncio.get_running_loop().create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task


async def ask_driver(
    ask: Ask, client: Client, command: str, pairs: Iterable[tuple[str, str]] = (),
) -> Answer:
    """Returns and logs nvshare-checkpoint's answer; state NOT_SENT or "none": no answer came."""
    try:
        answer = await ask(command, client.peer.pid, pairs)
    except NvshareError as error:
        state = NOT_SENT if isinstance(error, NotSent) else "none"
        answer = Answer(state, (Step(command, -1, 0, error.message),))
    for step in answer.steps:
        logger.debug("%s: %s: %s (%d) after %.3f s", client, step.name, step.words, step.code,
                     step.took / SECOND)
    if not (why := answer.trouble):
        if command != "state":
            client.checkpoint_errors.clear()
    elif why not in client.checkpoint_errors:
        # A program that the driver refuses to checkpoint runs on, so a warning suffices.
        level = logging.WARNING if answer.state == "running" else logging.ERROR
        logger.log(level, "%s: nvshare-checkpoint %s failed: %s", client, command, why)
        client.checkpoint_errors.add(why)
    return answer


class Moving:
    def __init__(
        self, gpus: Sequence[GPU], budget: SharedBudget, ask: Ask = checkpoint.ask, run: Run = here,
    ) -> None:
        """`budget`: of host memory. `run`: Lanes.run, for reading the limits of control groups."""
        self.deep_idle: int | None = None       # us: clients idle for longer are parked; None: none
        self._gpus = gpus
        self._budget = budget
        self._ask, self._run = ask, run
        # Moves in progress, until HELLO on the new card: the new card, and the client's bytes.
        self.arriving: dict[Client, tuple[GPU, int]] = {}
        self._claimed = 0               # bytes of host memory that running checkpoints will need
        # For price(): us per byte that is evicted before a move, and us for the rest of a move.
        self._pace, self._rest_time = PACE, Average(2 * SECOND, SECOND // 10)
        # By account: a semaphore that bounds its helpers; its number of unclear results in a row.
        self._slots: defaultdict[str, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(HELPERS_AT_ONCE))
        self._failures: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def park(self, client: Client, *, ahead: bool = False) -> None:
        """Parks a client; `ahead`: unless it wants the card. On NvshareError the client runs on."""
        await asyncio.shield(start_task(self._tasks, self._park(client, ahead=ahead)))

    async def move(self, client: Client, target: GPU, why: str = "") -> None:
        """Moves a client to a card. Raises NvshareError. `why`: reason of the balancer, if any."""
        await asyncio.shield(start_task(self._tasks, self._move(client, target, why)))

    def check_target(self, client: Client, target: GPU) -> None:
        """Raises NvshareError with the reason if a client may not be moved to a card."""
        if target is client.gpu:
            raise InvalidArgs(f"{client} is on GPU {target.facts.index} already")
        if target.lost:
            raise NvshareError(f"{client} cannot be moved: {target} is lost")
        was, new = client.gpu.facts, target.facts
        if (was.name, was.memory_total) != (new.name, new.memory_total) or was.mig or new.mig:
            raise NvshareError(
                f"{client} cannot be moved from {was.name} to {new.name}: "
                "the driver restores programs on GPUs of the same kind only")
        size = _size(client)
        if size > target.capacity.bytes:
            raise NvshareError(
                f"{client} cannot be moved: GPU {target.facts.index} is too small for its memory")
        # The target's scheduler may not know the tenant yet: the old card's limits are checked.
        for limit in client.gpu.scheduler.memory_limits:
            if limit.limit and client.id in limit.stakes:
                promised = sum(one.sums.promised for one in target.scheduler.memory_limits
                               if one.name == limit.name)
                promised += sum(more for one, (card, more) in self.arriving.items()
                                if card is target and one is not client
                                and limit.name in map(str, one.peer.tenants))
                if size + promised > limit.limit:
                    raise NvshareError(f"{client} cannot be moved: on GPU {target.facts.index}, "
                                       f"{limit.reason}")

    def price(self, client: Client) -> float:
        """Returns the estimated microseconds that a move of the client takes, by past moves."""
        return self._rest_time.value + self._pace.value * client.memory.resident

    async def drain(self, gpu: GPU) -> list[tuple[Client, str]]:
        """Moves or parks all clients of a card. Returns the clients that stay, and the reasons."""
        left = []
        for client in tuple(gpu.clients.values()):
            why = ""
            targets = [card for card in self._possible_cards(client) if card is not gpu]
            for target in (*sorted(targets, key=lambda card: -card.snapshot().free), None):
                try:
                    await (self.park(client) if target is None else self.move(client, target))
                    why = ""
                    break
                except NvshareError as error:
                    if target is not None or not why:
                        why = error.message
            if why and gpu.clients.get(client.id) is client and client.parking != PARKED:
                left.append((client, why))
        return left

    def wake(self, client: Client) -> None:
        """Restores a parked client when its turn comes. No-op for a client that is not parked."""
        if client.parking == PARKED:
            client.parking = RESTORING
            start_task(self._tasks, self._wake(client))

    def take_over(self, client: Client, context: int) -> None:
        """Takes over a client parked or being parked by an earlier daemon, with its `context`."""
        client.parking = RESTORING
        self._set_context(client, context)
        start_task(self._tasks, self._find(client))

    def forget(self, client: Client) -> None:
        """Gives the host memory of a removed client's parked context back to the budget."""
        self._set_context(client, 0)

    def _set_context(self, client: Client, size: int) -> None:
        self._budget.contexts += size - client.context
        client.context = size

    async def watch(self) -> None:
        """Periodically parks clients that are idle for longer than `deep_idle`; never returns."""
        parks: set[asyncio.Task[Any]] = set()

        async def park_idle_clients() -> None:
            idle = (one for gpu in self._gpus for one in gpu.clients.values()
                    if self._is_idle_for_long(one))
            for client in list(islice(idle, PARKS_AT_ONCE - len(parks))):
                start_task(parks, self._park_idle(client))

        await repeat(IDLE_CHECK_EVERY, park_idle_clients)

    async def _park_idle(self, client: Client) -> None:
        try:
            await self.park(client, ahead=True)
        except NvshareError as error:
            logger.debug("%s", error)
        except Exception:               # an exception must not end the parks of other clients
            logger.exception("%s could not be parked", client)

    def _is_idle_for_long(self, client: Client) -> bool:
        return (self.deep_idle is not None and not client.parking and not client.unparkable
                and not refusal(client) and client.view.state is ClientState.IDLE
                and client.idle >= self.deep_idle and client.gpu.now >= client.park_after)

    async def _park(self, client: Client, *, ahead: bool) -> None:
        await _settle(client)
        if client.parking == PARKED:
            return
        await self._checkpoint(client, ahead=ahead)
        client.parking = PARKED
        client.suspend_to_park(False)

    async def _move(self, client: Client, target: GPU, why: str) -> None:
        await _settle(client)
        self.check_target(client, target)
        began, resident = client.gpu.now, client.memory.resident
        self.arriving[client] = target, _size(client)
        try:
            if client.parking != PARKED:
                await self._checkpoint(client, ahead=False)
            client.parking = RESTORING
            await _make_room(client, target)
            others = [gpu for gpu in self._possible_cards(client) if gpu is not target]
            reason = await self._restore(client, [target, *others])
            if not reason:
                client.moved = why
                rest = client.gpu.now - began - self._pace.value * resident
                self._rest_time = self._rest_time.after(max(0.0, rest))
            await self._wait_until_joined(client)
        finally:
            self.arriving.pop(client, None)
            if client.parking == RESTORING:     # an unexpected exception has ended the restore
                client.parking = PARKED
            if client.parking == PARKED and _parkable(client).has_turn:
                self.wake(client)       # an earlier wake() was a no-op during the move
        if reason:
            raise NvshareError(f"{client} was not moved: {reason}")

    async def _checkpoint(self, client: Client, *, ahead: bool) -> None:
        """Checkpoints a client. If that fails, the program goes on; raises NvshareError then."""
        if why := refusal(client) or client.unparkable:
            raise NvshareError(f"{client} cannot be parked: {why}")
        client.parking = PARKING
        asked = False
        try:
            # An upgrade may have removed nvshare-checkpoint: after PARK, threads would wait for it.
            answer = await self._try(client, "state")
            _require(client)
            if answer.state != "running":
                raise NvshareError(answer.reason)
            size = await _context_bytes(client)
            began, resident = client.gpu.now, client.memory.resident
            client.suspend_to_park(True)
            await _wait_until_evicted(client, ahead=ahead)
            if resident >= PACE_LEAST:
                self._pace = self._pace.after((client.gpu.now - began) / resident)
            async with self._host_memory(client, size):
                asked = True
                await _parkable(client).park(size, ahead=ahead)
                answer = await self._ask_until_clear(client)
            if answer.state != "checkpointed":
                why = answer.reason
                if not TEMPORARY_ERRORS.intersection(one.code for one in answer.steps):
                    client.unparkable = why
                raise NvshareError(why)
        except Exception as error:      # even after an unexpected exception the program must go on
            client.parking = ""
            self._set_context(client, 0)
            client.park_after = client.gpu.now + PARK_RETRY_AFTER
            if _is_there(client):
                if asked:
                    _parkable(client).resume_on(client.gpu)
                client.suspend_to_park(False)
            if not isinstance(error, NvshareError):
                raise
            raise NvshareError(f"{client} cannot be parked: {error.message}") from error
        client.gpu.capacity.forget(client.id)
        _parkable(client).confirm_checkpoint()

    @contextlib.asynccontextmanager
    async def _host_memory(self, client: Client, size: int) -> AsyncIterator[None]:
        """Reserves host memory for a checkpoint. Raises NvshareError if cgroups have too little."""
        pid = client.peer.pid
        free = await call(self._run, pid, partial(free_host_memory, pid), FREE_READ_WITHIN)
        _require(client)
        if free is None:
            raise NvshareError("the limits of its control groups cannot be read")
        # Other checkpoints may have claimed memory during the read.
        where = ("its control group or the host" if size + self._claimed > free
                 else "the host budget" if size > self._budget.unneeded else "")
        if where:
            raise NvshareError(
                f"{where} has too little left for its {-(-size // MIB)} MiB on the GPU")
        self._claimed += size
        self._set_context(client, size)
        try:
            yield
        finally:
            self._claimed -= size

    async def _ask_until_clear(self, client: Client) -> Answer:
        """Checkpoints the process. Returns a state in CLEAR. Raises NvshareError if it runs on."""
        answer = await self._try(client, "park")
        if answer.state == NOT_SENT:
            raise NvshareError(answer.trouble)
        while answer.state not in CLEAR:
            _require(client)
            answer = await self._try(client, "wake")
            if answer.state == "running":
                raise NvshareError("nvshare-checkpoint was ended before it was done")
            await asyncio.sleep(RETRY_AFTER)
        _require(client)
        return answer

    async def _try(
        self, client: Client, command: str, pairs: Iterable[tuple[str, str]] = (),
    ) -> Answer:
        """Runs a helper, few at once for an account: clients may falsely claim to be parked."""
        account = client.peer.account
        async with self._slots[account]:
            if (failures := self._failures[account]) > 1:
                await asyncio.sleep(min(RETRY_AFTER * 2 ** min(failures - 2, 10), RETRY_AFTER_MOST))
            answer = await ask_driver(self._ask, client, command, pairs)
            self._failures[account] += 1
            if answer.state not in ("none", NOT_SENT):
                del self._failures[account]
        return answer

    async def _wake(self, client: Client) -> None:
        while _is_there(client):
            try:
                reason = await self._restore(client, self._possible_cards(client))
                await self._wait_until_joined(client)
            except Exception:           # even after an unexpected exception the program must go on
                logger.exception("%s could not be restored", client)
                reason, client.parking = "a fault of the daemon", PARKED
            finally:
                self.arriving.pop(client, None)
            if client.parking != PARKED or not _is_there(client):
                return
            logger.debug("%s cannot be restored yet: %s", client, reason)
            await asyncio.sleep(RETRY_AFTER)
            if client.parking != PARKED:
                return                  # a move or another _wake() restores the client
            client.parking = RESTORING

    async def _restore(self, client: Client, targets: Iterable[GPU]) -> str:
        """Restores a client on the first card that accepts it. Returns why the first refused it."""
        reason = ""
        for gpu in targets:
            if gpu is not client.gpu:
                try:                    # clients may have moved there since the first check
                    self.check_target(client, gpu)
                except NvshareError as error:
                    reason = reason or error.message
                    continue
                self.arriving[client] = gpu, _size(client)
            # The driver requires a pair (UUID before, after) for each card; none: no change.
            swapped = {} if gpu is client.gpu else {client.gpu: gpu, gpu: client.gpu}
            answer = await self._try(client, "wake", [
                (one.facts.uuid, swapped.get(one, one).facts.uuid)
                for one in self._gpus if swapped])
            if not _is_there(client):
                return f"{client} has ended"
            if answer.state == "running":
                restored = any(one.name == "restore" and not one.code for one in answer.steps)
                await self._resume(client, gpu if restored else None)
                return reason
            reason = reason or answer.reason
            if answer.state == "failed":    # final: the program's calls return the driver's error
                await self._resume(client, None)
                return reason
        client.parking = PARKED
        client.suspend_to_park(False)
        return reason

    async def _resume(self, client: Client, gpu: GPU | None) -> None:
        """Lets the program go on, as its process runs on this card; None: NVML tells the card."""
        if gpu is None:
            await take_samples(self._gpus)
            gpu = next((one for one in self._gpus if any(
                process.pid == client.peer.pid for process in one.sample.processes or ())),
                client.gpu)
        if not _is_there(client):
            return
        moved = gpu is not client.gpu
        client.parking = ""
        self._set_context(client, 0)
        _parkable(client).resume_on(gpu)
        if moved:
            client.parking = MOVED
            if client in self.arriving:    # NVML may show another card than the expected one
                self.arriving[client] = gpu, self.arriving[client][1]
        else:
            client.suspend_to_park(False)

    async def _wait_until_joined(self, client: Client) -> None:
        """Waits up to JOINED_WITHIN until a moved client counts against its new card's limits."""
        gpu, _ = self.arriving.get(client, (client.gpu, 0))
        await _poll(JOINED_WITHIN, lambda: (
            client.parking != MOVED or bool(gpu.lost) or client.peer.pid in gpu.processes))

    async def _find(self, client: Client) -> None:
        answer = await self._try(client, "state")
        if answer.state == "locked":
            answer = await self._try(client, "wake")
        if not _is_there(client):
            return
        if answer.state in ("running", "failed"):
            await self._resume(client, None)
            return
        client.parking = PARKED
        client.gpu.capacity.forget(client.id)
        if _parkable(client).has_turn:
            self.wake(client)

    def _possible_cards(self, client: Client) -> list[GPU]:
        """Returns the cards on which the client may be restored, its own first unless lost."""
        cards = [client.gpu]
        for gpu in self._gpus:
            with contextlib.suppress(NvshareError):
                self.check_target(client, gpu)
                cards.append(gpu)
        return sorted(cards, key=lambda gpu: bool(gpu.lost))


def _parkable(client: Client) -> Parkable:
    if client.parkable is None:
        raise NvshareError("its library cannot be asked")
    return client.parkable


def _is_there(client: Client) -> bool:
    return client.gpu.clients.get(client.id) is client


def _require(client: Client) -> None:
    """Raises NoSuchClient if the client has ended, or has moved to another card."""
    if not _is_there(client):
        raise NoSuchClient(f"{client} has {'moved' if client.parking == MOVED else 'ended'}")


async def _settle(client: Client) -> None:
    await _poll(None, lambda: client.parking not in (PARKING, RESTORING) or not _is_there(client))
    _require(client)


async def _poll(within: float | None, is_met: Callable[[], bool]) -> bool:
    """Waits until a condition is met. False: it was not met `within` these seconds."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within):
            while not is_met():         # noqa: ASYNC110
                await asyncio.sleep(CHECK_EVERY)
            return True
    return False


def refusal(client: Client) -> str:
    """Returns why a client cannot be parked, as far as the daemon knows; "": no reason known."""
    if client.gpu.lost:
        return f"{client.gpu} is lost"
    if client.peer.pid == 0:
        return "its process cannot be seen from here"
    if client.memory.pin_reason:
        return "its memory does not leave the card"
    if client.gpu.processes[client.peer.pid] > 1 or any(
            client.peer.pid in gpu.processes for gpu in client.gpu.others):
        return "it uses several GPUs"
    if client.gang or client.peer.gang:
        return "it has its turns together with other programs"
    return ""


def _size(client: Client) -> int:
    """Returns the bytes of a card that the client fills when all its memory is resident."""
    return client.memory.allocated + client.memory.pinned


async def _wait_until_evicted(client: Client, *, ahead: bool) -> None:
    """Waits until only pinned memory is resident. Raises NvshareError; `ahead`: also if waiting."""
    def is_evicted() -> bool:
        _require(client)
        if client.gpu.lost:
            raise NvshareError(f"{client.gpu} is lost")
        if ahead and client.view.waiting is not None:
            raise NvshareError("it wants to use the GPU")
        memory = client.memory
        return not memory.resident + memory.borrowed and client.gpu.scheduler.rests(client.id)

    if not await _poll(EVICTED_WITHIN, is_evicted):
        raise NvshareError("its memory does not leave the card")


async def _context_bytes(client: Client) -> int:
    """Returns the bytes of the client on the card, by NVML, that are not its resident memory."""
    await take_samples([client.gpu])
    _require(client)
    shown = sum(one.memory or 0 for one in client.gpu.sample.processes or ()
                if one.pid == client.peer.pid)
    return max(0, shown - client.memory.resident)


def free_host_memory(pid: int) -> int:
    """Returns the host bytes that a process can still allocate within its cgroups' limits."""
    limits = [group.limit() for group in cgroup.chain(host.process(pid, "cgroup"))]
    return min([host.free(), *(limit.free for limit in limits if limit is not None)])


async def _make_room(client: Client, target: GPU) -> None:
    """Waits up to EVICTED_WITHIN until the target has evicted enough for the client's context."""
    target.expect_context(client)
    try:
        if not await _poll(EVICTED_WITHIN, lambda: (
                not _is_there(client) or bool(target.lost)
                or sum(target.occupied.values()) <= target.capacity.bytes)):
            logger.info("%s has no room for the context of %s", target, client)
    finally:
        target.capacity.forget(client.id)
