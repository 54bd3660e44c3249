# SPDX-License-Identifier: Apache-2.0
"""What frameworks have cached is given back before it would cross the bus, if that is wanted."""

import pytest

from bench.harness import program, rival, run, sharing
from bench.trace import summary
from tests.gpu.test_sharing import BUDGET, Record, check, competitor, digests

# Of the program's 41 GiB it uses 10. With those 10 the two do not fit either, by a little.
RIVAL_GIB, CAPACITY = 48, "56GiB"


@pytest.mark.parametrize("framework", ["torch", "cupy"])
def test_caches_do_not_cross_the_bus(framework: str, record: Record) -> None:
    command = program("caches", framework)
    alone = run([command])
    figures, outputs = {}, {}
    for name, settings in (("moved", {}), ("trimmed", {"NVSHARE_TRIM_CACHES": "1"})):
        with sharing("--tq", "200ms", "--capacity", CAPACITY, *BUDGET) as daemon:
            with rival(competitor(RIVAL_GIB, "--until-told"), daemon.environment) as other:
                together = run([command], {**daemon.environment, **settings})
            figures[name] = summary(daemon.trace())
        assert digests(together) == digests(alone)
        assert together[0].errors.count("NVSHARE_TRIM_CACHES") == 0
        check(other[0], RIVAL_GIB)
        outputs[name] = together[0]
        record(f"caches of {framework}, {name}", {
            **figures[name], "held_gib": outputs[name].output["held_gib"],
            "together_s": [outputs[name].seconds, other[0].seconds],
            "alone_s": alone[0].seconds,
        })
    assert figures["moved"]["turns"] > 10, "they did not take turns"
    assert outputs["moved"].output["held_gib"] > 39
    assert outputs["trimmed"].output["held_gib"] < 20
    assert figures["trimmed"]["moved_in_gib"] < figures["moved"]["moved_in_gib"] / 2
