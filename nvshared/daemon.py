# SPDX-License-Identifier: Apache-2.0
"""The daemon nvshared: starts its parts in order, and ends them in reverse order.

One event loop makes all decisions. Threads make calls that may block: one per card for NVML, and
the threads of nvshared/lanes.py."""

import asyncio
import gc
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial

from nvshared import __version__
from nvshared.clock import Timer, monotonic
from nvshared.containers import names
from nvshared.errors import DriverMismatch, NoDriver, NvshareError
from nvshared.faults import Faults
from nvshared.hook.connection import (
    CONTAINER_PATIENCE,
    Server,
    container_of,
    descriptors,
    most_clients,
)
from nvshared.hook.listening import Listening
from nvshared.lanes import Lanes, call
from nvshared.machine.nvml import NVML, Facts
from nvshared.report import journal, log, systemd
from nvshared.report.trace import Trace
from nvshared.settings.config import DEFAULT_FILE, Config, load, parse, waiting
from nvshared.settings.defaults import Defaults, derive, disk_doubts
from nvshared.settings.rules import doubts
from nvshared.settings.state import StateFile, TenantsFile
from nvshared.settings.watch import SettingsWatch
from nvshared.sharing.cards import Cards, KnownCards, first_samples
from nvshared.sharing.checks import Checks
from nvshared.sharing.control_groups import ControlGroups
from nvshared.sharing.directory import Directory
from nvshared.sharing.gpu import GPU
from nvshared.sharing.manager import Manager, SafeBudget
from nvshared.sharing.moving import start_task
from nvshared.sharing.remembered import RememberedTerms
from nvshared.sharing.rivals import Rivals
from nvshared.sharing.sampler import Sampler
from nvshared.sharing.tenancy import Tenancy
from nvshared.units import SECOND

logger = logging.getLogger("nvshared")

# Seconds that a thread, such as one of NVML's, may keep the interpreter while the event loop waits.
GIVE_WAY = 0.000_5
THREADS = 32                            # maximum for calls that always return
THREADS_FOR_NAMES = 8                   # maximum for calls that programs can block for ever
THREADS_FOR_USERS = 8                   # maximum for calls that a directory of users delays


def main(argv: Sequence[str] | None = None) -> int:
    return log.run("nvshared", lambda: _run(argv))


def _run(argv: Sequence[str] | None) -> None:
    file, given, only_check = parse(argv)
    watch = SettingsWatch(file or DEFAULT_FILE)

    def read() -> Config:
        watch.note()
        return load(file, os.environ, given)

    config = read()
    if only_check:
        derive(config, (), 0)
        for sentence in (*doubts(config.rules), *disk_doubts(config)):
            log.write_line(sentence)
        _refuse_mismatch()
        return
    log.start(os.environ, debug=config.debug)
    sys.setswitchinterval(GIVE_WAY)
    asyncio.run(_serve(config, read, watch))


def _refuse_mismatch() -> None:
    """Raises DriverMismatch if no daemon could start until the machine boots.

    A daemon that runs since before the driver's upgrade goes on, so it must not be restarted."""
    try:
        NVML()
    except DriverMismatch:
        raise
    except NoDriver as error:
        logger.debug("not checked against a driver: %s", error)


async def _serve(config: Config, read: Callable[[], Config], watch: SettingsWatch) -> None:
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    early: list[int] = []               # SIGHUPs that arrive before the manager exists
    loop.add_signal_handler(signal.SIGHUP, early.append, signal.SIGHUP)
    faults: list[str] = []

    def failed() -> None:
        faults.append("a scheduler failed, so nvshared ends; a new one learns all from its clients")
        stopped.set()

    def timer(when: int, callback: Callable[[], None], /) -> Callable[[], None]:
        return loop.call_at(when / SECOND, callback).cancel

    def post(function: Callable[[], None]) -> None:
        with suppress(RuntimeError):    # a blocked call returned after the event loop was closed
            loop.call_soon_threadsafe(function)

    notifier = systemd.Notifier(os.environ)
    nvml = NVML()
    known = None if config.state_dir is None else KnownCards(config.state_dir)
    samples = first_samples(nvml, known)
    facts = [*samples]
    async with AsyncExitStack() as stack:
        stack.callback(notifier.close)
        given = systemd.inherited(os.environ)
        listening = given.listening
        # If systemd kept sockets, an earlier daemon may have left clients.
        successor = listening is not None or bool(given.kept)
        if listening is None:
            made = Listening(config.socket)
            stack.callback(made.close)
            listening = made.socket
            successor = successor or made.found_stale
        lanes = Lanes("lanes", THREADS, post, monotonic, timer)
        programs = Lanes("programs", THREADS_FOR_NAMES, post, monotonic, timer)
        users = Lanes("users", THREADS_FOR_USERS, post, monotonic, timer)
        directory = Directory(users.run, monotonic, timer)
        manager = _manager(facts, config, read, lanes, directory, timer)
        manager.socket = str(listening.getsockname())
        limited = log.Limited(logger, monotonic, timer)
        queries = Lanes("nvml", THREADS, post, monotonic, timer)
        sampler = Sampler(nvml.sample, queries.run, monotonic, timer, nvml.memory)
        manager.disk.client_failed.connect(
            lambda peer, words: journal.log_fault(
                limited, manager.tenancy.shown, peer, "disk", words))
        trace = None if config.trace is None else Trace(config.trace)
        if trace is not None:
            stack.callback(trace.close)
        kept = None
        if config.state_dir is not None:
            kept = RememberedTerms(config.state_dir, monotonic, timer, lanes.run)
            manager.files.append(kept.file)
            manager.saved_terms = kept.saved
            manager.gpu_removed.connect(kept.unfollow)
        history = None
        if config.state_dir is not None and config.history is not None:
            from nvshared.history import History, HistoryFile  # they import sqlite3

            history = History(
                HistoryFile(config.state_dir, config.history), monotonic, timer, time.time)
            stack.callback(history.close)

        def follow(gpu: GPU) -> None:
            sampler.add(gpu)
            gpu.failed.connect(failed)
            journal.follow(gpu, limited, stopped)
            for one in (kept, history):
                if one is not None:
                    one.follow(gpu)
            if trace is not None:
                trace.add(gpu)

        manager.gpu_new.connect(follow)
        manager.gpu_removed.connect(sampler.remove)
        containers = names.Names()
        # Known before decisions are made for the first time: those must not wait for a runtime.
        if container := container_of(given.kept.values()):
            await call(users.run, names.KIND, partial(containers.of, container), CONTAINER_PATIENCE)
        if known is not None:
            manager.files.append(known.file)
        cards = Cards(nvml, manager, monotonic, lanes.run, queries.run, post, known)
        cards.add(samples, gather=successor)
        manager.log_unused_settings()
        stack.push_async_callback(cards.saved)
        if config.metrics:
            from nvshared.report import metrics

            stack.push_async_callback(await metrics.publish(manager, config.metrics))
        if config.bus != "none":
            from nvshared.bus import publish

            publication = await publish(manager, config.bus, history)
            stack.push_async_callback(publication.close)
        manager.disk.keep(notifier, given.files)
        server = Server(manager, listening, config, _descriptors(config, manager.faults),
                        partial(journal.log_fault, limited, manager.tenancy.shown), notifier,
                        given.kept, lanes, programs, users, containers)
        stack.callback(server.close)
        if kept is not None:
            stack.callback(kept.close)
        reload = partial(_reload, manager, set())
        loop.add_signal_handler(signal.SIGHUP, reload)
        if early:
            reload()
        checks = Checks(manager, monotonic, lanes.run, queries.run, nvml.is_exclusive,
                        config.state_dir,
                        lambda: (history.fault, history.unused) if history else ("", ""))
        rivals = Rivals(manager, monotonic, lanes.run)
        stack.callback(rivals.close)
        for endless in (cards.watch(), checks.watch(), rivals.watch(), manager.moving.watch(),
                        manager.balancing.watch(), manager.saving.take_over(),
                        watch.run(reload, lanes.run)):
            stack.callback(loop.create_task(endless).cancel)
        logger.info("nvshared %s manages %s", __version__, ", ".join(
            f"{gpu} ({gpu.facts.name})" for gpu in manager.gpus))
        logger.info("programs find it at %s", config.socket)
        # Objects of the start live as long as the daemon: keep them out of garbage collections.
        gc.freeze()
        notifier.ready()
        await journal.report(notifier, manager, stopped)
        notifier.stopping()
        journal.log_waiting_clients(manager)
    if faults:
        raise NvshareError(faults[0], "please report the lines above")
    logger.info("stopped; programs that hold a GPU go on, those that wait go on waiting")


def _manager(cards: Sequence[Facts], config: Config, read: Callable[[], Config], lanes: Lanes,
             directory: Directory, timer: Timer) -> Manager:
    safe = SafeBudget(monotonic, timer, lanes.run)
    fetched: list[Config] = [config]    # the last one that was read
    logged: list[str] = []              # changed settings that were logged as needing a restart

    def derived() -> Defaults:
        latest = fetched[-1]
        log.set_debug(latest.debug)
        defaults = derive(latest, cards, safe.bytes)
        tenancy.use(latest.rules)
        later = waiting(config, latest)
        if later and later != logged:
            logger.warning("%s: changed, but from the next start on: systemctl restart nvshared",
                           ", ".join(later))
        logged[:] = later
        return defaults

    def fetch() -> object:
        try:
            fetched[:] = [read()]
        except NvshareError as error:
            return error
        return fetched

    store = None if config.state_dir is None else StateFile(config.state_dir)
    terms = None if config.state_dir is None else TenantsFile(config.state_dir)
    tenancy = Tenancy(terms, directory)
    manager = Manager(derived, monotonic, timer, store, tenancy, lanes.run)
    manager.fetch = fetch
    manager.files += [one.file for one in (store, terms) if one is not None]
    safe.follow(manager)
    ControlGroups(manager, monotonic, timer, lanes.run)
    return manager


def _descriptors(config: Config, faults: Faults) -> int:
    """Raises the soft limit of open files for max_clients, as far as the hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    number = min(hard, max(soft, descriptors(config.max_clients)))
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, hard))
    if most_clients(number) < config.max_clients:
        words = (f"max-clients is {config.max_clients}, but {number} open files are enough for "
                 f"{most_clients(number)} clients")
        logger.warning("%s; raise LimitNOFILE=, or outside of systemd: ulimit -n", words)
        faults.set("few-descriptors", words)
    return number


def _reload(manager: Manager, reloads: set[asyncio.Task[None]]) -> None:
    start_task(reloads, _reload_now(manager))


async def _reload_now(manager: Manager) -> None:
    try:
        await manager.read_again()
    except NvshareError as error:       # a caller on the bus gets the error instead
        logger.error("the settings stay as they are: %s", error)
    else:
        logger.info("the settings were read again")
