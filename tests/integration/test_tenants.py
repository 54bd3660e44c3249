# SPDX-License-Identifier: Apache-2.0
"""Terms of tenants with a real daemon: a changed file is noticed, a wrong one changes nothing."""

import os
import pwd

import pytest

from conftest import no_bus
from nvshared.control import Daemon as Control
from nvshared.units import MIB
from tests.integration.conftest import Site, kill, wait_until
from tests.integration.test_kills import finish, program
from tests.integration.test_terms import OUT_OF_MEMORY, Allocator

pytestmark = pytest.mark.skipif(bool(no_bus()), reason=no_bus())

OURS = f"user:{pwd.getpwuid(os.getuid()).pw_name}"


def test_name_of_a_program_survives_a_restart_of_the_daemon(site: Site, bus: str) -> None:
    daemon = site.start("--bus", bus)
    names = {"my model", "x" * 87, "nvshare-workload"}
    programs = [
        program(site, 1, None, NVSHARE_NAME="my model"), program(site, 2, None),
        # A name is not cut within a character.
        program(site, 3, None, NVSHARE_NAME="x" * 87 + "\u00e4"),
    ]

    def shown() -> set[str]:
        with Control(bus) as control:
            return {client.name for client in control.snapshot().clients}

    wait_until(lambda: shown() == names)
    kill(daemon)
    site.start("--bus", bus)
    wait_until(lambda: shown() == names)
    assert f"my model[{programs[0].pid}] came" in site.log.read_text()
    finish(programs)


def test_tenant_memory_limit_bounds_allocations_of_all_its_programs_together(
    site: Site, bus: str
) -> None:
    site.start("--bus", bus)
    with Control(bus) as control:
        control.set_tenant_terms(OURS, {"memory-limit": 256 * MIB})
        one, two = Allocator(site), Allocator(site)
        assert one.allocate(128 * MIB)[0] == 0
        assert two.allocate(160 * MIB)[0] == OUT_OF_MEMORY
        assert two.allocate(64 * MIB)[0] == 0
        assert one.allocate(96 * MIB)[0] == OUT_OF_MEMORY
        control.set_tenant_terms(OURS, {"memory-limit": 0})
        while two.allocate(160 * MIB)[0] == OUT_OF_MEMORY:
            continue
    one.end()
    two.end()
