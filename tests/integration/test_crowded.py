# SPDX-License-Identifier: Apache-2.0
"""Contexts cannot be evicted: thirty programs have contexts that nearly fill the card."""

from subprocess import Popen

from tests.integration.conftest import Site, wait_until
from tests.integration.fakehook import PATIENCE

PROGRAMS = 30                           # with a context of 8 MiB each, on 256 MiB
OUT_OF_MEMORY = 3                       # exit status of nvshare-workload


def start(site: Site, size: str) -> Popen[str]:
    # Kernels that wait: thirty computing programs would starve the tests beside them.
    return site.workload("--memory", size, "--chunk", "4MiB", "--rounds", "1",
                         "--kernel-us", "2000", "--until-told", "--json")


def finish(program: Popen[str]) -> int:
    """Exit status of the program, which its output confirms."""
    said, _ = program.communicate("", timeout=PATIENCE)
    assert ('"right": true' in said) == (program.returncode == 0)
    assert ("out of memory" in said) == (program.returncode == OUT_OF_MEMORY)
    return program.returncode


def test_program_waits_with_a_logged_reason_while_contexts_of_others_fill_the_card(
    site_with_reserves: Site
) -> None:
    site = site_with_reserves
    site.start("--tq", "100ms", "--stuck-after", "1s")
    first = start(site, "160MiB")
    assert first.stdout is not None
    while '"allocated"' not in first.stdout.readline():
        assert first.poll() is None
    others = [start(site, "1MiB") for _ in range(PROGRAMS - 1)]
    reason = f"nvshare-workload[{first.pid}] waits: it needs 162 MiB, and no more than"
    wait_until(lambda: reason in site.log.read_text())
    codes = {finish(other) for other in others}
    assert 0 in codes
    assert codes <= {0, OUT_OF_MEMORY}
    assert finish(first) == 0
