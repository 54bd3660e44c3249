# SPDX-License-Identifier: Apache-2.0
"""Moves clients that wait to cards where they wait less (the setting `balance`).

scheduler/balance.py decides, by figures that this collects from the cards' snapshots. Clients whose
card was chosen by another program (pods, jobs, containers) stay on it, as do gangs. One client
moves at a time, and none while an administrator moves one. The price of a client's next move grows
with each move, and with each refusal that the driver may not repeat; what the driver refuses for
good, `Client.unparkable` says.
"""

import asyncio
import logging
from collections.abc import Sequence
from math import inf

from nvshared.errors import NvshareError
from nvshared.machine.tenant import Kind
from nvshared.scheduler.actions import ClientState
from nvshared.scheduler.balance import Choice, Contender, Place, choose
from nvshared.sharing.gpu import GPU, Client
from nvshared.sharing.moving import Moving, check_target, refusal
from nvshared.units import SECOND

LOOK = 0.5                             # seconds

logger = logging.getLogger(__name__)


class Balancing:
    """Over all cards."""

    def __init__(self, gpus: Sequence[GPU], moving: Moving) -> None:
        self.on = False
        self._gpus = gpus
        self._moving = moving
        self._lost: dict[int, float] = {}       # see choose(),
        self._looked = 0                        # as it was at this moment

    async def watch(self) -> None:
        """Looks and moves, for ever."""
        while True:
            await asyncio.sleep(LOOK)
            choice = self.look()
            if choice is not None:
                await self._move(choice)

    def look(self) -> Choice | None:
        """Which client is to move now."""
        cards = [gpu for gpu in self._gpus if not gpu.lost]
        passed, self._looked = self._gpus[0].now - self._looked, self._gpus[0].now
        if (not self.on or len(cards) < 2 or self._moving.moves
                or any(gpu.settings.draining or gpu.state == "gathering" for gpu in cards)):
            self._lost = {}
            return None
        places: dict[str, Place] = {}
        contenders: list[Contender] = []
        for gpu in cards:
            places[gpu.facts.uuid] = _place(gpu)
            contenders += [self._contender(client, cards) for client in _contending(gpu)]
        self._lost, choice = choose(places, contenders, self._lost, passed)
        return choice

    async def _move(self, choice: Choice) -> None:
        client = next(gpu.clients[choice.client] for gpu in self._gpus
                      if choice.client in gpu.clients)
        target = next(gpu for gpu in self._gpus if gpu.facts.uuid == choice.card)
        source, client.tries, self._lost = client.gpu, client.tries + 1, {}
        wait = ("it cannot run there" if choice.lost == inf
                else f"it would lose {choice.lost / SECOND:.1f} s by waiting there")
        why = (f"from GPU {source.facts.index}: {wait}, and a move takes "
               f"{choice.price / SECOND:.1f} s")
        logger.info("%s: %s moves to %s %s", source, client, target, why)
        try:
            await self._moving.move(client, target, why)
        except NvshareError as error:
            logger.info("%s: %s stays: %s", source, client, error)

    def _contender(self, client: Client, cards: Sequence[GPU]) -> Contender:
        gpu, view = client.gpu, client.view
        wait = gpu.snapshot().waits.get(client.id)
        left: float | None = None
        if wait is not None and wait.position and view.state is not ClientState.LOADING:
            left = inf if not view.fits else wait.left
        short = left is not None and client.memory.resident > gpu.snapshot().host_free
        to = [] if short or not _is_movable(client) else [
            one.facts.uuid for one in cards if one is not gpu and _admits(one, client)]
        price = self._moving.price(client) * (1 + client.tries)
        return Contender(client.id, gpu.facts.uuid, view.terms.weight, view.memory.need, left,
                         price, tuple(to))


def _contending(gpu: GPU) -> list[Client]:
    """Clients that use the card or wait for it."""
    snapshot = gpu.snapshot()
    views = {id: view for id, view in snapshot.clients.items() if not view.terms.suspended}
    return [client for id, client in gpu.clients.items()
            if id in views and (views[id].waiting is not None or id in snapshot.holders)]


def _place(gpu: GPU) -> Place:
    snapshot = gpu.snapshot()
    contending = [client.view for client in _contending(gpu)]
    load = float(sum(view.terms.weight for view in contending if view.fits))
    if not any(view.waiting is not None for view in contending):
        used = gpu.sample.utilisation
        load *= 1.0 if used is None else used
    pinned = sum(view.memory.pinned for view in snapshot.clients.values())
    return Place(load, snapshot.capacity - pinned)


def _is_movable(client: Client) -> bool:
    chosen = client.peer.is_contained or client.peer.tenant.kind in (
        Kind.POD, Kind.JOB, Kind.CONTAINER)
    return not (chosen or client.parking or client.unparkable or refusal(client))


def _admits(target: GPU, client: Client) -> bool:
    try:
        check_target(client, target)
    except NvshareError:
        return False
    return not target.fault
