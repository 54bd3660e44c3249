# SPDX-License-Identifier: Apache-2.0
"""Cost of the library for a program alone on the card: `python -m bench.training`.

Runs one training alternately with and without the library, several times, and prints for each way
the median of the runs' median step times as JSON.
"""

import argparse
import json
import statistics
import sys

from bench.harness import machine, program, run, sharing


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--gib", type=float, default=4.0)
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()

    command = program("torch_train", "--gib", str(options.gib), "--steps", str(options.steps))
    times: dict[str, list[float]] = {"without": [], "with": []}
    digests = set()
    with sharing() as daemon:
        for number in range(2 * options.rounds):
            # In the sequence a b b a, a drift of the card's clock favours neither way.
            kind = ("without", "with", "with", "without")[number % 4]
            result = run([command], daemon.environment if kind == "with" else None)[0]
            if result.code != 0:
                print(result.errors, file=sys.stderr)
                return 1
            times[kind].append(result.output["median_step_ms"])
            digests.add(result.output["digest"])
    medians = {kind: statistics.median(values) for kind, values in times.items()}
    print(json.dumps({
        "bench": "training",
        "gib": options.gib, "steps": options.steps,
        "step_ms": medians, "each_ms": times,
        "slower_percent": (medians["with"] / medians["without"] - 1) * 100,
        "same_bits": len(digests) == 1,
        "machine": machine()}, indent=1))
    return 0 if len(digests) == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
