# SPDX-License-Identifier: Apache-2.0
"""Programs that end contexts while other contexts have work get the driver's results.

The programs come from tests/integration; here the driver is the real one. A program fails by
itself if a call has a wrong result.
"""

import pytest

from bench.harness import sharing
from tests.gpu.running import python, said, started
from tests.integration import test_contexts as contexts
from tests.integration import test_every_context as every
from tests.integration import test_green_contexts as green
from tests.integration.test_broken import AWAY

PROGRAMS = {
    "retained meanwhile": contexts.RETAINED,
    "let go of in vain": contexts.IN_VAIN,
    "memory from a pool": contexts.FROM_A_POOL,
    "default streams": contexts.DEFAULT_STREAMS,
    **green.PROGRAMS,
}
HANDED_OVER = {
    **{how: body for how, body in every.PROGRAMS.items() if not how.startswith("for ")},
    **green.HANDED_OVER,
}
UNTIL_OTHERS_WANT = 10                  # seconds within which other programs create contexts


@pytest.mark.parametrize("name", PROGRAMS)
def test_context_destruction_has_the_same_results_as_without_the_library(name: str) -> None:
    program = python(PROGRAMS[name])
    with sharing() as daemon:
        assert said(program, daemon.environment) == said(program)


@pytest.mark.parametrize("how", HANDED_OVER)
def test_eviction_waits_for_work_in_every_context(how: str) -> None:
    """In each context, work in flight fills memory about when the other client begins to wait."""
    body = HANDED_OVER[how].replace("Timer(1,", f"Timer({UNTIL_OTHERS_WANT},")
    with (
        sharing("--tq", "1", "--capacity", "1GiB") as daemon,
        started(body, **daemon.environment) as program,
        started(AWAY.replace("256", "900"), **daemon.environment) as other,
    ):
        for one in (other, program):
            one.communicate("\n", timeout=60)
            assert one.returncode == 0
