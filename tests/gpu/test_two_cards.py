# SPDX-License-Identifier: Apache-2.0
"""Programs on two cards at once, with somebody on each who fights for it."""

import os
import subprocess
import sys

import pytest

from bench.harness import ROOT, machine, program, rival, run, sharing
from bench.trace import summary
from tests.gpu.test_sharing import BUDGET, Record, check, competitor, digests
from tests.integration import test_pools_two_cards as pools
from tests.integration.test_own_memory import PRELUDE

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


@pytest.mark.parametrize("body", [pools.COUNTED, pools.NOT_USED_YET, pools.ITS_OWN],
                         ids=["exportable", "of a card not used yet", "the card's own"])
def test_pools_count_for_the_card_that_they_are_of(body: str) -> None:
    if len(cards()) < 2:
        pytest.skip("there is one card only")
    with sharing() as daemon:
        done = subprocess.run(
            [sys.executable, "-c", PRELUDE + body], cwd=ROOT, text=True, capture_output=True,
            env={**os.environ, **daemon.environment}, timeout=120, check=False,
        )
    assert done.returncode == 0, done.stderr
