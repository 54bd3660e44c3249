# SPDX-License-Identifier: Apache-2.0
"""Library and daemon of two versions of the protocol, as during an upgrade or after a rollback.

test_takeover.py has the restart of the daemon below a hook of the earlier version.
"""

import socket

import pytest

from nvshared.hook import packets
from nvshared.hook.protocol import OLDEST, VERSION, Type
from nvshared.units import MIB
from tests.integration.conftest import Site
from tests.integration.fakedaemon import FakeDaemon, begin
from tests.integration.fakehook import Hook, pump
from tests.integration.programs import Program
from tests.integration.test_disk import KEEPS, SIZE, UNCHANGED

LARGE = 700 * MIB
ROOM = 512 * MIB


class OldDaemon(FakeDaemon):
    """A daemon that speaks version 2 alone: it ends connections with packets of another size."""

    version = OLDEST
    ended = 0

    def accept_one(self) -> socket.socket:
        while True:
            connection = super().accept_one()
            if len(connection.recv(4096, socket.MSG_PEEK)) == packets.SIZE:
                return connection
            connection.close()
            self.ended += 1


@pytest.mark.parametrize("versions", [(OLDEST, VERSION), (VERSION, OLDEST)])
def test_hooks_of_two_versions_take_turns_and_get_their_answers(
        site: Site, versions: tuple[int, int]) -> None:
    site.start("--tq", "1")
    hooks: list[Hook] = []
    for version in versions:
        site.version = version
        hooks.append(site.holding(LARGE) if not hooks else site.wanting(LARGE))
    one, two = hooks
    pump(hooks, lambda: two.running)
    two.say(Type.IDLE)
    pump(hooks, lambda: one.running)
    for hook in hooks:
        assert not hook.allocate(1 << 40)
        assert hook.allocate(MIB)


def test_library_speaks_version_2_to_a_daemon_that_ends_connections_of_another(
        site: Site) -> None:
    daemon = OldDaemon(site, room=ROOM, host_slab=64 * MIB)
    program = Program(site, KEEPS + UNCHANGED)
    daemon.accept()
    daemon.until_allocated(SIZE)
    assert program.hears() == "away"
    assert daemon.ended == 1
    daemon.stop()
    assert daemon.move(Type.EVICT).memory.resident == 0
    daemon.let_return(program)


def test_running_program_goes_on_when_an_older_daemon_replaces_its_daemon(site: Site) -> None:
    daemon, program = begin(
        site, KEEPS + UNCHANGED, allocated=SIZE, room=ROOM, host_slab=64 * MIB)
    daemon.stop()
    assert daemon.move(Type.EVICT).memory.resident == 0
    old = OldDaemon(site, room=ROOM, host_slab=64 * MIB)
    daemon.connection.close()
    old.connect()
    assert old.memory.allocated >= SIZE
    old.send(old.limits)
    old.let_return(program)
