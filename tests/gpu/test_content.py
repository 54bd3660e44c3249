# SPDX-License-Identifier: Apache-2.0
"""Constant weights and zeroed memory are evicted without a copy."""

from collections import defaultdict

from bench.harness import program, run, sharing
from bench.trace import summary
from tests.gpu.test_sharing import BUDGET, Record, digests

GIB = 1 << 30


def test_unchanged_models_are_evicted_without_a_copy(record: Record) -> None:
    commands = [program("torch_infer", "--seed", str(seed)) for seed in (1, 2)]
    alone = [run([[*command, "--seconds", "0"]])[0] for command in commands]
    with sharing("--tq", "1", "--capacity", "20GiB", *BUDGET) as daemon:
        together = run(commands, daemon.environment)
        trace = daemon.trace()
    copied: dict[int, int] = defaultdict(int)
    left: dict[int, int] = defaultdict(int)
    resident: dict[int, int] = defaultdict(int)
    for entry in trace:
        if entry.get("event") in ("evicted", "loaded", "memory-changed"):
            client, now = entry["client"], entry["memory"]["resident"]
            if entry["event"] == "evicted":
                copied[client] += entry["bytes"]
                left[client] += max(0, resident[client] - now)
            resident[client] = now
    figures = {
        **summary(trace),
        "left_gib": sum(left.values()) / GIB, "copied_out_gib": sum(copied.values()) / GIB,
    }
    record("two models that answer", figures)
    assert digests(together) == digests(alone)
    assert figures["turns"] > 10
    # Each block of weights was copied once; of other evicted memory hardly any was copied.
    assert sum(copied.values()) < 2 * 12 * GIB + sum(left.values()) / 10
