# SPDX-License-Identifier: Apache-2.0
"""Reports for administrators: lines of the journal, and the status that systemd shows."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from nvshared.clock import until_next
from nvshared.machine.peer import Peer, shown
from nvshared.quantity import counted
from nvshared.report.log import Limited
from nvshared.report.systemd import Notifier
from nvshared.scheduler import actions
from nvshared.scheduler.actions import ClientState
from nvshared.sharing.gpu import GPU, Client
from nvshared.sharing.manager import Manager
from nvshared.units import MIB, SECOND

logger = logging.getLogger(__name__)

STATUS_INTERVAL = 2.0                   # seconds between two checks whether the status has changed
MOST_HOLDERS = 3                        # most processes of a GPU named in a line, and in the status
MOST_NAMED = 20                         # the log names at most so many waiting clients


def follow(gpu: GPU, limited: Limited, stopped: asyncio.Event) -> None:
    """Logs when clients connect and disconnect, and their problems; with --debug, each turn.

    Once `stopped` is set, disconnections are not logged: the programs go on."""

    def log(level: int, kind: str, client: Client, words: Callable[[], str]) -> None:
        limited.say(level, (kind, client.peer.account), lambda: f"{gpu}: {client} {words()}")

    def removed(client: Client) -> None:
        if not stopped.is_set():
            log(logging.INFO, "left", client, lambda: "left")

    def reported(client: Client, report: actions.Action) -> None:
        match report:
            case actions.TurnStarted():
                logger.debug("%s: %s runs", gpu, client)
            case actions.TurnEnded(_, reason, held_time):
                logger.debug("%s: %s ran for %.3f s: %s", gpu, client, held_time / SECOND, reason)
            case actions.Pinned(_, pin_reason):
                log(logging.WARNING, "pin_reason", client, lambda:
                    f"stays on the GPU from now on, and other programs share the rest: "
                    f"{pin_reason.words}")
            case actions.Limits():
                log(logging.WARNING, "refused", client, lambda:
                    f"is out of memory, because {report.reason}")
            case actions.Crowded(_, needs, room):
                log(logging.WARNING, "crowded", client, lambda:
                    f"waits: it needs {needs // MIB} MiB, and no more than {room // MIB} MiB of "
                    f"the GPU can be had{_held(gpu.strangers)}")
            case actions.Stuck(_, state, waited):
                log(logging.ERROR, "stuck", client, lambda:
                    f"does not answer, {state} for {waited / SECOND:.0f} s")

    gpu.client_new.connect(lambda client: log(
        logging.INFO, "came", client, lambda: "goes on" if client.goes_on else "came"))
    gpu.client_removed.connect(removed)
    gpu.reported.connect(reported)


def _held(strangers: dict[int, int]) -> str:
    most = sorted(strangers.items(), key=lambda one: -one[1])[:MOST_HOLDERS]
    held = ", ".join(f"{shown(pid)} ({size // MIB} MiB)" for pid, size in most)
    return f"; these use it unshared: {held}" if held else ""


def log_fault(
    limited: Limited, display: Callable[[str], str], peer: Peer, kind: str, message: str
) -> None:
    """Logs an error of the client `peer`. Lines are limited by `kind` and user.

    `display`: returns the displayed name of a tenant."""
    limited.say(logging.WARNING, (kind, peer.account), lambda:
                f"{peer} of {display(str(peer.tenants[0])).partition(':')[2]}: {message}")


def log_waiting_clients(manager: Manager) -> None:
    """Logs the programs without a turn: their next use of a GPU waits until nvshared runs again."""
    left = [one for one in manager.clients if one.view.state is not ClientState.RUNNING]
    for client in left[:MOST_NAMED]:
        swapped = client.memory.allocated - client.memory.resident
        logger.warning(
            "%s: %s of %s stands still at its next use of the GPU, with %d MiB in host memory, "
            "until nvshared is started again", client.gpu, client, client.user, swapped // MIB)
    if len(left) > MOST_NAMED:
        logger.warning("%d more programs stand still, too", len(left) - MOST_NAMED)


def _named(holders: Sequence[Client]) -> str:
    more = f" and {len(holders) - MOST_HOLDERS} more" if len(holders) > MOST_HOLDERS else ""
    return ", ".join(map(str, holders[:MOST_HOLDERS])) + more


async def report(notifier: Notifier, manager: Manager, stopped: asyncio.Event) -> None:
    """Sends watchdog pings and changes of the status to systemd until `stopped` is set.

    The watchdog is pinged only while the event loop runs and the schedulers of all GPUs decide."""
    if not notifier.listened:
        await stopped.wait()
        return
    interval = STATUS_INTERVAL
    if notifier.watchdog is not None:
        interval = min(interval, notifier.watchdog / SECOND / 3)
    last = ""
    hung: list[str] = []
    while not stopped.is_set():
        before, hung = hung, [str(gpu) for gpu in manager.gpus if not gpu.decides()]
        if not hung:
            notifier.alive()
        elif hung != before:
            logger.critical("nothing is decided any more on %s", ", ".join(hung))
        notifier.catch_up()
        status = ", ".join([
            counted(len(manager.gpus), "GPU"), counted(len(tuple(manager.clients)), "client"),
            *(f"{gpu}: {_named(gpu.holders)}" for gpu in manager.gpus if gpu.holders)])
        if status != last:
            notifier.status(status)
            last = status
        with suppress(TimeoutError):
            async with asyncio.timeout(until_next(interval)):
                await stopped.wait()
