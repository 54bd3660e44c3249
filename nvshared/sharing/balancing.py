# SPDX-License-Identifier: Apache-2.0
"""Moves clients that wait to cards where they wait less (the setting `balance`).

A client moves once the waiting time that it would have saved on another card exceeds the price of
the move (both in us). Its cost is then at most twice the optimum, by the ski-rental rule."""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from math import inf
from typing import Any, NamedTuple

from nvshared.clock import repeat
from nvshared.errors import NvshareError
from nvshared.scheduler.actions import ClientState
from nvshared.sharing.gpu import GPU, Client
from nvshared.sharing.moving import Moving, refusal, start_task
from nvshared.units import SECOND

CHOOSE_EVERY = 0.5                      # seconds between two decisions
STEADY = 2 * SECOND                     # us: time constant of the average load of a card
LEAST = SECOND // 2                     # us: minimum price of a move

logger = logging.getLogger(__name__)


class CardLoad(NamedTuple):
    load: float                         # average sum of weights of clients with a turn or waiting
    largest: int                        # bytes of the largest client that fits beside pinned memory


class Contender(NamedTuple):
    client: int
    card: str
    weight: int
    size: int                           # bytes of a card that the client needs for a turn
    wait: float | None                  # us until its turn; inf: it does not fit; None: no wait
    price: float                        # us: duration of a move * (1 + number of past attempts)
    cards: tuple[str, ...]              # cards that the client may move to


class Choice(NamedTuple):
    client: int
    card: str                           # the destination
    lost: float                         # us of waiting that the move saves; inf: no turn otherwise
    price: float                        # us: Contender.price


def choose(
    loads: Mapping[str, CardLoad], contenders: Iterable[Contender], lost: Mapping[int, float],
    passed: int,
) -> tuple[dict[int, float], Choice | None]:
    """Returns the us of waiting that moves would have saved each client, and the best move.

    The best move has the largest positive `lost - price`; None: there is no such move. The argument
    `lost` is the result of the last call, `passed` us ago."""
    now: dict[int, float] = {}
    choices = []
    for one in contenders:
        part, card = max(((_spared(one, loads, card), card) for card in one.cards),
                         default=(0.0, ""), key=lambda found: found[0])
        if part <= 0:
            continue
        now[one.client] = lost.get(one.client, 0.0)
        if one.wait is None:
            continue
        now[one.client] += passed * part
        choices.append(Choice(one.client, card, now[one.client] + one.wait * part, one.price))
    paying = (choice for choice in choices if choice.lost > choice.price)
    return now, max(paying, key=lambda choice: choice.lost - choice.price, default=None)


def _spared(one: Contender, loads: Mapping[str, CardLoad], card: str) -> float:
    """Returns the part of its waiting time that the client would save on a card; <= 0: none."""
    target = loads[card]
    if one.size > target.largest:
        return 0.0
    load = max(loads[one.card].load, one.weight)
    current, expected = one.weight / load, one.weight / (target.load + one.weight)
    if one.wait == inf:
        return expected
    return 0.0 if current >= 1 else (expected - current) / (1 - current)


class Balancing:
    def __init__(self, gpus: Sequence[GPU], moving: Moving) -> None:
        self._on = asyncio.Event()
        self._gpus = gpus
        self._moving = moving
        self._lost: dict[int, float] = {}       # us by client id; see choose()
        self._chosen_at: int | None = None  # us: time of the last find_move(); None: none yet
        self._loads: dict[str, float] = {}      # by UUID: average load since the last move began
        # Moves of an account that take long, or never end, keep no other account's from beginning.
        self._tasks: set[asyncio.Task[Any]] = set()
        self._accounts: set[str] = set()        # each with one move under way

    def use(self, *, on: bool) -> None:
        """Moves clients by itself, or not."""
        if on:
            self._on.set()
        else:
            self._on.clear()
            self._lost, self._loads, self._chosen_at = {}, {}, None

    async def watch(self) -> None:
        """Periodically chooses a client and moves it, while that is on; never returns."""
        await repeat(CHOOSE_EVERY, self._choose_and_move, self._on)

    async def _choose_and_move(self) -> None:
        if (choice := self.find_move()) is not None:
            client = next(gpu.clients[choice.client] for gpu in self._gpus
                          if choice.client in gpu.clients)
            target = next(gpu for gpu in self._gpus if gpu.facts.uuid == choice.card)
            self._accounts.add(client.peer.account)
            del self._lost[client.id]
            self._loads = {}
            start_task(self._tasks, self._move(client, target, choice))

    def find_move(self) -> Choice | None:
        """Returns the client to move now and its target card; None: no move is worth its price."""
        cards = [gpu for gpu in self._gpus if not gpu.lost]
        if not cards:
            return None
        now = cards[0].now
        passed, self._chosen_at = now - (now if self._chosen_at is None else self._chosen_at), now
        if len(cards) < 2 or any(
                gpu.settings.draining or gpu.state == "gathering" for gpu in cards):
            self._lost, self._loads = {}, {}
            return None
        loads: dict[str, CardLoad] = {}
        contenders: list[Contender] = []
        for gpu in cards:
            loads[gpu.facts.uuid] = self._card_load(gpu, min(1.0, passed / STEADY))
            contenders += [self._contender(client, cards) for client in _contending(gpu)
                           if client.peer.account not in self._accounts]
        self._lost, choice = choose(loads, contenders, self._lost, passed)
        return choice

    async def _move(self, client: Client, target: GPU, choice: Choice) -> None:
        source = client.gpu
        client.parking.try_move()
        wait = ("it cannot run there" if choice.lost == inf
                else f"it would lose {choice.lost / SECOND:.1f} s by waiting there")
        why = (f"from GPU {source.facts.index}: {wait}, and a move takes "
               f"{choice.price / SECOND:.1f} s")
        logger.info("%s: %s moves to %s %s", source, client, target, why)
        try:
            await self._moving.move(client, target, why)
        except NvshareError as error:
            logger.info("%s: %s", source, error)
        except Exception:
            logger.exception("%s could not be moved", client)
        finally:
            self._accounts.discard(client.peer.account)

    def _card_load(self, gpu: GPU, part: float) -> CardLoad:
        """Returns a card's state; the present load has the weight `part` (0 to 1) in its mean."""
        uuid, load, snapshot = gpu.facts.uuid, self._load(gpu), gpu.snapshot()
        before = self._loads.get(uuid, load)
        self._loads[uuid] = before + part * (load - before)
        pinned = sum(view.memory.pinned for view in snapshot.clients.values())
        return CardLoad(self._loads[uuid], snapshot.capacity - pinned)

    def _load(self, gpu: GPU) -> float:
        """Returns the sum of the weights of contenders that fit, and of clients that are moving to
        the card; if no client waits, times utilisation."""
        contending = [client.view for client in _contending(gpu)]
        load = float(sum(view.terms.weight for view in contending if view.fits))
        used = gpu.sample.utilisation
        if used is not None and all(view.waiting is None for view in contending):
            load *= used
        return load + sum(client.terms.in_force.weight
                          for client, (card, _) in self._moving.arriving.items() if card is gpu)

    def _contender(self, client: Client, cards: Sequence[GPU]) -> Contender:
        gpu, view = client.gpu, client.view
        wait = gpu.snapshot().waits.get(client.id)
        left: float | None = None
        if wait is not None and wait.position and view.state is not ClientState.LOADING:
            left = inf if not view.fits else wait.left
        short = left is not None and client.memory.resident > gpu.snapshot().budgets["host"].free
        to = [] if short or not _is_movable(client) else [
            one.facts.uuid for one in cards if one is not gpu and self._admits(one, client)]
        price = max(LEAST, self._moving.price(client)) * (1 + client.parking.moves)
        return Contender(client.id, gpu.facts.uuid, view.terms.weight, view.memory.need, left,
                         price, tuple(to))

    def _admits(self, target: GPU, client: Client) -> bool:
        with suppress(NvshareError):
            self._moving.check_target(client, target)
            return True
        return False


def _contending(gpu: GPU) -> list[Client]:
    """Returns the clients that hold the card or wait for it, without suspended ones."""
    snapshot = gpu.snapshot()
    return [gpu.clients[id] for id, view in snapshot.clients.items() if not view.terms.suspended
            and (view.waiting is not None or id in snapshot.holders)]


def _is_movable(client: Client) -> bool:
    return not (client.peer.has_assigned_gpu or client.parking.state or client.parking.impossible
                or refusal(client))
