# SPDX-License-Identifier: Apache-2.0
"""Bus rate of two plain processes, one copying out and one in: the limit for `two-large`.

A driver clears released memory, at the cost of copies to the card, so the goals of `two-large` are
compared with the rates while both processes remap memory.
"""

import json
import statistics

from bench.handover.card import Card
from bench.handover.goal import Goal, Result
from bench.harness import ROOT
from bench.program import finish
from nvshared.units import GIB, MIB

PROGRAM = ROOT / "build" / "bench-handover" / "crossing"
EACH = 8 * GIB                          # bytes in each direction
BLOCK = 128 * MIB                       # bytes of the library's blocks on a large card
ROUNDS = 3
LIMIT = 180.0                           # seconds
WORDS = {
    "copies": "copies alone", "freed": "what is out is freed", "mapped": "room for what comes "
    "in is mapped", "both": "both, as in a hand-over",
}


def bus(card: Card) -> Result:
    each, block, rounds = (16 * MIB, 4 * MIB, 1) if card.simulated else (EACH, BLOCK, ROUNDS)
    done = finish([PROGRAM, *map(str, (each, block, rounds))], card.plain, LIMIT)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    found = {
        way: {figure: [line[figure] for line in lines if line["way"] == way]
              for figure in ("out_gbps", "in_gbps")}
        for way in WORDS}
    goals = tuple(
        Goal(f"{words}: {direction}",
             statistics.median(speeds) if (speeds := found[way][f"{direction}_gbps"]) else None,
             "GB/s")
        for way, words in WORDS.items() for direction in ("out", "in"))
    return Result("bus", "two processes, without the library", goals,
                  {"bytes": each, "block_bytes": block, "rounds": found},
                  (done.stderr.strip(),) if done.returncode != 0 else ())
