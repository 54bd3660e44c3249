# SPDX-License-Identifier: Apache-2.0
"""Parks programs: checkpoints them off their card, and restores them there or on another card.

A restore that lacks memory of the card cannot be taken back: the driver never restores that process
(580 on an H200). So _order_restore() alone orders restores, once NVML shows that the card has room,
which is held until the restore has ended. If another step fails, the program goes on as before.
nvshare-checkpoint may be killed at any step: then the driver is asked for the state of the process,
and NVML for its card."""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from nvshared.clock import repeat
from nvshared.errors import InvalidArgs, NoSuchClient, NvshareError
from nvshared.lanes import Run, call, here
from nvshared.machine import cgroup, checkpoint, host
from nvshared.machine.checkpoint import NOT_ORDERED, Answer, NotSent, Step
from nvshared.scheduler.actions import ClientState
from nvshared.scheduler.domains import SharedBudget
from nvshared.scheduler.events import CardLost, Event
from nvshared.scheduler.records import PACE, Average
from nvshared.sharing.gpu import GPU, Client
from nvshared.units import GIB, MIB, SECOND

PARKING, PARKED, RESTORING = "parking", "parked", "restoring"
SAVING = "saving"                       # parked, and about to be dumped by CRIU: sharing/saving.py
MOVED = "moved"                         # a new Client on another card replaces this one
LOST = "lost"                           # the driver cannot restore it, now or later

CLEAR = frozenset({"running", "checkpointed", "failed"})    # final states of a process
# CUresults of a restore after which none can succeed: CUDA_ERROR_OUT_OF_MEMORY, OPERATING_SYSTEM.
FINAL_ERRORS = frozenset({2, 304})
IN_PROGRESS = frozenset({PARKING, RESTORING, SAVING})

CHECK_EVERY = 0.01                      # seconds between checks of an awaited condition, at first
EVICTED_WITHIN = 60.0                   # seconds for the eviction, else the program is not parked
ROOM_WITHIN = 10.0                      # seconds for room on a card, else another card is tried
ROOM_CHECK_MOST = 0.25                  # seconds: longest pause between questions for that room
LOCKED_FOR = 5.0                        # seconds after which a locked process is not just parked
JOINED_WITHIN = 2.0                     # seconds from a restore on another card to HELLO there
LEFT_WITHIN = 5.0                       # seconds for a parked client's library to leave
FREE_READ_WITHIN = 5 * SECOND           # us to read the limits of cgroups; later the park fails
RETRY_AFTER = 2.0                       # seconds from a failure to the next attempt
RETRY_AFTER_MOST = 60.0                 # seconds: longest pause between attempts that fail
REFUSALS_MOST = 10                      # times that _wake() lets the driver refuse a restore: 5 min
HELPERS_AT_ONCE = 4                     # nvshare-checkpoint processes (helpers) of an account,
HELPERS_MOST = 12                       # of all accounts; nvshare-checkpoint.socket allows 16
CLAIM_MOST = 4 * GIB                    # bytes of a context that its client alone vouches for
RESTORES_AT_ONCE = 4                    # of an account; room is held for each
PARKS_AT_ONCE = 3                       # of an account, under deep-idle
ACCOUNTS_KNOWN = 1000                   # most accounts of which failures of helpers are counted
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
    lacks: Callable[[], Awaitable[str]] | None = None,
) -> Answer:
    """Returns and logs nvshare-checkpoint's answer; state NOT_SENT or "none": no answer came."""
    try:
        answer = await ask(command, client.peer.pid, pairs, lacks)
    except NvshareError as error:
        state = NOT_SENT if isinstance(error, NotSent) else "none"
        answer = Answer(state, (Step(command, -1, 0, error.message),))
    for step in answer.steps:
        logger.debug("%s: %s: %s (%d) after %.3f s", client, step.name, step.words, step.code,
                     step.took / SECOND)
    if answer.state == NOT_ORDERED:
        return answer
    why = answer.trouble
    if (why or command != "state") and client.parking.is_new(why):
        # A program that the driver refuses to checkpoint runs on, so a warning suffices.
        level = logging.WARNING if answer.state == "running" else logging.ERROR
        logger.log(level, "%s: nvshare-checkpoint %s failed: %s", client, command, why)
    return answer


class Places:
    """Bounds work by account: at most `each` pieces at once; others wait, in order of arrival."""

    def __init__(self, each: int) -> None:
        self._each = each
        # Weak, so that an account is forgotten once none of its work waits or runs.
        self._of: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    def of(self, account: str) -> asyncio.Semaphore:
        """The places of an account. The work keeps this object while it has a place."""
        return self._of.setdefault(account, asyncio.Semaphore(self._each))


Targets = dict[Client, tuple[GPU, int]]     # where clients move to, and their bytes there


class Moving:
    def __init__(
        self, gpus: Sequence[GPU], budget: SharedBudget, ask: Ask = checkpoint.ask, run: Run = here,
    ) -> None:
        """`budget`: of host memory. `run`: Lanes.run, for reading the limits of control groups."""
        self._deep_idle: int | None = None      # us: clients idle for longer are parked; None: none
        self._parks_idle = asyncio.Event()      # set unless that is None
        self._gpus = gpus
        self._budget = budget
        self._ask, self._run = ask, run
        # Moves in progress, until HELLO on the new card.
        self.arriving: Targets = {}
        self._claimed = 0               # bytes of host memory that running checkpoints will need
        # For price(): us per byte that is evicted before a move, and us for the rest of a move.
        self._pace, self._rest_time = PACE, Average(2 * SECOND, SECOND // 10)
        self._parks, self._restores = Places(HELPERS_AT_ONCE), Places(RESTORES_AT_ONCE)
        self._helpers, self._all_helpers = Places(HELPERS_AT_ONCE), asyncio.Semaphore(HELPERS_MOST)
        self._failures: Counter[str] = Counter()    # by account: unclear results in a row
        self._tasks: set[asyncio.Task[Any]] = set()
        self._watched: dict[Client, set[asyncio.Event]] = {}    # set when the client has changed

    def follow(self, gpu: GPU) -> None:
        gpu.client_removed.connect(self._forget)
        gpu.happened.connect(partial(self._happened, gpu))

    async def park(self, client: Client, *, ahead: bool = False) -> None:
        """Parks a client; `ahead`: unless it wants the card. On NvshareError the client runs on."""
        await self._start(client, partial(self._park, client, ahead=ahead), done=PARKED)

    async def move(self, client: Client, target: GPU, why: str = "") -> None:
        """Moves a client to a card. Raises NvshareError. `why`: reason of the balancer, if any."""
        await self._start(client, partial(self._move, client, target, why))

    async def save(self, client: Client, dump: Callable[[], Awaitable[None]]) -> None:
        """Parks a client, has its library leave, and awaits `dump`, which ends the process.

        Raises NvshareError: the client is there and runs on; or it has left and will come back,
        parked, if its process has not ended."""
        await self._start(client, partial(self._save, client, dump))

    async def until_awake(self, client: Client) -> bool:
        """Waits until a client that was parked has been restored. False: it has left before."""
        parking = client.parking
        await self._until(client, lambda: parking.state in ("", MOVED) or not _is_there(client))
        return parking.state in ("", MOVED)

    async def _start(
        self, client: Client, work: Callable[[str], Coroutine[Any, Any, None]], done: str = "none",
    ) -> None:
        """Does work on a client that is not being parked or restored, unless it is in state `done`.

        A caller that is cancelled stops waiting for that; work that has begun goes on. `work` gets
        Client.parking as it was."""
        places = self._parks.of(client.peer.account)
        while True:
            await self._settle(client)
            await places.acquire()
            if client.parking.state not in IN_PROGRESS and _is_there(client):
                break
            places.release()
        if (was := client.parking.state) == done:
            places.release()
            return
        self._enter(client, RESTORING if was == PARKED else PARKING)
        task = start_task(self._tasks, work(was))
        task.add_done_callback(lambda _: places.release())
        await asyncio.shield(task)

    def check_target(self, client: Client, target: GPU) -> None:
        """Raises NvshareError with the reason if a client may not be moved to a card."""
        if target is client.gpu:
            raise InvalidArgs(f"{client} is on GPU {target.facts.index} already")
        if target.lost:
            raise NvshareError(f"{client} cannot be moved: {target} is lost")
        if why := target.fault:
            raise NvshareError(f"{client} cannot be moved: {target} cannot be relied on: {why}")
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
        """Moves or parks all clients of a card. Returns the clients that stay, and the reasons.

        Of each account one by one: clients that do not answer delay no other account's."""
        accounts: dict[str, list[Client]] = {}
        for client in gpu.clients.values():
            accounts.setdefault(client.peer.account, []).append(client)
        planned: Targets = {}
        left = await asyncio.gather(
            *(self._drain(gpu, one, planned) for one in accounts.values()))
        return [one for each in left for one in each]

    async def _drain(
        self, gpu: GPU, clients: Iterable[Client], planned: Targets
    ) -> list[tuple[Client, str]]:
        """`planned`: moves that this drain has ordered; they may not be in progress yet."""
        left = []
        for client in clients:
            why = ""
            targets = [card for card in self._possible_cards(client) if card is not gpu]
            targets.sort(key=partial(self._free, planned), reverse=True)
            for target in (*targets, None):
                try:
                    if target is None:
                        await self.park(client)
                    else:
                        planned[client] = target, _size(client)
                        await self.move(client, target)
                    why = ""
                    break
                except NvshareError as error:
                    if target is not None or not why:
                        why = error.message
                finally:
                    planned.pop(client, None)
            if why and gpu.clients.get(client.id) is client and client.parking.state != PARKED:
                left.append((client, why))
        return left

    def _free(self, planned: Targets, gpu: GPU) -> int:
        """The free bytes of a card, less those of clients that move to it."""
        return gpu.snapshot().free - sum(
            size for card, size in (planned | self.arriving).values() if card is gpu)

    def use(self, deep_idle: int | None) -> None:
        """Parks clients that are idle for longer than this; us. None: none."""
        self._deep_idle = deep_idle
        if deep_idle is None:
            self._parks_idle.clear()
        else:
            self._parks_idle.set()

    def wake(self, client: Client) -> None:
        """Restores a parked client when its turn comes. No-op for a client that is not parked."""
        if client.parking.state == PARKED:
            self._enter(client, RESTORING)
            start_task(self._tasks, self._wake(client))

    def take_over(self, client: Client, context: int) -> None:
        """Takes over a client parked or being parked by an earlier daemon, which says that its
        context takes `context` bytes. The checkpoint is in private memory of its process."""
        self._enter(client, RESTORING)
        self._set_context(client, min(context, client.private))
        most = min(context, max(client.private, CLAIM_MOST), client.gpu.facts.memory_total)
        client.parking.measure(max(most, client.gpu.capacity.context_reserve))
        start_task(self._tasks, self._find(client))

    def _forget(self, client: Client) -> None:
        """Gives the host memory of a removed client's parked context back to the budget."""
        self._set_context(client, 0)
        self._notify(client)

    def _set_context(self, client: Client, size: int) -> None:
        self._budget.hold(client.parking.hold(size))

    def _enter(self, client: Client, parking: str) -> None:
        client.parking.enter(parking)
        self._notify(client)

    def _happened(self, gpu: GPU, _now: int, event: Event) -> None:
        if not self._watched:
            return
        if isinstance(event, CardLost):
            for client in gpu.clients.values():
                self._notify(client)
        elif (found := gpu.clients.get(getattr(event, "client", 0))) is not None:
            self._notify(found)

    def _notify(self, client: Client) -> None:
        for changed in self._watched.get(client, ()):
            changed.set()

    async def _until(
        self, client: Client, is_met: Callable[[], bool], within: float | None = None
    ) -> bool:
        """Waits until a condition on a client is met. False: it was not, `within` these seconds."""
        changed = asyncio.Event()
        self._watched.setdefault(client, set()).add(changed)
        try:
            async with asyncio.timeout(within):
                while not is_met():
                    changed.clear()
                    await changed.wait()
        except TimeoutError:
            return False
        finally:
            self._watched[client].discard(changed)
            if not self._watched[client]:
                del self._watched[client]
        return True

    async def _settle(self, client: Client) -> None:
        await self._until(
            client, lambda: client.parking.state not in IN_PROGRESS or not _is_there(client))
        _require(client)

    async def watch(self) -> None:
        """Periodically parks clients that are idle for longer than `deep_idle`; never returns."""
        parks, at_once = set[asyncio.Task[Any]](), Places(PARKS_AT_ONCE)

        async def park_idle_clients() -> None:
            for client in [one for gpu in self._gpus for one in gpu.clients.values()]:
                if self._is_idle_for_long(client):
                    places = at_once.of(client.peer.account)
                    if not places.locked():
                        await places.acquire()      # at once; _park_idle() gives it back
                        start_task(parks, self._park_idle(client, places))

        await repeat(IDLE_CHECK_EVERY, park_idle_clients, self._parks_idle)

    async def _park_idle(self, client: Client, places: asyncio.Semaphore) -> None:
        try:
            await self.park(client, ahead=True)
        except NvshareError as error:
            logger.debug("%s", error)
        except Exception:               # an exception must not end the parks of other clients
            logger.exception("%s could not be parked", client)
        finally:
            places.release()

    def _is_idle_for_long(self, client: Client) -> bool:
        parking = client.parking
        return (self._deep_idle is not None and not parking.state and not parking.impossible
                and not refusal(client) and client.view.state is ClientState.IDLE
                and client.idle >= self._deep_idle and client.gpu.now >= parking.after)

    async def _park(self, client: Client, was: str, *, ahead: bool) -> None:
        await self._checkpoint(client, was, ahead=ahead)
        self._enter(client, PARKED)
        client.suspend_to_park(False)

    async def _save(
        self, client: Client, dump: Callable[[], Awaitable[None]], was: str
    ) -> None:
        if was != PARKED:
            await self._checkpoint(client, was, ahead=False)
        self._enter(client, SAVING)
        client.link.leave()
        if not await self._until(client, lambda: not _is_there(client), LEFT_WITHIN):
            self._enter(client, PARKED)
            client.suspend_to_park(False)
            self.wake(client)
            raise NvshareError(f"{client} cannot be saved: its library does not leave")
        await dump()

    async def _move(self, client: Client, target: GPU, why: str, was: str) -> None:
        began, resident = client.gpu.now, client.memory.resident
        reason = ""
        try:
            try:
                self.check_target(client, target)
                self.arriving[client] = target, _size(client)
                if was != PARKED:
                    _require_parkable(client)
                    client.parking.measure(await _measure_context(client))
                # Before the program is parked: the way back to its own card may be gone then.
                if lack := await self._await_room(client, target, EVICTED_WITHIN):
                    raise NvshareError(f"{client} cannot be moved: {lack}")
                _require(client)
            except Exception:
                self._enter(client, was)
                raise
            if was != PARKED:
                await self._checkpoint(client, was, ahead=False)
            self._enter(client, RESTORING)
            others = [gpu for gpu in self._possible_cards(client) if gpu is not target]
            reason = await self._restore(client, [target, *others])
            if not reason:
                client.parking.move(why)
                rest = client.gpu.now - began - self._pace.value * resident
                self._rest_time = self._rest_time.after(max(0.0, rest))
            await self._wait_until_joined(client)
        finally:
            target.release_context(client)
            self.arriving.pop(client, None)
            if client.parking.state == RESTORING:   # an unexpected exception ended the restore
                self._enter(client, PARKED)
            if client.parking.state == PARKED and client.link.has_turn:
                self.wake(client)       # an earlier wake() was a no-op during the move
        if reason:
            raise NvshareError(f"{client} was not moved: {reason}")

    async def _checkpoint(self, client: Client, was: str, *, ahead: bool) -> None:
        """Checkpoints a client. If that fails, the program goes on; raises NvshareError then."""
        asked = False
        try:
            _require_parkable(client)
            # An upgrade may have removed nvshare-checkpoint: after PARK, threads would wait for it.
            answer = await self._try(client, "state")
            _require(client)
            if answer.state != "running":
                raise NvshareError(answer.reason)
            began, resident = client.gpu.now, client.memory.resident
            client.suspend_to_park(True)
            await self._wait_until_evicted(client, ahead=ahead)
            if resident >= PACE_LEAST:
                self._pace = self._pace.after((client.gpu.now - began) / resident)
            size = await _measure_context(client)
            async with self._host_memory(client, size):
                asked = True
                await client.link.park(size, ahead=ahead)
                # Its threads may have made the context larger until PARK.
                client.parking.measure(max(size, await _measure_context(client)))
                answer = await self._ask_until_clear(client)
            if answer.state != "checkpointed":
                why = answer.reason
                if not TEMPORARY_ERRORS.intersection(one.code for one in answer.steps):
                    client.parking.forbid(why)
                raise NvshareError(why)
        except Exception as error:      # even after an unexpected exception the program must go on
            self._enter(client, was if was == LOST else "")
            self._set_context(client, 0)
            client.parking.retry_after(client.gpu.now + PARK_RETRY_AFTER)
            if _is_there(client):
                if asked:
                    client.link.resume_on(client.gpu)
                client.suspend_to_park(False)
            if not isinstance(error, NvshareError):
                raise
            raise NvshareError(f"{client} cannot be parked: {error.message}") from error
        client.gpu.capacity.forget(client.id)
        client.link.confirm_checkpoint()

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
        clear = answer.state in CLEAR
        while answer.state not in CLEAR:
            _require(client)
            answer = await self._try(client, "state")
            if answer.state == "locked":
                answer = await self._unlock(client)
            if answer.state not in CLEAR:
                await asyncio.sleep(RETRY_AFTER)
        _require(client)
        if answer.state == "running" and not clear:
            raise NvshareError("nvshare-checkpoint was ended before it was done")
        return answer

    async def _try(
        self, client: Client, command: str, pairs: Iterable[tuple[str, str]] = (),
        lacks: Callable[[], Awaitable[str]] | None = None,
    ) -> Answer:
        """Runs a helper, few at once for an account: clients may falsely claim to be parked."""
        account = client.peer.account
        async with self._helpers.of(account):
            if (failures := self._failures[account]) > 1:
                await asyncio.sleep(_pause(failures - 2))
            async with self._all_helpers:
                answer = await ask_driver(self._ask, client, command, pairs, lacks)
            if answer.state in ("none", NOT_SENT):
                self._failures[account] += 1
            else:
                del self._failures[account]
            if len(self._failures) > ACCOUNTS_KNOWN:
                self._failures.clear()
        return answer

    async def _order_restore(self, client: Client, gpu: GPU, *, is_locked: bool = False) -> Answer:
        """Restores a process on a card. No other function orders a restore.

        It is ordered once NVML shows that the card has room for the context, beside all that the
        daemon has promised; the room is held until the restore has ended. State NOT_ORDERED: there
        was no room in time. `is_locked`: the context is on the card, so it needs no room."""
        async def lacks() -> str:
            return "" if is_locked else await _lacks_room(client, gpu)

        async with self._restores.of(client.peer.account):
            # UUIDs before and after. nvshare-checkpoint adds the other cards that the driver has.
            before, after = client.gpu.facts.uuid, gpu.facts.uuid
            pairs = [] if gpu is client.gpu else [(before, after), (after, before)]
            answer = Answer(NOT_ORDERED)
            try:
                if not is_locked and (why := await self._await_room(client, gpu, ROOM_WITHIN)):
                    return Answer(NOT_ORDERED, (Step("restore", -1, 0, why),))
                answer = await self._try(client, "wake", pairs, lacks)
            finally:
                if answer.state in ("running", "locked") and _is_there(client):
                    gpu.expect_context(client)      # until the samples show it
                gpu.release_context(client)
        return answer

    async def _await_room(self, client: Client, gpu: GPU, within: float) -> str:
        """Holds room for a client's context on a card, and waits until it is free, `within` s.

        Returns "", or why there is none. The caller calls release_context() in any case."""
        loop, pause = asyncio.get_running_loop(), CHECK_EVERY
        end = loop.time() + within
        while why := await _lacks_room(client, gpu):
            if loop.time() > end or not _is_there(client):
                return why
            if why := await _lacks_room(client, gpu, evicted=True):
                return why
            gpu.hold_context(client)
            await asyncio.sleep(pause)
            pause = min(2 * pause, ROOM_CHECK_MOST)
        gpu.hold_context(client)
        return ""

    async def _unlock(self, client: Client) -> Answer:
        """Lets a locked process go on. Returns the driver's last answer.

        A helper of an earlier daemon may be about to checkpoint the process, and then the order
        would restore it: so at first there must be room for it."""
        loop = asyncio.get_running_loop()
        end, refusals = loop.time() + LOCKED_FOR, 0
        while True:
            is_locked = loop.time() > end
            answer = await self._order_restore(client, client.gpu, is_locked=is_locked)
            if answer.state not in ("locked", NOT_ORDERED) or not _is_there(client):
                return answer
            await asyncio.sleep(_pause(refusals) if is_locked else ROOM_CHECK_MOST)
            refusals += is_locked       # the driver does not unlock it
            answer = await self._try(client, "state")
            if answer.state != "locked":
                return answer

    async def _wake(self, client: Client) -> None:
        level = logging.INFO
        while _is_there(client):
            refusals = client.parking.refusals
            try:
                reason = await self._restore(client, self._possible_cards(client))
                await self._wait_until_joined(client)
            except Exception:           # even after an unexpected exception the program must go on
                logger.exception("%s could not be restored", client)
                reason = "a fault of the daemon"
                self._enter(client, PARKED)
            finally:
                self.arriving.pop(client, None)
            if client.parking.state != PARKED or not _is_there(client):
                return
            if client.parking.refusals == refusals:
                client.parking.accept()
            elif client.parking.refusals >= REFUSALS_MOST:
                self._give_up(client, reason)
                return
            logger.log(level, "%s: %s cannot be restored yet: %s", client.gpu, client, reason)
            level = logging.DEBUG
            await asyncio.sleep(_pause(client.parking.refusals - 1))
            if client.parking.state != PARKED:
                return                  # a move or another _wake() restores the client
            self._enter(client, RESTORING)

    async def _restore(self, client: Client, targets: Iterable[GPU]) -> str:
        """Restores a client on the first card that has room. Returns why the first was not it."""
        reason = ""
        answers: list[Answer] = []
        for gpu in targets:
            where: GPU | None = gpu
            if gpu is not client.gpu:
                try:                    # clients may have moved there since the first check
                    self.check_target(client, gpu)
                except NvshareError as error:
                    reason = reason or error.message
                    continue
                self.arriving[client] = gpu, _size(client)
            answer = await self._order_restore(client, gpu)
            if not _is_there(client):
                return f"{client} has ended"
            if answer.state not in (*CLEAR, NOT_ORDERED):
                # How far the restore got is unknown.
                unclear, answer = answer, await self._try(client, "state")
                if answer.state == "locked":
                    answer = await self._unlock(client)
                if not _is_there(client):
                    return f"{client} has ended"
                reason = reason or unclear.reason
                where = None
            if answer.state == "running":
                restored = any(one.name == "restore" and not one.code for one in answer.steps)
                await self._resume(client, where if restored else None)
                return reason
            reason = reason or answer.reason
            if answer.state == "failed":    # final: the program's calls return the driver's error
                await self._resume(client, None)
                return reason
            if is_final(answer):
                self._give_up(client, answer.trouble)
                return reason
            answers.append(answer)
            if where is None:
                break
        # Where there was no room, a later attempt may succeed.
        client.parking.refuse(refused=bool(answers) and all(
            one.state == "checkpointed" and bool(one.trouble) for one in answers))
        self._enter(client, PARKED)
        client.suspend_to_park(False)
        return reason

    def _give_up(self, client: Client, trouble: str) -> None:
        """Ends the wait of a program whose process the driver does not restore any more."""
        client.parking.forbid(f"the driver cannot restore it: {trouble}")
        self._enter(client, LOST)
        logger.error(
            "%s: %s is lost: the driver did not restore it (%s), and is not asked again. What it "
            "had on the GPU is gone, and its calls of the driver fail; end it and start it again",
            client.gpu, client, trouble)
        client.link.give_up()
        client.suspend_to_park(False)

    async def _resume(self, client: Client, gpu: GPU | None) -> None:
        """Lets the program go on, as its process runs on this card; None: NVML tells the card."""
        if gpu is None:
            for gpu in self._gpus:
                if await gpu.measure(client.peer.pid) is not None:
                    break
            else:
                gpu = client.gpu
        if not _is_there(client):
            return
        moved = gpu is not client.gpu
        client.parking.accept()
        self._set_context(client, 0)
        client.link.resume_on(gpu)
        self._enter(client, MOVED if moved else "")
        if moved:
            if client in self.arriving:    # NVML may show another card than the expected one
                self.arriving[client] = gpu, self.arriving[client][1]
        else:
            client.suspend_to_park(False)

    async def _wait_until_joined(self, client: Client) -> None:
        """Waits up to JOINED_WITHIN until a moved client counts against its new card's limits."""
        gpu, _ = self.arriving.get(client, (client.gpu, 0))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(JOINED_WITHIN):
                while client.parking.state == MOVED and not gpu.lost and (    # noqa: ASYNC110
                        client.peer.pid not in gpu.processes):
                    await asyncio.sleep(CHECK_EVERY)

    async def _find(self, client: Client) -> None:
        """Asks the driver about a client that claims to be parked."""
        answer = await self._try(client, "state")
        if answer.state == "locked":
            answer = await self._unlock(client)
        if not _is_there(client):
            return
        if answer.state in ("running", "failed"):
            await self._resume(client, None)
            return
        if is_final(answer):
            self._give_up(client, answer.trouble)
            return
        if answer.state == "none" and not answer.trouble:
            # Not unparked: if the driver had only lost sight of it, its calls could crash it.
            logger.warning("%s: %s says that it is parked, and the driver has no state of its "
                           "process: nothing is kept for it", client.gpu, client)
            self._set_context(client, 0)
            client.parking.measure(0)
        self._enter(client, PARKED)
        client.gpu.capacity.forget(client.id)
        if client.link.has_turn:
            self.wake(client)

    def _possible_cards(self, client: Client) -> list[GPU]:
        """Returns the cards on which the client may be restored, its own first unless lost.

        A container, pod or job may be unable to open other cards, so that a restore there fails."""
        cards = [client.gpu]
        stays = client.peer.has_assigned_gpu and not client.gpu.lost
        for gpu in () if stays else self._gpus:
            with contextlib.suppress(NvshareError):
                self.check_target(client, gpu)
                cards.append(gpu)
        return sorted(cards, key=lambda gpu: bool(gpu.lost))

    async def _wait_until_evicted(self, client: Client, *, ahead: bool) -> None:
        """Waits until only pinned memory is resident. Raises NvshareError; `ahead`: also if the
        client waits for the card."""
        def is_evicted() -> bool:
            _require(client)
            if client.gpu.lost:
                raise NvshareError(f"{client.gpu} is lost")
            if ahead and client.view.waiting is not None:
                raise NvshareError("it wants to use the GPU")
            memory = client.memory
            return not memory.resident + memory.borrowed and client.gpu.scheduler.rests(client.id)

        if not await self._until(client, is_evicted, EVICTED_WITHIN):
            raise NvshareError("its memory does not leave the card")


def _pause(failures: int) -> float:
    """Seconds until the next attempt, after that many failures besides the first."""
    return min(RETRY_AFTER * 2.0 ** max(0, min(failures, 10)), RETRY_AFTER_MOST)


def is_final(answer: Answer) -> bool:
    """Whether a restore has failed so that none of this process can succeed any more."""
    return any(one.name == "restore" and one.code in FINAL_ERRORS for one in answer.steps)


async def _lacks_room(client: Client, gpu: GPU, *, evicted: bool = False) -> str:
    """Returns why a card has no room for a client's context now, or "" if it has.

    `evicted`: why it has none even if all memory of its other clients were evicted."""
    used = await gpu.measure(None)
    if used is None:
        return f"NVML does not say how much memory of GPU {gpu.facts.index} is free"
    others = -gpu.scheduler.evictable(client.id) if evicted else gpu.scheduler.unfilled(client.id)
    left = gpu.facts.memory_total - used - others - gpu.capacity.held_before(client.id)
    needed = client.parking.context_size + gpu.capacity.restore_margin
    if left >= needed:
        return ""
    holder = "programs that do not share it hold the rest" if evicted else "the rest is in use"
    return (f"GPU {gpu.facts.index} has {max(0, left) // MIB} MiB for it, {holder}, and to be "
            f"restored its context needs {-(-needed // MIB)} MiB")


def _is_there(client: Client) -> bool:
    return client.gpu.clients.get(client.id) is client


def _require(client: Client) -> None:
    """Raises NoSuchClient if the client has ended, or has moved to another card."""
    if not _is_there(client):
        raise NoSuchClient(f"{client} has {'moved' if client.parking.state == MOVED else 'ended'}")


def _require_parkable(client: Client) -> None:
    if why := refusal(client) or client.parking.impossible:
        raise NvshareError(why)


def refusal(client: Client) -> str:
    """Returns why a client cannot be parked, as far as the daemon knows; "": no reason known."""
    if client.gpu.lost:
        return f"{client.gpu} is lost"
    if client.peer.pid == 0:
        return "its process cannot be seen from here"
    if client.gpu.facts.mig:
        return "NVML does not say how much memory a part of a divided GPU has"
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


async def _measure_context(client: Client) -> int:
    """Returns the bytes of the client on its card, by NVML, that are not its resident memory.

    Raises NvshareError if NVML does not say: it could not be proven that the card has room for it.
    """
    shown = await client.gpu.measure(client.peer.pid)
    _require(client)
    if shown is None:
        raise NvshareError("NVML does not say how much of the GPU's memory its process uses")
    return max(0, shown - client.memory.resident)


def free_host_memory(pid: int) -> int:
    """Returns the host bytes that a process can still allocate within its cgroups' limits."""
    limits = [group.limit() for group in cgroup.chain(host.process(pid, "cgroup"))]
    return min([host.free(), *(limit.free for limit in limits if limit is not None)])
