# SPDX-License-Identifier: Apache-2.0
"""A program that does nothing is reported as idle to each daemon that asks for that."""

from nvshared.hook.protocol import Flag, OrderRecord, Type
from tests.integration.conftest import Site
from tests.integration.test_bus_sharing import Daemon
from tests.integration.test_own_memory import Program

IDLE = Flag.PACE | Flag.REPORT_IDLE


def test_client_reports_idle_again_to_a_restarted_daemon(site: Site) -> None:
    daemon = Daemon(site)
    program = Program(site, "os.read(0, 1)")
    daemon.accept(IDLE)
    daemon.until(Type.IDLE)
    daemon.send(OrderRecord(Type.INTRODUCE, number=7))
    daemon.until(Type.HELLO)
    daemon.send(OrderRecord(Type.RUN, flags=IDLE))
    daemon.until(Type.IDLE)
    program.go_on()
    daemon.rest()
    program.ends_well()
