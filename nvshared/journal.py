# SPDX-License-Identifier: Apache-2.0
"""What people who look after the machine are told: the journal's lines and systemd's status."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from nvshared.clock import SECOND
from nvshared.gpu import GPU
from nvshared.log import Limited
from nvshared.manager import Manager
from nvshared.peer import Peer
from nvshared.systemd import Notifier

logger = logging.getLogger(__name__)

STATUS_INTERVAL = 2.0                   # seconds


def follow(gpu: GPU) -> None:
    """Says who comes and goes, and with --debug every turn."""
    gpu.client_new.connect(lambda client: logger.info("%s: %s came", gpu, client))
    gpu.client_removed.connect(lambda client: logger.info("%s: %s left", gpu, client))
    gpu.turn_started.connect(lambda client: logger.debug("%s: %s runs", gpu, client))
    gpu.turn_ended.connect(
        lambda client, why, held: logger.debug(
            "%s: %s ran for %.3f s: %s", gpu, client, held / SECOND, why
        )
    )
    gpu.client_stuck.connect(
        lambda client, state, waited: logger.error(
            "%s: %s does not answer, %s for %.0f s", gpu, client, state, waited / SECOND
        )
    )


def complainer(limited: Limited) -> Callable[[Peer, str, str], None]:
    """A function that says what a client did wrong: who, of what kind, in words."""

    def complain(peer: Peer, kind: str, message: str) -> None:
        limited.warning(kind, f"{peer} of {peer.user}: {message}")

    return complain


def cards(manager: Manager) -> str:
    """All of them with their names."""
    return ", ".join(f"{gpu} ({gpu.facts.name})" for gpu in manager.gpus)


async def report(notifier: Notifier, manager: Manager, stopped: asyncio.Event) -> None:
    """Tells systemd how we are until we are to stop.

    The watchdog is fed only while the loop gets here and all schedulers decide.
    """
    interval = STATUS_INTERVAL
    if notifier.watchdog is not None:
        interval = min(interval, notifier.watchdog / SECOND / 3)
    last = ""
    hung: list[str] = []
    while not stopped.is_set():
        before, hung = hung, [str(gpu) for gpu in manager.gpus if not gpu.turns()]
        if not hung:
            notifier.alive()
        elif hung != before:
            logger.critical("nothing is decided any more on %s", ", ".join(hung))
        notifier.catch_up()
        status = _status(manager)
        if status != last:
            notifier.status(status)
            last = status
        with suppress(TimeoutError):
            await asyncio.wait_for(stopped.wait(), interval if notifier.listened else None)


def _status(manager: Manager) -> str:
    words = [_count(len(manager.gpus), "GPU"), _count(len(tuple(manager.clients)), "client")]
    words += [
        f"{gpu}: {', '.join(map(str, gpu.holders))}" for gpu in manager.gpus if gpu.holders
    ]
    return ", ".join(words)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
