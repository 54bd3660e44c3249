# SPDX-License-Identifier: Apache-2.0
"""What a soak takes for the growth of a process."""

import mmap
import os

from bench.soak.figures import FLOORS, of_process

SIZE = 64_000_000                       # bytes


def test_memory_that_the_daemon_orders_does_not_count_as_the_programs_own() -> None:
    before = of_process("this", os.getpid())
    with mmap.mmap(-1, SIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        for page in range(0, SIZE, mmap.PAGESIZE):
            memory[page] = 1
        counted = of_process("this", os.getpid())
        memory.madvise(mmap.MADV_DONTFORK)
        memory.madvise(mmap.MADV_DONTDUMP)
        ordered = of_process("this", os.getpid())
    for what in ("own MB", "resident MB"):
        assert counted["this", what] - ordered["this", what] > 60
        assert abs(ordered["this", what] - before["this", what]) < 2 * FLOORS[what]
