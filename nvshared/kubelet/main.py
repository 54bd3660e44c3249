# SPDX-License-Identifier: Apache-2.0
"""The main program of nvshare-kubelet: start, main loop, shutdown."""

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from nvshared.errors import NvshareError
from nvshared.kubelet.card import RESTART, holders, look, look_until_answered
from nvshared.kubelet.claims import Prepared
from nvshared.kubelet.container import Containers, Folders, prepare
from nvshared.kubelet.offer import Offer
from nvshared.kubelet.options import OFF, Options, parse
from nvshared.kubelet.pod import RESOURCE
from nvshared.report import log, systemd

logger = logging.getLogger(__name__)

PERIOD = 2.0                            # seconds between checks of nvshared and of our socket


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns its exit status."""
    return log.run("nvshare-kubelet", lambda: _run(argv))


def _run(argv: Sequence[str] | None) -> None:
    options = parse(argv)
    log.start(os.environ, debug=False)
    asyncio.run(_serve(options))


async def _serve(options: Options) -> None:
    """Runs until a signal. Raises NvshareError."""
    try:
        from nvshared.kubelet.driver import Driver
        from nvshared.kubelet.labels import Labels
        from nvshared.kubelet.plugin import Plugin
        from nvshared.kubelet.pods import Pods
        from nvshared.kubelet.rpc import Registered
        from nvshared.kubelet.runtime import Runtime
        from nvshared.kubelet.slices import Slices
        from nvshared.kubelet.static import StaticPods
    except ImportError as error:
        raise NvshareError(
            f"a Python package is missing: {error}",
            "install python3-grpcio, python3-protobuf and python3-yaml, "
            "or: pip install 'nvshared[kubernetes]'",
        ) from error
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    lock = prepare(options.state)
    notifier = systemd.Notifier(os.environ)
    offer = Offer(options.replicas)
    containers = Containers(options.socket, options.state, Folders(options.cdi_folder))
    runtime = Runtime(options.cdi, options.runtime)
    nvshared = ""                       # its unique bus name at its last reply

    async def look_again(*, fresh: bool = False) -> None:
        nonlocal nvshared
        # A pod that kubelet refuses fails permanently, so during a restart of nvshared the shares
        # stay offered.
        seen, answered = await look_until_answered(
            partial(look, options.bus, options.socket, options.kubelet, fresh=fresh),
            0 if offer.trouble_of_all else RESTART)
        news = offer.learn(seen)
        if pods is not None and answered not in ("", nvshared):
            pods.nvshared_is_back()     # after learn(): it uses the offer
        nvshared = answered or nvshared
        if news:
            logger.info("%s", offer.words())
            notifier.status(offer.words())
            warn()

    async def keep_looking() -> None:
        while True:
            await asyncio.sleep(PERIOD)
            await look_again(fresh=True)

    def warn() -> None:
        """Reports the reason as an event: Kubernetes' scheduler only says that no GPU is free."""
        if pods is not None and offer.has_trouble:
            threading.Thread(
                target=pods.tell_of_node, args=(offer.words(),), name="node", daemon=True).start()

    def others(offered: dict[str, str]) -> None:
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(offer.learn_elsewhere, offered)

    failures: list[NvshareError] = []

    def fail(what: threading.ExceptHookArgs) -> None:
        """Ends the process when a thread fails, so that systemd restarts the process."""
        threading.__excepthook__(what)
        thread = "" if what.thread is None else what.thread.name
        failures.append(NvshareError(
            f"the thread {thread} ended: {what.exc_type.__name__}: {what.exc_value}",
            "please report this with what stands above it",
        ))
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(stopped.set)

    threading.excepthook = fail
    pods: Pods | None = None
    await look_again()
    pods = Pods(
        options.bus, options.kubeconfig, options.node, Prepared(options.state),
        StaticPods(options.state, partial(holders, options.kubelet, RESOURCE)),
        options.classes, offer.smallest if options.foreign else None,
    )
    warn()
    labels = Labels(options.kubeconfig, options.node)
    slices: Slices | None = None
    plugin: Driver | Plugin
    if options.dra:
        plugin = Driver(offer, containers, runtime, pods, options.node, look_again)
        slices = Slices(options.kubeconfig, options.node, others)
    else:
        plugin = Plugin(offer, containers, runtime, look_again)
    registered = Registered(plugin, options.kubelet)
    looking = asyncio.create_task(keep_looking())
    try:
        await registered.start()
        notifier.ready()
        if options.cdi != OFF and (why := await runtime.why_not()):
            logger.log(logging.ERROR if options.dra else logging.INFO, "%s", why)
        while not stopped.is_set():
            news = [asyncio.ensure_future(one) for one in (offer.news(), stopped.wait())]
            labels.publish(offer)
            if slices is not None:
                slices.publish(offer)
            if runtime.supports_cdi and (offered := offer.offered()):
                containers.learn(card.uuid for card in offered)
            await asyncio.wait(
                [*news, looking], timeout=PERIOD, return_when=asyncio.FIRST_COMPLETED)
            if looking.done():
                looking.result()        # raises: the task ends only by a fault of ours
            for one in news:
                one.cancel()
            if not stopped.is_set() and not registered.is_there():
                logger.warning("%s was removed, and is made anew", registered.path)
                await registered.start()
        notifier.stopping()
    finally:
        looking.cancel()
        await registered.stop()
        notifier.close()
        os.close(lock)
    if failures:
        raise failures[0]
    logger.info("stopped; containers go on, and no new one gets a share")
