# SPDX-License-Identifier: Apache-2.0
"""Frameworks compute the same results as alone while the card is handed over every 200 ms."""

import pytest

from bench.harness import program
from tests.gpu.test_sharing import Record, compare, take_turns


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
    options = ["--tq", "1", "--capacity", "20GiB"]
    take_turns(record, "two models of transformers on 20 GiB", commands, options, 6)
