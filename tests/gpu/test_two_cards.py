# SPDX-License-Identifier: Apache-2.0
"""Programs on two cards at once, with somebody on each who fights for it."""

import pytest

from bench.harness import machine, program, run, sharing
from bench.trace import summary
from tests.gpu.test_sharing import BUDGET, Record, competitor, digests


@pytest.mark.parametrize("name", ["cupy_peers", "nccl_reduce"])
def test_both_cards_are_shared(name: str, record: Record) -> None:
    if len(machine()["gpu"].splitlines()) < 2:
        pytest.skip("there is one card only")
    commands = [
        program(name),
        ["env", "CUDA_VISIBLE_DEVICES=0", *competitor(5, 1500)],
        ["env", "CUDA_VISIBLE_DEVICES=1", *competitor(5, 1500)],
    ]
    alone = [run([command])[0] for command in commands]
    with sharing("--tq", "200ms", "--capacity", "8GiB", *BUDGET) as daemon:
        together = run(commands, daemon.environment, limit=200)
        figures = summary(daemon.trace())
    record(f"{name} on two cards", {
        **figures, "together_s": [result.seconds for result in together],
    })
    assert digests(together) == digests(alone)
    assert figures["turns"] > 10
