# SPDX-License-Identifier: Apache-2.0
"""Programs with a permanently failed context, with the real driver.

The programs are those of tests/integration/test_broken.py.
"""

import json

from bench.harness import sharing
from tests.gpu.running import started
from tests.integration.test_broken import AWAY, BROKEN, FAILED, ILLEGAL_ADDRESS


def test_context_failure_while_swapped_is_returned_to_the_program() -> None:
    larger = BROKEN.replace("allocate(64", "allocate(256")
    with (
        sharing("--tq", "1", "--capacity", "1GiB") as daemon,
        started(larger, **daemon.environment) as program,
        started(AWAY.replace("256", "900"), **daemon.environment) as other,
    ):
        first = [entry["memory"] for entry in daemon.trace()
                 if entry.get("client") == 1 and "memory" in entry]
        assert first[-1]["resident"] <= first[-1]["allocated"] - (128 << 20)
        for line, one in (("right", other), ([0, *[ILLEGAL_ADDRESS] * 5], program)):
            said, _ = one.communicate("\n", timeout=60)
            assert json.loads(said) == line
            assert one.returncode == 0


def test_memory_of_a_failed_context_is_freed_for_other_clients() -> None:
    with (
        sharing("--tq", "1", "--capacity", "1GiB") as daemon,
        started(FAILED, **daemon.environment) as program,
        started(AWAY.replace("256", "900"), **daemon.environment) as other,
    ):
        said, _ = other.communicate("\n", timeout=60)
        assert (json.loads(said), other.returncode) == ("right", 0)
        said, _ = program.communicate("\n", timeout=60)
        first, then = (json.loads(line) for line in said.splitlines())
        assert (first, then) == ([ILLEGAL_ADDRESS] * 5, [ILLEGAL_ADDRESS] * 2)
        assert program.returncode == 0
