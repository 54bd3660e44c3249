# SPDX-License-Identifier: Apache-2.0
"""The main program of nvshare-kubelet: start, main loop, shutdown."""

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from nvshared.containers.cdi import Share, prepare
from nvshared.errors import NvshareError
from nvshared.kubelet.card import RESTART, Offer, read_gpus, retry_until_reply
from nvshared.kubelet.container import Containers
from nvshared.kubelet.options import KUBELET, OFF, Options, parse
from nvshared.kubelet.ready import Readiness, check
from nvshared.kubelet.settings import NodeSettings
from nvshared.report import log, systemd

logger = logging.getLogger(__name__)

PERIOD = 2.0                            # seconds between GPU readings, and plugin socket checks


def main(argv: Sequence[str] | None = None) -> int:
    """Runs nvshare-kubelet until a signal ends it. Returns the exit status."""
    def run() -> None:
        options = parse(argv)
        if options.ready:
            check(options.state)
            return
        log.start(os.environ, debug=False)
        asyncio.run(_serve(options, argv))

    return log.run("nvshare-kubelet", run)


async def _serve(options: Options, argv: Sequence[str] | None) -> None:
    """Runs until a signal. Raises NvshareError."""
    try:
        from nvshared.kubelet.claims import Prepared
        from nvshared.kubelet.fault import ReportedFault
        from nvshared.kubelet.leaving import leave
        from nvshared.kubelet.plugin import DevicePlugin, DRADriver, Plugin
        from nvshared.kubelet.pods import Pods, StaticPods
        from nvshared.kubelet.runtime import Runtime, root_directory
        from nvshared.kubelet.slices import Published
    except ImportError as error:
        raise NvshareError(
            f"a Python package is missing: {error}",
            "install python3-grpcio, python3-protobuf and python3-yaml, "
            "or: pip install 'nvshared[kubernetes]'") from error
    loop = asyncio.get_running_loop()
    stopped = loop.create_future()      # done by SIGTERM or SIGINT, or failed by a thread's error

    def stop(error: NvshareError | None = None) -> None:
        if not stopped.done():
            if error is None:
                stopped.set_result(None)
            else:
                stopped.set_exception(error)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)

    def call(function: Callable[..., None], *arguments: Any) -> None:
        with suppress(RuntimeError):    # the loop has ended
            loop.call_soon_threadsafe(function, *arguments)

    def fail(fault: threading.ExceptHookArgs) -> None:
        """Ends the process when a thread fails, so that systemd restarts the process."""
        threading.__excepthook__(fault)
        thread = "" if fault.thread is None else fault.thread.name
        call(stop, NvshareError(
            f"the thread {thread} ended: {fault.exc_type.__name__}: {fault.exc_value}",
            "please report this with the lines above it"))

    threading.excepthook = fail
    is_given = options.kubelet is not None
    options.kubelet = options.kubelet or root_directory() or Path(KUBELET)
    lock = prepare(options.state)
    readiness = Readiness(options.state)
    notifier = systemd.Notifier(os.environ)
    settings = NodeSettings(argv, options) if options.settings else None
    active = options if settings is None else settings.last()
    offer = Offer(active.replicas if active else None)
    containers = Containers(Share(options.socket, options.state), options.cdi_folder)
    runtime = Runtime(options.cdi, options.runtime)
    pods = Pods(
        options.bus, options.kubeconfig, options.node, Prepared(options.state),
        StaticPods(options.state, options.kubelet),
        active.classes if active else (), offer.smallest if active and active.foreign else None,
        may_change=settings is not None)
    nvshared = ""                       # unique D-Bus name of the nvshared that replied last
    is_leaving = False

    async def refresh(*, fresh: bool = False) -> None:
        nonlocal nvshared
        if is_leaving:                  # nvshared may leave, too; programs wait for the next one
            return
        # Shares stay offered while nvshared restarts: a pod that kubelet refuses is never retried.
        reading, answered = await retry_until_reply(
            partial(read_gpus, options.bus, options.socket, options.kubelet, fresh=fresh),
            0 if offer.common_problem else RESTART)
        has_changed = offer.update(reading)
        if answered not in ("", nvshared):
            pods.nvshared_is_back()     # after update(), so that offer.smallest() is current
        nvshared = answered or nvshared
        if has_changed:
            logger.info("%s", offer.describe())
            notifier.status(offer.describe())
        if has_changed and (offer.common_problem or any(map(offer.problem, offer.offered()))):
            # The event has the reason: Kubernetes' scheduler reports only that no share is free.
            pods.write_node_event(offer.describe())

    await refresh()
    common = options.kubelet, offer, containers, runtime, refresh
    plugin: Plugin = (
        DRADriver(*common, pods=pods, node=options.node) if options.dra else DevicePlugin(*common))
    published = Published(
        options.kubeconfig, options.node,
        partial(call, offer.update_other_drivers) if options.dra else None)

    async def keep_refreshing() -> None:
        while True:
            await asyncio.sleep(PERIOD)
            await refresh(fresh=True)

    async def keep_published() -> None:
        problem = ""
        async for _ in offer.changes(PERIOD):
            if settings is not None and published.node.read_at:
                meta = published.node.object["metadata"]
                if changed := settings.changed(meta.get("labels") or {}):
                    offer.set_replicas(changed.replicas)
                    pods.set_options(changed.classes, offer.smallest if changed.foreign else None)
            published.publish(offer)
            published.node.may_untaint = plugin.is_registered
            if runtime.supports_cdi and (offered := offer.offered()):
                try:
                    containers.write_cdi_file(card.uuid for card in offered)
                    problem = ""
                except NvshareError as error:   # pods that need the file are refused with this
                    if problem != (problem := str(error)):
                        logger.error("%s", error)

    def why_not_ready() -> str:
        if offer.common_problem:
            return offer.common_problem
        if not plugin.is_registered:
            return f"kubelet has not registered {plugin.name}"
        if options.dra:
            return "" if published.has_slice else (
                f"the ResourceSlice is not written{published.problem and ': ' + published.problem}")
        number, shown = list(offer.shares().values()).count(True), published.node.allocatable or 0
        if shown == number and published.node.read_at:
            return ""
        published.node.read_soon()
        unread = f"; the node cannot be read: {why}" if (why := published.node.problem) else ""
        return f"the node shows {shown} shares as allocatable, and there are {number}{unread}"

    async def keep_ready() -> None:
        while True:
            if readiness.set(why := why_not_ready()):
                logger.info("not ready: %s" if why else "ready%s", why)
            await asyncio.sleep(PERIOD)

    async def keep_fault_reported() -> None:
        fault = ReportedFault(options.bus)
        while True:
            await asyncio.to_thread(fault.set, plugin.why_unreached())
            await asyncio.sleep(PERIOD)

    async def keep_registered() -> None:
        while True:
            await asyncio.sleep(PERIOD)
            if not plugin.has_socket:           # `kubeadm reset` empties kubelet's folder
                logger.warning("%s takes no connections, and is created again", plugin.path)
                await plugin.start()
            if not (is_given or plugin.is_registered):      # at boot, kubelet starts after us
                found = await asyncio.to_thread(root_directory)
                if found not in (None, plugin.kubelet):
                    logger.info("kubelet's folder is %s", found)
                    await plugin.start(found)

    tasks = []
    try:
        await plugin.start()
        await plugin.await_registration()
        notifier.ready()
        if options.cdi != OFF and (why := await runtime.cdi_problem()):
            logger.log(logging.ERROR if options.dra else logging.INFO, "%s", why)
        tasks = [asyncio.create_task(one())
                 for one in (keep_refreshing, keep_published, keep_ready, keep_registered,
                             keep_fault_reported)]
        ended, _ = await asyncio.wait([stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
        notifier.stopping()
        for one in ended:
            one.result()                # raises the exception of a task that has failed
    finally:
        is_leaving = True
        for task in tasks:
            task.cancel()
        readiness.set("nvshare-kubelet is leaving")
        if not options.dra and plugin.is_registered and any(offer.shares().values()):
            await leave(published.node, pods, plugin.stop)
        await plugin.stop()
        notifier.close()
        readiness.close()
        os.close(lock)
    logger.info("stopped; running containers go on, new containers get no share")
