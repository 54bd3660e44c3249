# SPDX-License-Identifier: Apache-2.0
"""Engines that free memory by torch_memory_saver end turns, and compute the same as alone."""

from bench.harness import ROOT, program, run, sharing
from bench.trace import summary
from nvshared import library
from tests.gpu.test_sharing import BUDGET, Record, digests

ADAPTERS = {"PYTHONPATH": f"{library.program() / 'adapters'}:{ROOT}"}


def test_inference_engines_that_free_memory_in_pauses_compute_the_same_as_alone(
    record: Record
) -> None:
    commands = [program("torch_engine", "--gib", "12", "--seed", str(seed)) for seed in (1, 2)]
    alone = [run([command])[0] for command in commands]
    # With this long quantum, turns end only by a release or by idleness.
    with sharing("--tq", "1000", "--capacity", "20GiB", *BUDGET) as daemon:
        together = run(
            [[*command, "--saver"] for command in commands], {**daemon.environment, **ADAPTERS})
        figures = summary(daemon.trace())
    record("engines that pause", {
        **figures, "together_s": [one.seconds for one in together],
        "alone_s": [one.seconds for one in alone],
    })
    assert digests(together) == digests(alone)
    assert figures["turns"] > 8, "they did not take turns"
