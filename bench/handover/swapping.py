# SPDX-License-Identifier: Apache-2.0
"""Hand-overs of programs that do not fit together: `two_large`, two of 57 % of the card, and
`three_ahead`, three of 32 % in three quarters of it, where the next program can be loaded early.
"""

from bench.handover.card import Card
from bench.handover.company import described, run, wrong
from bench.handover.goal import Goal, Result
from bench.handover.passage import figures, handovers, median, most
from bench.handover.program import Task
from bench.trace import summary

CHUNK = 256 << 20
LARGE = 0.57                            # part of the card: 80 of 140 GiB
MIDDLE = 0.32                           # part of the card: 45 of 140 GiB
AHEAD = "75%"                           # part of the card for three MIDDLE programs
QUANTUM = 1.0                           # seconds


def two_large(card: Card, examined: bool) -> Result:
    """Measures two programs. `examined`: the library searches for blocks that need no copy."""
    programs = tasks(card, 2, LARGE)
    trace, outcomes = run(card, programs, "100%", QUANTUM, examined=examined)
    found = figures(handovers(trace))
    return Result(
        "two-large",
        "blocks examined" if examined else "blocks not examined",
        (
            Goal("out, while both move", median(found, "out_gbps_both"), "GB/s", least=45),
            Goal("in, while both move", median(found, "in_gbps_both"), "GB/s", least=45),
            Goal("STOP to RUN, less the drain", median(found, "stop_to_run_less_drain_ms"), "ms",
                 most=550),
            Goal("out, over all of that time", median(found, "out_gbps_passage"), "GB/s"),
            Goal("in, over all of that time", median(found, "in_gbps_passage"), "GB/s"),
            Goal("drain", median(found, "drain_ms"), "ms")),
        {**found, "moves": summary(trace, 8 * card.block), **described(programs, outcomes)},
        wrong(outcomes))


def three_ahead(card: Card) -> Result:
    programs = tasks(card, 3, MIDDLE)
    trace, outcomes = run(card, programs, AHEAD, QUANTUM, mode="on")
    found = figures(handovers(trace))
    return Result(
        "three-ahead", f"one at a time in {AHEAD} of the card",
        (
            Goal("STOP to RUN, less the drain", median(found, "stop_to_run_less_drain_ms"), "ms",
                 most=10),
            Goal("the longest of them", most(found, "stop_to_run_less_drain_ms"), "ms"),
            Goal("drain", median(found, "drain_ms"), "ms")),
        {**found, "moves": summary(trace, 8 * card.block), **described(programs, outcomes)},
        wrong(outcomes))


def tasks(card: Card, number: int, share: float) -> list[Task]:
    """Programs that change all they have in each step."""
    memory, chunk = card.share(share), min(CHUNK, card.total // 32)
    return [Task(memory, card.seconds, seed, chunk) for seed in range(1, number + 1)]
