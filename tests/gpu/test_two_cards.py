# SPDX-License-Identifier: Apache-2.0
"""Programs on two cards at once, with a rival for each card."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.harness import program, rival, run, sharing
from bench.trace import Line, summary
from tests.gpu.running import python, said
from tests.gpu.test_sharing import BUDGET, Record, check, competitor, digests
from tests.integration import test_pools_two_cards as pools
from tests.integration.programs import PRELUDE
from tests.integration.test_peers import compiled_apart

pytestmark = pytest.mark.usefixtures("two_cards")
EACH = 5                                # GiB of each rival


@pytest.mark.parametrize("name", ["cupy_peers", "nccl_reduce"])
def test_program_on_two_shared_gpus_computes_the_same_results_as_alone(
    name: str, two_cards: list[str], record: Record
) -> None:
    alone = run([program(name)])
    with sharing("--tq", "200ms", "--capacity", "8GiB", *BUDGET) as daemon:
        one, two = (
            rival(competitor(EACH, "--until-told"),
                  {**daemon.environment, "CUDA_VISIBLE_DEVICES": card})
            for card in two_cards
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


def test_two_trainings_take_turns_on_both_cards(record: Record) -> None:
    gangs = [
        ["env", f"NVSHARE_GANG={name}:2",
         *program("nccl_reduce", "--gib", "1.25", "--steps", "1000", "--port", port)]
        for name, port in (("one", "29518"), ("other", "29519"))
    ]
    alone = run([gangs[0]])
    # A program has 3 * 1.25 GiB and NCCL's buffers: one fits beside two contexts, two do not.
    with sharing("--tq", "1s", "--capacity", "8GiB", *BUDGET) as daemon:
        together = run(gangs, daemon.environment, limit=400)
        trace = daemon.trace()
    times = together_starts(trace)
    record("two trainings of two ranks on two cards", {
        **summary(trace), "alone_s": alone[0].seconds,
        "together_s": [result.seconds for result in together],
        "apart_ms": [round(one / 1000, 1) for one in times],
    })
    assert digests(together) == 2 * digests(alone)
    assert len(times) > 4


def together_starts(trace: Sequence[Line]) -> list[int]:
    """Microseconds between the begin of each turn on the one card and on the other."""
    turns = [line for line in trace if line.get("report") == "turn-started"]
    # The daemon numbers all cards of the machine, also cards that the programs do not see.
    starts = [[int(line["at"]) for line in turns if line["gpu"] == card]
              for card in sorted({line["gpu"] for line in turns})]
    assert len(starts) == 2
    return [abs(one - other) for one, other in zip(*starts, strict=False)]


@pytest.mark.parametrize("body", [pools.COUNTED, pools.NOT_USED_YET, pools.ITS_OWN],
                         ids=["exportable", "of a card not used yet", "the card's own"])
def test_pool_memory_counts_on_the_card_of_its_pool(body: str) -> None:
    # Without a size, the capacity changes with the memory of programs outside this daemon.
    with sharing("--capacity", "8GiB") as daemon:
        said(python(PRELUDE + body), daemon.environment)


def test_copies_of_all_shapes_between_real_cards_without_peer_access_copy_the_right_bytes(
    tmp_path: Path
) -> None:
    program = compiled_apart(tmp_path)
    with sharing() as daemon:
        text = said([program], daemon.environment)
    assert text == said([program])
    assert [line for line in text.splitlines() if not line.endswith(" 0 right")] == [
        "wrong size 1", "wrong index 1", "wrong number 1"]


@pytest.mark.parametrize("card", ["0", "1"], ids=["another card's", "its own"])
def test_process_copies_memory_of_another_process_across_cards(tmp_path: Path, card: str) -> None:
    """The memory is on card 1; the importing process has a context on `card`."""
    program = compiled_apart(tmp_path)
    with sharing() as daemon:
        owner, importer = (
            subprocess.Popen([program, *what], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                             env={**os.environ, **daemon.environment})
            for what in (("owner", "1"), ("importer", card))
        )
        try:
            assert owner.stdout is not None
            said, _ = importer.communicate(owner.stdout.read(64), timeout=60)
            owner.communicate(timeout=60)
        finally:
            owner.kill()
            importer.kill()
    assert said.decode().splitlines() == ["from right", "to the other right"]
    assert (importer.returncode, owner.returncode) == (0, 0)
