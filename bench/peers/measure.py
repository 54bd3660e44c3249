# SPDX-License-Identifier: Apache-2.0
"""Measures nvshared next to other projects: python -m bench.peers.measure.

See docs/internals/benchmarks.md. Exit status 1 if any memory does not hold the bytes that it
should.
"""

import sys
from collections.abc import Iterator, Sequence
from functools import cache

from bench.handover.card import Card
from bench.handover.goal import Goal, Result
from bench.handover.measure import main
from bench.handover.program import calibrated, workload
from bench.harness import Result as Ended
from bench.harness import run
from bench.peers import others
from bench.shares import load
from bench.shares.measure import LARGE, MILLISECOND, SMALL, TRAINING, alone
from nvshared.errors import NvshareError

EACH = 0.6                              # part of the card for each program
CHUNK = 256 << 20
STEP = 0.4                              # seconds of computing in a step
PATIENCE = 2.5                          # longest run, in multiples of the time of sequential runs
QUANTA = (10, 2)                        # seconds
LIMIT = 50                              # percent: compute limit
WITHOUT_LIMITS = {"nvshare"}
NO_MEMORY = 3                           # nvshare-workload's exit status


def commands(card: Card, steps: int, rounds: int) -> list[list[str]]:
    """Commands of two programs that do not fit together and change all memory in each step."""
    return [workload(card.share(EACH), min(CHUNK, card.total // 32), seed, "--steps", steps,
                     "--rounds", rounds) for seed in (1, 2)]


@cache
def rounds_of(card: Card) -> int:
    """The number of rounds of computing in a step of STEP seconds."""
    return calibrated(
        lambda steps, rounds: commands(card, steps, rounds)[0], STEP, card.plain)


def together(card: Card) -> Iterator[Result]:
    """Runs both programs under each project until they end, for at most PATIENCE."""
    steps = max(2, round(card.seconds / 2 / STEP))
    programs = commands(card, steps, rounds_of(card))
    after = [run([one], card.plain)[0] for one in programs]
    serial = sum(one.seconds for one in after)
    yield outcome_of_both("one after the other", after, serial, serial, steps)
    limit = PATIENCE * serial + (60 if card.simulated else 0)
    for quantum in QUANTA:
        with card.sharing("--capacity", "100%", "--tq", card.quantum(quantum)) as daemon:
            both = run(programs, daemon.environment, limit)
        yield outcome_of_both(f"nvshared, quantum {quantum} s", both, _last(both), serial, steps)
    for name, way in others.there().items():
        try:
            with way(card, None) as environment:
                both = run(programs, dict(environment), limit)
        except NvshareError as error:
            yield failed("together", name, error)
        else:
            yield outcome_of_both(name, both, _last(both), serial, steps)


def outcome_of_both(name: str, ended: Sequence[Ended], seconds: float, serial: float,
                    steps: int) -> Result:
    lacking = sum(one.code == NO_MEMORY for one in ended)
    finished = sum(one.code == 0 for one in ended)
    done = [steps if one.code == 0 else int(one.output.get("step", 0)) for one in ended]
    goals = [
        Goal("programs that finished", finished, "of 2"),
        Goal("ended for want of memory", lacking, "of 2"),
        Goal("steps done, both together", sum(done), f"of {2 * steps}"),
        Goal("seconds", seconds, "s")]
    if finished == 2:
        goals.append(Goal("over one after the other", seconds / serial, "times"))
    wrong = tuple(f"program {one} has wrong words" for one, end in enumerate(ended, 1)
                  if "event" in end.output and end.code == 1)
    return Result("together", name, tuple(goals), {
        "seconds": seconds, "serial_seconds": serial, "steps": done, "codes":
        [one.code for one in ended], "errors": [one.errors for one in ended]}, wrong)


def limits(card: Card) -> Iterator[Result]:
    """Runs one program at a time with LIMIT percent of the time or of the multiprocessors."""
    for shape in (MILLISECOND, LARGE, SMALL, TRAINING):
        program = load.Program(shape, {"compute-limit": f"{LIMIT}%"})
        lasts = card.seconds / 3
        yield had("nvshared", card, shape, load.together(card, lasts, [program], ())[0], lasts)
        for name, way in others.there().items():
            if name in WITHOUT_LIMITS:
                continue
            try:
                with way(card, LIMIT) as environment:
                    work = load.work(card, [program], environment, lasts, apart=False)[0]
            except NvshareError as error:
                yield failed("limits", f"{name}, {shape.name}", error)
            else:
                yield had(name, card, shape, work, lasts)


def had(name: str, card: Card, shape: load.Shape, work: load.Work, lasts: float) -> Result:
    """The rate under a limit in percent of the rate alone; the first 2 s do not count."""
    part = 100 * work.rate(min(2.0, lasts / 2)) / alone(card, shape).rate()
    goal = Goal(f"work of alone, with a limit of {LIMIT} %", part, "%")
    return Result("limits", f"{name}, {shape.name}", (goal,), {"had": part},
                  () if work.right else ("wrong words",))


def failed(variant: str, name: str, error: NvshareError) -> Result:
    """The result for a project that fails on this machine; the other projects are measured."""
    print(f"{name}: {error}", file=sys.stderr)
    return Result(variant, f"{name}: {error}", (), {"error": str(error)}, ())


def _last(ended: Sequence[Ended]) -> float:
    return max(one.seconds for one in ended)


VARIANTS = {"together": together, "limits": limits}

if __name__ == "__main__":
    sys.exit(main(
        "peers", "Measures nvshared next to others; without --variant, all of it.", VARIANTS))
