# SPDX-License-Identifier: Apache-2.0
"""Terms of tenants with a real daemon: a changed file is noticed, a wrong one changes nothing."""

import os
import pwd
from collections.abc import Callable, Iterator

import pytest

from conftest import no_bus
from nvshared.control import Daemon as Control
from nvshared.units import GIB, MIB
from tests.bus.service import private_bus
from tests.integration.conftest import Site
from tests.integration.test_kills import finish, program
from tests.integration.test_terms import OUT_OF_MEMORY, Allocator

pytestmark = pytest.mark.skipif(bool(no_bus()), reason=no_bus())

Eventually = Callable[[Callable[[], bool]], None]
OURS = f"user:{pwd.getpwuid(os.getuid()).pw_name}"


@pytest.fixture
def bus() -> Iterator[str]:
    """The address of a bus for the daemon and its administrator."""
    with private_bus() as made:
        yield made.address


def test_broken_rule_file_keeps_the_rules_of_running_programs(
    site: Site, bus: str, eventually: Eventually
) -> None:
    file = site.folder / "nvshared.conf"
    file.write_text("[tenant user:*]\nmemory-limit = 3GiB\n")
    site.start("--bus", bus, "--trace", str(site.folder / "trace"))
    one = program(site, 1, None)
    with Control(bus) as control:

        def memory() -> tuple[int, str]:
            held = control.tenant(OURS).holding("memory-limit")
            return (0, "") if held is None else (held.value, held.rule)

        eventually(lambda: bool(control.snapshot().clients))
        assert memory() == (3 * GIB, "user:*")
        file.write_text("[tenant user:*]\nmemory-limit = 2GiB\nwieght = 3\n")
        eventually(lambda: "settings stay as they are" in site.log.read_text())
        assert f"{file}:3: [tenant user:*] has no setting 'wieght'; did you mean weight?" in (
            site.log.read_text())
        assert memory() == (3 * GIB, "user:*")
        file.write_text(
            f"[tenant user:*]\nmemory-limit = 2GiB\n[tenant {OURS}]\nmemory-limit = 1GiB\n")
        eventually(lambda: memory() == (GIB, OURS))
        file.write_text("")
        eventually(lambda: memory() == (0, ""))
        finish([one])
    heard = [line for line in site.trace() if line.get("event") in ("tenant-changed", "joined")]
    # The limit comes before the program does.
    assert heard[0]["event"] == "tenant-changed"
    assert [line["terms"]["memory_limit"] for line in heard if "terms" in line] == [
        3 * GIB, GIB, 0]
    assert OURS in next(line for line in heard if line["event"] == "joined")["tenants"]


def test_terms_of_a_tenant_outlive_programs_and_the_daemon(
    site: Site, bus: str, eventually: Eventually
) -> None:
    options = ("--bus", bus, "--state-dir", str(site.folder / "state"))
    daemon = site.start(*options)
    with Control(bus) as control:
        control.set_tenant_terms(OURS, {"memory-limit": 512 * MIB, "compute-limit": 90})
        control.set_tenant_terms("job:7", {"weight": 3})
        finish([program(site, 1)])
        control.set_tenant_terms("job:7", {"weight": 0})
    daemon.kill()
    daemon.wait()
    site.start(*options, "--trace", str(site.folder / "trace"))
    one = program(site, 1, None)
    with Control(bus) as control:
        eventually(lambda: any(tenant.programs for tenant in control.tenants()))
        (ours,) = [tenant for tenant in control.tenants() if tenant.name == OURS]
        assert (ours.value("memory-limit"), ours.value("compute-limit")) == (512 * MIB, 90)
        assert "job:7" not in [tenant.name for tenant in control.tenants()]
    finish([one])
    events = [line for line in site.trace() if "event" in line]
    kinds = [line["event"] for line in events]
    first = events[kinds.index("tenant-changed")]
    assert first["tenant"] == OURS
    assert kinds.index("tenant-changed") < kinds.index("joined")


def test_name_of_a_program_survives_a_restart_of_the_daemon(
    site: Site, bus: str, eventually: Eventually
) -> None:
    daemon = site.start("--bus", bus)
    names = {"my model", "x" * 87, "nvshare-workload"}
    programs = [
        program(site, 1, None, NVSHARE_NAME="my model"), program(site, 2, None),
        # No letter is cut in two.
        program(site, 3, None, NVSHARE_NAME="x" * 87 + "\u00e4"),
    ]

    def shown() -> set[str]:
        with Control(bus) as control:
            return {client.name for client in control.snapshot().clients}

    eventually(lambda: shown() == names)
    daemon.kill()
    daemon.wait()
    site.start("--bus", bus)
    eventually(lambda: shown() == names)
    assert f"my model[{programs[0].pid}] came" in site.log.read_text()
    finish(programs)


def test_programs_of_a_tenant_together_cannot_allocate_beyond_its_limit(
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
