# SPDX-License-Identifier: Apache-2.0
"""Caches of frameworks are trimmed before an eviction would copy them, with NVSHARE_TRIM_CACHES."""

from collections.abc import Sequence

import pytest

from bench.harness import program, rival, run, sharing
from bench.trace import Line, summary
from nvshared import library
from tests.gpu.test_sharing import BUDGET, Record, check, competitor, digests

# The framework caches 20 GiB, of which the program uses 10: 10 GiB do not fit beside 48 GiB.
RIVAL_GIB, CAPACITY = 48, "56GiB"
STEPS = {"torch": "160", "cupy": "640"}         # numbers of steps of about equal duration


def after_its_peak(trace: Sequence[Line]) -> Sequence[Line]:
    """The trace from the program's largest allocation on: afterwards the framework has a cache.

    The rival is the process that allocates the most.
    """
    held = [(line["pid"], line["memory"]["allocated"]) if "memory" in line else (0, 0)
            for line in trace]
    rival_pid, _ = max(held, key=lambda one: one[1])
    own = [0 if pid == rival_pid else size for pid, size in held]
    return trace[own.index(max(own)):]


@pytest.mark.parametrize("framework", ["torch", "cupy"])
def test_trimmed_framework_caches_halve_the_bytes_loaded_per_turn(
    framework: str, record: Record
) -> None:
    command = program("caches", framework, "--steps", STEPS[framework])
    alone = run([command])
    figures, outputs, late = {}, {}, {}
    wanted = {"NVSHARE_TRIM_CACHES": "1", "PYTHONPATH": str(library.program())}
    for name, settings in (("moved", {}), ("trimmed", wanted)):
        # Without loans of a neighbour GPU's memory, each eviction crosses the bus.
        with sharing("--tq", "200ms", "--capacity", CAPACITY, "--neighbour", "off",
                     *BUDGET) as daemon:
            with rival(competitor(RIVAL_GIB, "--until-told"), daemon.environment) as other:
                together = run([command], {**daemon.environment, **settings})
            figures[name] = summary(daemon.trace())
            late[name] = summary(after_its_peak(daemon.trace()))
        assert digests(together) == digests(alone)
        assert together[0].errors.count("nvshare_caches") == 0
        check(other[0], RIVAL_GIB)
        outputs[name] = together[0]
        record(f"caches of {framework}, {name}", {
            **figures[name], "later": late[name], "held_gib": outputs[name].output["held_gib"],
            "together_s": [outputs[name].seconds, other[0].seconds],
            "alone_s": alone[0].seconds,
        })
    assert figures["moved"]["turns"] > 10, "they did not take turns"
    assert outputs["moved"].output["held_gib"] > 19
    assert outputs["trimmed"].output["held_gib"] < 12
    each = {name: one["moved_in_gib"] / one["turns"] for name, one in late.items()}
    assert each["trimmed"] < each["moved"] / 2, each
