# SPDX-License-Identifier: Apache-2.0
"""The real driver answers calls of a forked child as in a child of a program without the library.

The program, which forks at any instruction, is tests/integration/forks.c.
"""

import os
from pathlib import Path

from bench.harness import sharing
from tests.gpu.running import said
from tests.integration.test_forks import results
from tests.integration.test_life import LINKED, SOURCE, compiled

SECONDS = os.environ.get("NVSHARE_FORK_SECONDS", "30")


def test_forked_children_get_the_drivers_errors_and_inherit_no_descriptors(tmp_path: Path) -> None:
    program = compiled(tmp_path, *LINKED, source=SOURCE.with_name("forks.c"))
    limit_s = 120 + int(SECONDS)
    alone = said([program, SECONDS], limit_s=limit_s)
    with sharing("--tq", "20ms") as daemon:
        under = said([program, SECONDS], daemon.environment, limit_s)
    assert results(under) == results(alone)
    assert under.count("inherited") == alone.count("inherited") == 0
