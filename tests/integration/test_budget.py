# SPDX-License-Identifier: Apache-2.0
"""How much of the host's memory there is for programs: on four cards, and after a restart."""

import subprocess

from nvshared.units import MIB
from tests.integration.conftest import CARD, Site, kill, wait_until
from tests.integration.test_kills import await_state, finish
from tests.integration.test_terms import Allocator

WHOLE = 1280 * MIB
FIRST, SECOND = 800 * MIB, 900 * MIB
assert FIRST + SECOND > CARD + WHOLE // 4


def test_allocation_on_a_card_is_granted_from_the_host_budget_of_idle_cards(
    large_site: Site
) -> None:
    large_site.start("--swap-budget", str(WHOLE))
    first, second = Allocator(large_site), Allocator(large_site)
    assert first.allocate(FIRST)[0] == 0
    # no allocation; the second value is the free memory
    wait_until(lambda: second.allocate(0)[1] >= SECOND)
    assert second.allocate(SECOND)[0] == 0


def small(site: Site, free: int) -> None:
    """Set the free bytes of the host of daemons started from now on."""
    meminfo = site.folder / "meminfo"
    meminfo.write_text(
        f"MemTotal: {1 << 20} kB\nMemAvailable: {free >> 10} kB\nAnonPages: {1 << 19} kB\n")
    site.module = "tests.integration.changed"
    site.environment["NVSHARE_TEST_MEMINFO"] = str(meminfo)


def filler(site: Site, seed: int) -> subprocess.Popen[str]:
    """A program that uses slightly more than half of the capacity until finish()."""
    return site.workload(
        "--memory", "140MiB", "--chunk", "8MiB", "--kernel-us", "20000", "--until-told",
        "--no-check", "--seed", str(seed))


def test_host_budget_of_a_restarted_daemon_includes_the_host_memory_that_its_clients_hold(
    site: Site
) -> None:
    trace = site.folder / "trace"
    small(site, 250 * MIB)
    options = ("--tq", "100ms", "--capacity", "256MiB")
    daemon = site.start(*options, "--trace", str(trace))
    programs = [filler(site, seed) for seed in (1, 2)]
    await_state(trace, "evicting")
    kill(daemon)
    small(site, 100 * MIB)              # programs that fill the memory left to this daemon
    site.start(*options)
    one = Allocator(site)
    wait_until(lambda: one.allocate(12 * MIB)[0] == 0)      # when both programs have joined
    finish(programs)
