# SPDX-License-Identifier: Apache-2.0
"""Library and daemon of two versions of the protocol, as during an upgrade or after a rollback.

test_promises.py has hooks of both versions on one daemon, and test_takeover.py the restart of the
daemon below a hook of the earlier version.
"""

import socket

from nvshared.hook import packets
from nvshared.hook.protocol import OLDEST, Type
from nvshared.units import MIB
from tests.integration.conftest import Site
from tests.integration.fakedaemon import FakeDaemon, begin
from tests.integration.programs import Program
from tests.integration.test_disk import KEEPS, SIZE, UNCHANGED

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
