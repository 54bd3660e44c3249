# SPDX-License-Identifier: Apache-2.0
"""A program has used up its descriptors, but for a number that the library must not take, while its
daemon is gone."""

from pathlib import Path

import pytest

from tests.integration.conftest import Site, kill, wait_until
from tests.integration.programs import Program

ATTEMPTS = 600                          # more than the library has handles (driver/own_file.c)
BODY = """
import resource
allocate(8 * MIB)
asked, limit = os.dup(0), resource.getrlimit(resource.RLIMIT_NOFILE)
os.close(0)
resource.setrlimit(resource.RLIMIT_NOFILE, (3, limit[1]))
say("used up")
os.read(asked, 100)
resource.setrlimit(resource.RLIMIT_NOFILE, limit)
fill(allocate(8 * MIB), 1, 8 * MIB)
call("cuCtxSynchronize")
say("shared")
"""


def attempts(program: Program) -> int:
    """How often the service thread has slept, as between two attempts to connect."""
    for task in Path(f"/proc/{program.popen.pid}/task").iterdir():
        if (task / "comm").read_text() == "nvshare\n":
            line, = (line for line in (task / "status").read_text().splitlines()
                     if line.startswith("voluntary_ctxt_switches:"))
            return int(line.split()[1])
    raise AssertionError("it has no service thread")


@pytest.mark.long
def test_library_after_a_shortage_of_descriptors_reconnects(
    site: Site
) -> None:
    daemon = site.start()
    program = Program(site, BODY)
    assert program.hears() == "used up"
    kill(daemon)
    before = attempts(program)
    wait_until(lambda: attempts(program) >= before + ATTEMPTS)      # a minute
    site.start()
    program.tell()
    assert program.hears() == "shared"
    program.kill()
