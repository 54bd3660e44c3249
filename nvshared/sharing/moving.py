# SPDX-License-Identifier: Apache-2.0
"""Programs whose contexts are taken off their card, and put back there or on another one.

    SUSPENDED   its turn is over, and its memory leaves the card as any other's
    PARKING     its library keeps all threads out of the driver (PARK); the driver checkpoints it
    PARKED      nothing of it is on the card; its client stands idle in the scheduler
    RESTORING   its turn has come: the driver restores it, it goes on, and its memory is loaded

A failure leads back: a program that was not checkpointed goes on as before, and the driver's reason
is kept, since it does not change (`Client.unparkable`). A program that its card cannot restore is
restored on another of the same kind; until one has room it stays parked, and is tried again.
nvshare-checkpoint may be killed at any step: how the process stands then, the driver is asked, and
NVML on which card. The library is told to go on only if the driver says that the process runs.

A parked program wakes when a thread of it calls the driver: it waits for its turn then, as at the
gate. Which card a program has been moved to, its library is told before any thread goes on, and the
client joins that card's scheduler by a HELLO, as after a restart of the daemon.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any

from nvshared.errors import InvalidArgs, NoSuchClient, NvshareError
from nvshared.machine import checkpoint
from nvshared.machine.checkpoint import Answer, NotAsked, Step
from nvshared.scheduler.actions import ClientState
from nvshared.scheduler.client import PACE, Average
from nvshared.sharing.gpu import GPU, Client, Parkable
from nvshared.sharing.sampler import look
from nvshared.signal import Signal
from nvshared.units import MIB, SECOND

PARKING, PARKED, RESTORING = "parking", "parked", "restoring"

CLEAR = frozenset({"running", "checkpointed", "failed"})    # of what the driver says of a process

LOOK = 0.01                             # seconds between looks whether memory has left
LEAVES_WITHIN = 60.0                    # seconds, or the program is not parked
AGAIN = 2.0                             # seconds between tries to restore,
AGAIN_MOST = 60.0                       # and at most, between helpers that fail for an account
AT_ONCE = 4                             # helpers for an account
NOT_ASKED = "not asked"                 # instead of a process's state: no helper could be
# Results of the driver that may be others at the next try: out of memory, and not ready, as where
# a thread of the process is stopped.
PASSING = frozenset({2, 600})
PASSES_IN = 60 * SECOND                 # until then the program is not parked for its idleness
TELLING = 256 * MIB                     # bytes that must have left to teach the pace
IDLE_LOOK = 1.0                         # seconds between looks for clients that are idle for long

Ask = Callable[..., Awaitable[Answer]]  # checkpoint.ask

logger = logging.getLogger(__name__)


class Moving:
    """Parks, wakes and moves clients."""

    def __init__(self, gpus: Sequence[GPU], ask: Ask = checkpoint.ask) -> None:
        self.deep_idle: int | None = None       # microseconds; clients idle for longer are parked
        self.parked: Signal[Client] = Signal("parked")
        self.woken: Signal[Client, GPU] = Signal("woken")       # on this card
        self.moves = 0                          # under way
        self._gpus = gpus
        self._ask = ask
        # Of moves, for price(): us for each byte that leaves the card first, and for the rest.
        self._pace, self._rest = PACE, Average(2 * SECOND, SECOND // 10)
        self._pacing: dict[str, _Pacing] = {}   # by account
        self._tasks: set[asyncio.Task[None]] = set()

    async def park(self, client: Client, *, ahead: bool = False) -> None:
        """Takes a client's context off the card until it is used again.

        `ahead`: no user has asked for it, so it is given up as soon as the client wants the card.
        Raises NvshareError with the reason if it cannot be, and the program goes on.
        """
        if client.parking != PARKED:
            await asyncio.shield(self._start(self._park(client, ahead=ahead)))

    async def move(self, client: Client, target: GPU, why: str = "") -> None:
        """Moves a client to another card; it goes on there. `why`: if no user has asked for it.

        Raises NvshareError with the reason if it cannot be; then it goes on where it is.
        """
        check_target(client, target)
        await asyncio.shield(self._start(self._move(client, target, why)))

    def price(self, client: Client) -> float:
        """Microseconds that a move of the client takes, as far as the moves until now tell."""
        return self._rest.value + self._pace.value * client.memory.resident

    async def drain(self, gpu: GPU) -> list[tuple[Client, str]]:
        """Moves all clients of a card to others, or parks them.

        Returns the clients that stay, and the reasons.
        """
        left = []
        for client in tuple(gpu.clients.values()):
            why = await self._move_anywhere(client)
            if why and gpu.clients.get(client.id) is client and client.parking != PARKED:
                left.append((client, why))
        return left

    async def _move_anywhere(self, client: Client) -> str:
        """"": it was moved or parked; else why not."""
        why = ""
        targets = [gpu for gpu in self._homes(client) if gpu is not client.gpu]
        for target in sorted(targets, key=lambda gpu: -gpu.snapshot().free):
            try:
                await self.move(client, target)
            except NvshareError as error:
                why = error.message
            else:
                return ""
        try:
            await self.park(client)
        except NvshareError as error:
            return why or error.message
        return ""

    def wake(self, client: Client) -> None:
        """Its turn has come. Harmless where it is being woken, or is not parked."""
        if client.parking == PARKED:
            client.parking = RESTORING
            self._start(self._wake(client))

    def found(self, client: Client) -> None:
        """A client was parked by an earlier daemon, or was being parked or woken by it."""
        client.parking = RESTORING
        self._start(self._find(client))

    async def watch(self) -> None:
        """Parks what is idle for long, for ever."""
        while True:
            await asyncio.sleep(IDLE_LOOK)
            for client in [one for gpu in self._gpus for one in gpu.clients.values()]:
                if self._idles_long(client):
                    try:
                        await self.park(client, ahead=True)
                    except NvshareError as error:
                        logger.debug("%s is not parked: %s", client, error)

    def _idles_long(self, client: Client) -> bool:
        return (self.deep_idle is not None and not client.parking and not client.unparkable
                and not refusal(client) and client.view.state is ClientState.IDLE
                and client.idle >= self.deep_idle and client.gpu.now >= client.park_after)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Starts a task that goes on when its caller has disconnected."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _park(self, client: Client, *, ahead: bool) -> None:
        await self._checkpoint(client, ahead=ahead)
        client.parking = PARKED
        self.parked.emit(client)
        client.set_leaving(False)

    async def _move(self, client: Client, target: GPU, why: str) -> None:
        self.moves += 1
        try:
            await self._move_now(client, target, why)
        finally:
            self.moves -= 1

    async def _move_now(self, client: Client, target: GPU, why: str) -> None:
        began, resident = client.gpu.now, client.memory.resident
        if client.parking != PARKED:
            await self._checkpoint(client, ahead=False)
        client.parking = RESTORING
        await _make_room(client, target)
        others = [gpu for gpu in self._homes(client) if gpu is not target]
        words = await self._restore(client, [target, *others])
        if not words:
            client.moved = why
            rest = client.gpu.now - began - self._pace.value * resident
            self._rest = self._rest.after(max(0.0, rest))
        if client.parking == PARKED and _way(client).wanted:
            self.wake(client)           # its turn may have come meanwhile, and wake() did nothing
        if words:
            raise NvshareError(f"{client} was not moved: {words}")

    async def _checkpoint(self, client: Client, *, ahead: bool) -> None:
        """Raises NvshareError with the reason if it is not checkpointed; then it goes on."""
        if client.parking:
            raise NvshareError(f"{client} is just {client.parking}")
        if why := refusal(client) or client.unparkable:
            raise NvshareError(f"{client} cannot be parked: {why}")
        client.parking = PARKING
        asked = False
        try:
            await self._try_driver(client)
            began, resident = client.gpu.now, client.memory.resident
            client.set_leaving(True)
            await _leaves(client, ahead=ahead)
            if resident >= TELLING:
                self._pace = self._pace.after((client.gpu.now - began) / resident)
            asked = True
            await _way(client).park(ahead=ahead)
            answer = await self._ask_until_clear(client)
            if answer.state != "checkpointed":
                why = answer.trouble or f"its process is {answer.state}"
                if PASSING.intersection(one.code for one in answer.steps):
                    client.park_after = client.gpu.now + PASSES_IN
                else:
                    client.unparkable = why
                raise NvshareError(why)
        except NvshareError as error:
            client.parking = ""
            if _is_there(client):
                if asked:
                    _way(client).stay()
                client.set_leaving(False)
            raise NvshareError(f"{client} cannot be parked: {error.message}") from error
        client.gpu.capacity.left(client.id)
        _way(client).leave_card()

    async def _try_driver(self, client: Client) -> None:
        """Raises NvshareError if no process can be checkpointed here.

        Each time: an upgrade may have removed nvshare-checkpoint since. Once the hook keeps the
        threads out of the driver, the daemon would have to wait for the helper's return.
        """
        answer = await self._try(client, "state")
        if answer.state != "running":
            raise NvshareError(answer.trouble or f"its process is {answer.state}")

    async def _ask_until_clear(self, client: Client) -> Answer:
        """Has its process checkpointed. Returns when it runs on, or is checkpointed.

        The helper may have been killed in between. Then all is undone, first of all. Raises
        NvshareError if no helper was asked.
        """
        answer = await self._try(client, "park")
        if answer.state == NOT_ASKED:
            raise NvshareError(answer.trouble)
        while answer.state not in CLEAR:
            if not _is_there(client):
                raise NoSuchClient(f"{client} has ended")
            answer = await self._try(client, "wake")
            if answer.state == "running":
                raise NvshareError("nvshare-checkpoint was ended before it was done")
            await asyncio.sleep(AGAIN)
        if not _is_there(client):
            raise NoSuchClient(f"{client} has ended")
        return answer

    async def _try(
        self, client: Client, command: str, pairs: Iterable[tuple[str, str]] = (),
    ) -> Answer:
        async with self._pacing.setdefault(client.peer.account, _Pacing()).next() as pacing:
            try:
                answer = await self._ask(command, client.peer.pid, pairs)
            except NvshareError as error:
                logger.error("%s: %s: %s", client, command, error)
                state = NOT_ASKED if isinstance(error, NotAsked) else "none"
                answer = Answer(state, (Step(command, -1, 0, error.message),))
            pacing.failures = pacing.failures + 1 if answer.state in ("none", NOT_ASKED) else 0
        for step in answer.steps:
            logger.log(
                logging.WARNING if step.code else logging.DEBUG, "%s: %s: %s (%d) after %.3f s",
                client, step.name, step.words, step.code, step.took / SECOND)
        return answer

    async def _wake(self, client: Client) -> None:
        while _is_there(client):
            words = await self._restore(client, self._homes(client))
            if client.parking != PARKED or not _is_there(client):
                return
            logger.warning("%s cannot be restored yet: %s", client, words)
            await asyncio.sleep(AGAIN)
            client.parking = RESTORING

    async def _restore(self, client: Client, targets: Iterable[GPU]) -> str:
        """On the first of the cards where the driver does it. Returns what kept it from the first
        of them; "": nothing. If none does, the client is parked."""
        words = ""
        for gpu in targets:
            answer = await self._try(client, "wake", self._pairs(client.gpu, gpu))
            if not _is_there(client):
                return f"{client} has ended"
            if answer.state == "running":
                restored = any(one.name == "restore" and not one.code for one in answer.steps)
                await self._go_on(client, gpu if restored else None)
                return words
            words = words or answer.trouble or f"its process is {answer.state}"
        client.parking = PARKED
        client.set_leaving(False)
        return words

    async def _go_on(self, client: Client, gpu: GPU | None) -> None:
        """Its process runs, on this card; None: NVML knows on which."""
        if gpu is None:
            await look(self._gpus)
            gpu = next((one for one in self._gpus if any(
                process.pid == client.peer.pid for process in one.sample.processes or ())),
                client.gpu)
        if not _is_there(client):
            return
        moved = gpu is not client.gpu
        client.parking = ""
        self.woken.emit(client, gpu)
        _way(client).return_to(gpu)
        if not moved:
            client.set_leaving(False)

    async def _find(self, client: Client) -> None:
        answer = await self._try(client, "state")
        if answer.state == "locked":
            answer = await self._try(client, "wake")
        if not _is_there(client):
            return
        if answer.state == "running":
            await self._go_on(client, None)
            return
        client.parking = PARKED
        client.gpu.capacity.left(client.id)
        if _way(client).wanted:
            self.wake(client)

    def _homes(self, client: Client) -> list[GPU]:
        """The cards where it may be restored, its own first."""
        others = [gpu for gpu in self._gpus if gpu is not client.gpu and not gpu.lost
                  and _same_kind(client.gpu, gpu)]
        return [client.gpu, *others]

    def _pairs(self, old: GPU, new: GPU) -> list[tuple[str, str]]:
        """Where each card's part of the process comes to be. The driver wants all cards named."""
        if old is new:
            return []
        swapped = {old: new, new: old}
        return [(gpu.facts.uuid, swapped.get(gpu, gpu).facts.uuid) for gpu in self._gpus]


class _Pacing:
    """Bounds what one account costs: a few helpers at a time, and one a minute where all fail.

    A client may claim to be parked, of which the driver knows nothing.
    """

    def __init__(self) -> None:
        self.failures = 0               # since a helper knew a state
        self._places = asyncio.Semaphore(AT_ONCE)

    @contextlib.asynccontextmanager
    async def next(self) -> AsyncIterator["_Pacing"]:
        """Returns when the next helper may be asked. The second failure has no pause before it."""
        async with self._places:
            if self.failures > 1:
                await asyncio.sleep(min(AGAIN * 2 ** min(self.failures - 2, 10), AGAIN_MOST))
            yield self


def _way(client: Client) -> Parkable:
    if client.parkable is None:
        raise NvshareError("its library cannot be asked")
    return client.parkable


def _is_there(client: Client) -> bool:
    return client.gpu.clients.get(client.id) is client


def refusal(client: Client) -> str:
    """Why a client cannot be parked, as far as the daemon knows."""
    if client.gpu.lost:
        return f"{client.gpu} is lost"
    if client.peer.pid == 0:
        return "its process cannot be seen from here"
    if client.memory.pin_reason:
        return "its memory does not leave the card"
    if client.gang or client.peer.gang:
        return "it has its turns together with other programs"
    return ""


def check_target(client: Client, target: GPU) -> None:
    """Raises NvshareError with the reason if a client cannot be moved to a card."""
    if target is client.gpu:
        raise InvalidArgs(f"{client} is on GPU {target.facts.index} already")
    if target.lost:
        raise NvshareError(f"{client} cannot be moved: {target} is lost")
    if not _same_kind(client.gpu, target):
        raise NvshareError(
            f"{client} cannot be moved from {client.gpu.facts.name} to {target.facts.name}: the "
            "driver restores programs on GPUs of the same kind only")
    memory = client.memory
    if memory.allocated + memory.pinned > target.capacity.bytes:
        raise NvshareError(
            f"{client} cannot be moved: GPU {target.facts.index} is too small for its memory")
    left, words = target.scheduler.tenants_left(map(str, client.peer.tenants))
    if memory.allocated + memory.pinned > left:
        raise NvshareError(
            f"{client} cannot be moved: on GPU {target.facts.index}, {words}")


def _same_kind(one: GPU, other: GPU) -> bool:
    return (one.facts.name == other.facts.name
            and one.facts.memory_total == other.facts.memory_total
            and not one.facts.mig and not other.facts.mig)


async def _leaves(client: Client, *, ahead: bool) -> None:
    """Returns when nothing of it is on the card but what is pinned, and it owes no answer."""
    async def left() -> None:
        while True:
            if not _is_there(client):
                raise NoSuchClient(f"{client} has ended")
            view = client.view
            if ahead and view.waiting is not None:
                raise NvshareError("it wants to use the GPU")
            memory = client.memory
            if not memory.resident + memory.borrowed and client.gpu.rests(client):
                return
            await asyncio.sleep(LOOK)

    try:
        async with asyncio.timeout(LEAVES_WITHIN):
            await left()
    except TimeoutError:
        raise NvshareError("its memory does not leave the card") from None


async def _make_room(client: Client, target: GPU) -> None:
    """For its context, as far as others' memory leaves the card for it."""
    target.expect_context(client)
    try:
        async with asyncio.timeout(LEAVES_WITHIN):
            while sum(target.occupied.values()) > target.capacity.bytes:    # noqa: ASYNC110
                await asyncio.sleep(LOOK)
    except TimeoutError:
        logger.info("%s has no room for the context of %s", target, client)
    finally:
        target.capacity.left(client.id)
