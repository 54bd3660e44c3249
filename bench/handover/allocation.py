# SPDX-License-Identifier: Apache-2.0
"""Duration of a program's own allocations, with and without the library, in turns (a b b a).

allocate.c has the timed operations. Large blocks are measured twice: with equal sizes each round,
so that freed memory can be used again, and with sizes that grow by a page each round (`new`).
"""

import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace

from bench.handover.card import Card, unshared
from bench.handover.goal import Goal, Result
from bench.harness import ROOT
from bench.program import finish
from nvshared.units import MIB

PROGRAM = ROOT / "build" / "bench-handover" / "allocate"
ORDER = ("without", "with", "with", "without")
SMALL = 4096
PAGE = 2 * MIB                          # bytes of a page of GPU memory
LIMIT = 120.0                           # seconds for one process

Rounds = dict[str, list[dict[str, float]]]          # by way: with and without the library
Medians = Mapping[str, Mapping[str, float]]         # by way and figure


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the allocations; bytes."""

    touched: int
    large: int
    larges: int                         # number of large blocks
    smalls: int = 1000
    live: int = 20_000                  # live small blocks in the "crowded" figures
    rounds: int = 6
    growth: int = 0                     # bytes by which large blocks grow each round

    def arguments(self) -> list[str]:
        return [str(number) for number in (
            self.touched, self.large, self.larges, SMALL, self.smalls, self.live, self.rounds,
            self.growth)]


def allocation(card: Card) -> Result:
    sizes = Sizes(card.total // 16 // MIB * MIB, 64 * MIB, 48)
    if card.simulated:                  # that driver takes a page for each small block
        sizes = Sizes(8 * MIB, 4 * MIB, 16, 20, live=50, rounds=2)
    new = replace(sizes, smalls=1, live=1, growth=PAGE)
    rounds: Rounds = {"without": [], "with": []}
    new_rounds: Rounds = {"without": [], "with": []}
    wrong = []
    with card.sharing() as daemon:
        for way in ORDER:
            ours = daemon.environment if way == "with" else unshared()
            for these, found in ((sizes, rounds), (new, new_rounds)):
                done = finish([PROGRAM, *these.arguments()], {**card.environment, **ours}, LIMIT)
                if done.returncode != 0:
                    wrong.append(f"{way} the library: {done.stderr.strip()}")
                found[way] += [json.loads(line) for line in done.stdout.splitlines()[1:]]
    medians, new_medians = _medians(rounds), _medians(new_rounds)
    return Result(
        "allocation", f"with against without; crowded: beside {sizes.live:,} of 4 KiB; "
        "new: of a size that was never freed",
        (
            *(_goals(sizes, medians) if len(medians) == 2 else ()),
            *(_large_goals(new, new_medians, ", new") if len(new_medians) == 2 else ())),
        {
            "touched_bytes": sizes.touched, "large_bytes": sizes.large, "small_bytes": SMALL,
            "live": sizes.live, "medians_us": medians, "rounds_us": rounds,
            "new_medians_us": new_medians, "new_rounds_us": new_rounds},
        tuple(wrong))


def _medians(rounds: Rounds) -> dict[str, dict[str, float]]:
    return {
        way: {name: statistics.median(one[name] for one in found) for name in found[0]}
        for way, found in rounds.items() if found}


def _goals(sizes: Sizes, medians: Medians) -> tuple[Goal, ...]:
    goals = _large_goals(sizes, medians, "")
    for kind, words in (("small", "4 KiB"), ("crowded", "4 KiB crowded")):
        goals += _pair(kind, words, 100.0, medians)
    return goals


def _large_goals(sizes: Sizes, medians: Medians, mark: str) -> tuple[Goal, ...]:
    speeds = {
        way: sizes.touched / (found["touch_allocate"] + found["touch_first"]) / 1000
        for way, found in medians.items()}
    first = Goal(
        f"speed of first use{mark}: {speeds['with']:.1f} against {speeds['without']:.1f} GB/s",
        100 * speeds["with"] / speeds["without"], "%", least=95)
    return (first, *_pair("large", f"{sizes.large // MIB} MiB{mark}", 105.0, medians))


def _pair(kind: str, words: str, most: float, medians: Medians) -> tuple[Goal, ...]:
    goals = []
    for verb in ("allocate", "free"):
        ours, theirs = (medians[way][f"{kind}_{verb}"] for way in ("with", "without"))
        goals.append(Goal(f"{verb} {words}: {ours:.2f} against {theirs:.2f} us",
                          100 * ours / theirs, "%", most=most))
    return tuple(goals)
