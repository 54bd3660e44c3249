# SPDX-License-Identifier: Apache-2.0
"""Connections survive the daemon: when it is killed or restarted, no client is lost."""

import select
import signal
import subprocess
from collections.abc import Callable, Iterator

import pytest

from nvshared.hook.protocol import OLDEST, VERSION, Type
from nvshared.units import MIB
from tests.integration.conftest import Site, kill
from tests.integration.fakehook import PATIENCE, Hook, pump
from tests.integration.servicemanager import ServiceManager
from tests.integration.test_kills import (
    PROGRAMS,
    SETTINGS,
    STATES_TO_TRY,
    await_state,
    finish,
    program,
)

LARGE = 700 * MIB


@pytest.fixture
def manager(site: Site) -> Iterator[ServiceManager]:
    """A service manager that keeps the daemon's descriptors, as systemd does."""
    made = ServiceManager(site)
    yield made
    made.close()


def end(daemon: subprocess.Popen[str]) -> None:
    daemon.send_signal(signal.SIGTERM)
    assert daemon.wait(PATIENCE) == 0


def has_mail(hook: Hook, patience: float) -> bool:
    """True if a record arrives within this time; it is left unread."""
    return bool(select.select([hook.socket], [], [], patience)[0])


@pytest.mark.parametrize(("stop", "version"), [(kill, VERSION), (end, VERSION), (end, OLDEST)])
def test_client_connection_kept_by_systemd_survives_a_daemon_restart(
    site: Site, manager: ServiceManager, stop: Callable[[subprocess.Popen[str]], None],
    version: int,
) -> None:
    """A hook that was loaded before an upgrade speaks an earlier version to both daemons."""
    site.version = version
    daemon = manager.start("--tq", "3600")
    one = site.holding(LARGE)
    two = site.wanting(LARGE)
    pump([one, two], lambda: one.paced)
    manager.wait(lambda: len(manager.kept) == 2)
    stop(daemon)
    manager.start("--tq", "1")
    assert site.socket.exists()
    for hook in (one, two):
        hook.obey_until(Type.INTRODUCE)
        hook.obey_until(Type.LIMITS)
    assert one.limits.commit >= LARGE
    pump([one, two], lambda: two.running)
    assert not one.running
    assert manager.stored == 2


def test_reply_to_an_order_of_an_earlier_daemon_is_ignored(
    site: Site, manager: ServiceManager
) -> None:
    daemon = manager.start("--tq", "1")
    one = site.holding(LARGE)
    two = site.wanting(LARGE)
    while (record := one.hear()) is not None and record.type is not Type.STOP:
        one.obey(record)
    kill(daemon)
    manager.start("--tq", "1")
    # STOP and its answer belong to the earlier daemon; a COMMIT arrives between them.
    one.say(Type.COMMIT, number=99, wanted=2 * LARGE)
    assert record is not None
    one.obey(record)
    pump([one, two], lambda: two.running)
    two.say(Type.IDLE)
    pump([one, two], lambda: one.running)
    assert "dropped" not in site.log.read_text()


def test_restarted_daemon_takes_over_clients_whose_hello_or_reply_was_lost(
    site: Site, manager: ServiceManager
) -> None:
    daemon = manager.start()
    daemon.send_signal(signal.SIGSTOP)
    unheard = site.hook()               # connected in the kernel's queue, not accepted yet
    unheard.say(Type.HELLO)
    daemon.send_signal(signal.SIGCONT)
    unheard.obey_until(Type.LIMITS)
    silent = site.hook()
    manager.wait(lambda: len(manager.kept) == 2)
    kill(daemon)
    silent.say(Type.HELLO)              # while no daemon runs
    while has_mail(unheard, 0):
        unheard.hear()
    daemon = manager.start()            # sends INTRODUCE, and is killed before a reply
    assert all(has_mail(hook, PATIENCE) for hook in (unheard, silent))
    kill(daemon)
    manager.start()
    for hook in (unheard, silent):
        hook.obey_until(Type.INTRODUCE)
        hook.obey_until(Type.INTRODUCE)
        hook.obey_until(Type.LIMITS)
        assert hook.allocate(MIB)
    assert "dropped" not in site.log.read_text()


def test_forked_child_does_not_keep_the_client_of_a_killed_parent(
    site: Site, manager: ServiceManager
) -> None:
    daemon = manager.start("--tq", "3600")
    parent = site.client(LARGE, "--fork")
    parent.wait_for("running")
    manager.wait(lambda: len(manager.kept) == 1)
    kill(daemon)
    parent.kill()                       # child and service manager still have the socket
    assert len(manager.kept) == 1
    manager.start()
    manager.wait(lambda: not manager.kept)
    waiter = site.client(LARGE)
    waiter.wait_for("running")


@pytest.mark.parametrize("state", STATES_TO_TRY)
def test_daemon_restart_during_a_hand_over_keeps_connections_and_results(
    site: Site, manager: ServiceManager, state: str
) -> None:
    first = site.folder / "first"
    daemon = manager.start(*SETTINGS, "--trace", str(first))
    programs = [program(site, seed) for seed in range(1, PROGRAMS + 1)]
    await_state(first, state)
    kill(daemon)
    end(manager.start(*SETTINGS))       # ends before all clients have answered INTRODUCE
    manager.start(*SETTINGS)
    finish(programs)
    assert manager.stored == PROGRAMS   # no client connected again
    manager.wait(lambda: not manager.kept)
