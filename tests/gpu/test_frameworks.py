# SPDX-License-Identifier: Apache-2.0
"""Frameworks compute the same results as alone while the card is handed over every 200 ms."""

import pytest

from bench.harness import program, run, sharing
from bench.trace import summary
from tests.gpu.test_sharing import BUDGET, Record, compare, digests


@pytest.mark.parametrize("kind", ["amp", "triton", "numba", "libraries"])
def test_framework_computes_the_same_results_beside_another_client(
    kind: str, record: Record
) -> None:
    compare(record, f"framework {kind}", program("framework", kind), 14)


def test_two_models_of_transformers_answer_with_the_tokens_of_their_solo_runs(
    record: Record
) -> None:
    pytest.importorskip("transformers")
    commands = [program("transformers_generate", "--gib", "12", "--seed", str(seed))
                for seed in (1, 2)]
    alone = [run([command])[0] for command in commands]
    with sharing("--tq", "1", "--capacity", "20GiB", *BUDGET) as daemon:
        together = run(commands, daemon.environment)
        figures = summary(daemon.trace())
    record("two models of transformers on 20 GiB", figures | {
        name: [one.output.get("median_answer_s") for one in found]
        for name, found in (("alone_s", alone), ("together_s", together))})
    assert digests(together) == digests(alone)
    assert figures["turns"] > 6, "they did not take turns"
