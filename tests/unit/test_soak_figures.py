# SPDX-License-Identifier: Apache-2.0
"""What a soak takes for the growth of a process."""

import json
import math
import mmap
import os
from pathlib import Path

from bench.soak.figures import FLOORS, Trace, growth, of_process

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


def test_growth_of_a_leak_below_swings_is_found() -> None:
    taken = [(at, 200 + 0.3 * at + 5 * math.sin(at)) for at in range(600)]
    assert growth(taken, 4).grows


def test_growth_of_a_figure_that_swings_within_bounds_is_not_found() -> None:
    def figure(at: int) -> float:
        return (200 + 30 * math.sin(2 * math.pi * (at + 27) / 70)
                + 8 * math.sin(2 * math.pi * at / 11))

    found = growth([(at, figure(at)) for at in range(150)], 4)
    assert found.added > 2 * found.spread
    assert not found.grows


def test_trace_memory_of_another_card_is_counted_after_its_return(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    memory = {"host": 0, "disk": 0}
    path.write_text("".join(
        json.dumps({"client": 1, "memory": {**memory, "borrowed": size}}) + "\n"
        for size in (0, 7, 3)))
    with path.open() as file:
        trace = Trace(file)
        trace.read()
    assert trace.most_borrowed == 7
