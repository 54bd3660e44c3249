# SPDX-License-Identifier: Apache-2.0
"""What people who look after the machine are told: the journal's lines and systemd's status."""

import asyncio
import logging
from math import inf

from nvshared.machine.peer import Peer, shown
from nvshared.quantity import counted
from nvshared.report.log import Limited
from nvshared.report.systemd import Notifier
from nvshared.scheduler.actions import ClientState
from nvshared.sharing.gpu import GPU, Client
from nvshared.sharing.manager import Manager
from nvshared.units import MIB, SECOND

logger = logging.getLogger(__name__)

STATUS_INTERVAL = 2.0                   # seconds between two, at least
MOST_HOLDERS = 3                        # that are named, of those who use a GPU unshared
MOST_NAMED = 20                         # programs that wait for another daemon, a line each


def follow(gpu: GPU, limited: Limited, stopped: asyncio.Event) -> None:
    """Says which programs come and leave, and with --debug every turn.

    Once `stopped` is set, a client that is removed has not left: its program goes on.
    """

    def say(level: int, client: Client, what: str, words: str) -> None:
        limited.say(level, (what, client.peer.account), lambda: f"{gpu}: {client} {words}")

    gpu.client_new.connect(lambda client: say(logging.INFO, client, "came", "came"))
    gpu.client_removed.connect(
        lambda client: None if stopped.is_set() else say(logging.INFO, client, "left", "left"))
    gpu.turn_started.connect(lambda client: logger.debug("%s: %s runs", gpu, client))
    gpu.turn_ended.connect(
        lambda client, why, held_time: logger.debug(
            "%s: %s ran for %.3f s: %s", gpu, client, held_time / SECOND, why
        )
    )
    gpu.client_pinned.connect(
        lambda client, why: say(
            logging.WARNING, client, "pin_reason",
            f"stays on the GPU from now on, and others get what is left: {why.words}",
        )
    )
    gpu.client_refused.connect(
        lambda client, why: say(
            logging.WARNING, client, "refused", f"is out of memory, because {why}"
        )
    )
    gpu.client_crowded.connect(
        lambda client, needs, room: say(
            logging.WARNING, client, "crowded",
            f"waits: it needs {needs // MIB} MiB, and no more than {room // MIB} MiB of the GPU "
            f"can be had{_held(gpu.strangers)}",
        )
    )
    gpu.client_stuck.connect(
        lambda client, state, waited: say(
            logging.ERROR, client, "stuck",
            f"does not answer, {state} for {waited / SECOND:.0f} s",
        )
    )


def _held(strangers: dict[int, int]) -> str:
    """Who holds the rest without sharing it; nothing where the driver does not say."""
    most = sorted(strangers.items(), key=lambda one: -one[1])[:MOST_HOLDERS]
    held = ", ".join(f"{shown(pid)} ({size // MIB} MiB)" for pid, size in most)
    return f"; these use it unshared: {held}" if held else ""


def complain(limited: Limited, who: Peer, kind: str, message: str) -> None:
    """Says what a client did wrong: who it was, of what kind that is, in words."""
    limited.say(
        logging.WARNING, (kind, who.account), lambda: f"{who} of {who.user}: {message}")


def farewell(manager: Manager) -> None:
    """Names those who stand still without us. Whoever runs goes on."""
    left = [one for one in manager.clients if one.view.state is not ClientState.RUNNING]
    for client in left[:MOST_NAMED]:
        away = client.memory.allocated - client.memory.resident
        logger.warning(
            "%s: %s of %s stands still at its next use of the GPU, with %d MiB in host memory, "
            "until nvshared is started again", client.gpu, client, client.peer.user, away // MIB,
        )
    if len(left) > MOST_NAMED:
        logger.warning("%d more programs stand still, too", len(left) - MOST_NAMED)


def cards(manager: Manager) -> str:
    """All of them with their names."""
    return ", ".join(f"{gpu} ({gpu.facts.name})" for gpu in manager.gpus)


async def report(notifier: Notifier, manager: Manager, stopped: asyncio.Event) -> None:
    """Tells systemd how we are until we are to stop.

    The watchdog is fed only while the loop gets here and all schedulers decide.
    """
    if not notifier.listened:
        await stopped.wait()
        return
    pulse = Pulse(None if notifier.watchdog is None else notifier.watchdog / SECOND / 3)
    ignore = [
        manager.client_new.connect(pulse.hasten), manager.client_removed.connect(pulse.hasten),
        *(gpu.turn_started.connect(pulse.hasten) for gpu in manager.gpus),
        *(gpu.turn_ended.connect(pulse.hasten) for gpu in manager.gpus),
    ]
    last = ""
    hung: list[str] = []
    while not stopped.is_set():
        before, hung = hung, [str(gpu) for gpu in manager.gpus if not gpu.turns()]
        if not hung:
            notifier.alive()
        elif hung != before:
            logger.critical("nothing is decided any more on %s", ", ".join(hung))
        if not notifier.catch_up():
            pulse.hasten()
        status = _status(manager)
        if status != last:
            notifier.status(status)
            last = status
        await pulse.beat(stopped)
    for disconnect in ignore:
        disconnect()


class Pulse:
    """When to look: regularly, and a moment after something happened, but never in between."""

    def __init__(self, regular: float | None) -> None:
        """`regular`: seconds; None: only when something happened."""
        self._regular = inf if regular is None else regular
        self._soon = min(STATUS_INTERVAL, self._regular)
        self._last = asyncio.get_running_loop().time()
        self._hurry = False
        self._limit: asyncio.Timeout | None = None

    def hasten(self, *_: object) -> None:
        """Something happened."""
        if not self._hurry:
            self._hurry = True
            if self._limit is not None and not self._limit.expired():
                self._limit.reschedule(self._last + self._soon)

    async def beat(self, stopped: asyncio.Event) -> None:
        """Returns when it is time to look again, or we are to stop."""
        when = self._last + (self._soon if self._hurry else self._regular)
        try:
            async with asyncio.timeout_at(None if when == inf else when) as self._limit:
                await stopped.wait()
        except TimeoutError:
            self._last = asyncio.get_running_loop().time()
            self._hurry = False
        finally:
            self._limit = None


def _status(manager: Manager) -> str:
    words = [counted(len(manager.gpus), "GPU"), counted(len(tuple(manager.clients)), "client")]
    words += [
        f"{gpu}: {', '.join(map(str, gpu.holders))}" for gpu in manager.gpus if gpu.holders
    ]
    return ", ".join(words)
