# SPDX-License-Identifier: Apache-2.0
"""Simulates a day of many tenants under the real scheduler, to judge a policy.

POLICY is a file in the form of nvshared.conf: its section [gpu], and a section [tenant PATTERN]
for each tenant with terms. Notebooks are unit:jupyter-u1.service, trainings pod:train/t2, services
pod:serve/s3 and batch jobs job:4, each with another number. Three tenants in a row belong to one
user, such as user:u5. The same seed gives the same figures.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from bench.simulate.day import SPAN, Outcome, Wanted, figures, part, settings, simulate
from bench.simulate.kinds import HOUR, KINDS
from nvshared import quantity
from nvshared.cli.history import svg, terminal
from nvshared.errors import NvshareError
from nvshared.quantity import sized

DEFAULT = Wanted()
HOURS_APART = 3                         # hours between two marks of a plot's time axis
HEAD = (
    "                 of the cards' time, %         waits, s      late, times     moved, TiB",
    "kind      tenants    had  entitled      median   99 %   median   99 %   out     in"
    "   turns  refused",
)


def options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.simulate.measure", description=__doc__,
                                     allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--tenants", type=quantity.positive, metavar="N", help="how many, of all kinds; 1000")
    add("--cards", type=quantity.positive, metavar="N", help="over how many they are spread; 16")
    add("--memory", type=quantity.size, metavar="SIZE",
        help=f"of each card; {sized(DEFAULT.memory)}")
    add("--host", type=quantity.size, metavar="SIZE",
        help=f"memory for what does not fit a card, for each; {sized(DEFAULT.host)}")
    add("--hours", type=quantity.positive, metavar="N", help="of the day, from midnight on; 24")
    add("--tq", metavar="TIME", help="quantum, as in nvshared.conf; as POLICY says, or 30")
    add("--policy", type=Path, metavar="POLICY", help="a file with terms; none")
    add("--seed", type=int, metavar="N", help="for another day of the same kind; 1")
    add("--decisions", action="store_true",
        help="also the processor time of the scheduler's decisions, which no seed decides")
    add("--json", action="store_true", help="figures for programs")
    add("--svg", type=Path, metavar="FILE", help="a plot of the shares over the day")
    return parser.parse_args(arguments)


def report(wanted: Wanted, outcome: Outcome) -> dict[str, Any]:
    return {
        "wanted": {name: str(value) if isinstance(value, Path) else value
                   for name, value in asdict(wanted).items()},
        "kinds": {kind: asdict(figures(outcome, [kind])) for kind in KINDS},
        "all": asdict(figures(outcome, KINDS)),
        "span": SPAN / HOUR,
        "shares": {kind: [round(one, 4) for one in values]
                   for kind, values in outcome.shares.items()},
        "decisions": len(outcome.decisions)}


def decisions(outcome: Outcome) -> dict[str, float]:
    """Statistics of the processor time of a scheduler's decision; microseconds."""
    spent = sorted(outcome.decisions)
    return {
        "median": part(spent, 0.5) / 1e3, "99th": part(spent, 0.99) / 1e3, "most": spent[-1] / 1e3}


def table(found: dict[str, Any]) -> str:
    lines = [*HEAD]
    for kind, one in [*found["kinds"].items(), ("all", found["all"])]:
        lines.append(
            f"{kind:9}{one['tenants']:8}{100 * one['share']:7.2f}{100 * one['entitled']:10.2f}"
            f"{one['wait']:12.2f}{one['wait_99th']:7.0f}{one['late']:9.2f}{one['late_99th']:7.0f}"
            f"{one['out'] / 1024:6.1f}{one['into'] / 1024:7.1f}"
            f"{one['turns']:8}{one['refused']:9}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    given = options(arguments)
    names = [one.name for one in fields(Wanted)]
    wanted = Wanted(**{
        name: value for name in names if (value := getattr(given, name)) is not None})
    try:
        settings(wanted)
    except NvshareError as error:
        print(error, file=sys.stderr)
        return int(error.exit_code)
    outcome = simulate(wanted)
    found = report(wanted, outcome)
    if given.decisions:
        found["decision_us"] = decisions(outcome)
    if given.svg is not None:
        marks = [(hour / wanted.hours, f"{hour}:00")
                 for hour in range(0, int(wanted.hours) + 1, HOURS_APART)]
        given.svg.write_text(svg(outcome.shares, marks))
    if given.json:
        print(json.dumps(found, indent=1))
        return 0
    print(table(found))
    print(f"\n{terminal(outcome.shares)}\n\n{found['decisions']} decisions of the scheduler")
    if given.decisions:
        print("us of processor time: " + ", ".join(
            f"{name} {value:.0f}" for name, value in found["decision_us"].items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
