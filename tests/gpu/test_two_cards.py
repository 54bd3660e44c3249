# SPDX-License-Identifier: Apache-2.0
"""Programs on two cards at once, with somebody on each who fights for it."""

import os

import pytest

from bench.harness import machine, program, rival, run, sharing
from bench.trace import summary
from tests.gpu.test_sharing import BUDGET, Record, check, competitor, digests

EACH = 5                                # GiB, of the rivals


def cards() -> list[str]:
    """What CUDA_VISIBLE_DEVICES may name."""
    if named := os.environ.get("CUDA_VISIBLE_DEVICES"):
        return named.split(",")
    return [str(index) for index, _ in enumerate(machine()["gpu"].splitlines())]


@pytest.mark.parametrize("name", ["cupy_peers", "nccl_reduce"])
def test_both_cards_are_shared(name: str, record: Record) -> None:
    if len(cards()) < 2:
        pytest.skip("there is one card only")
    alone = run([program(name)])
    with sharing("--tq", "200ms", "--capacity", "8GiB", *BUDGET) as daemon:
        one, two = (
            rival(competitor(EACH, "--until-told"),
                  {**daemon.environment, "CUDA_VISIBLE_DEVICES": card})
            for card in cards()[:2]
        )
        with one as first, two as second:
            together = run([program(name)], daemon.environment, limit=200)
        figures = summary(daemon.trace())
    record(f"{name} on two cards", {
        **figures, "together_s": [result.seconds for result in (*together, *first, *second)],
    })
    assert digests(together) == digests(alone)
    for other in (*first, *second):
        check(other, EACH)
    assert figures["turns"] > 10
