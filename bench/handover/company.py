# SPDX-License-Identifier: Apache-2.0
"""Runs programs together under a private daemon, and collects their outcomes."""

from collections.abc import Sequence
from typing import Any

from bench.handover.card import Card
from bench.handover.passage import shared
from bench.handover.program import Outcome, Task, perform


def run(card: Card, tasks: Sequence[Task], capacity: str, quantum: float, *, examined: bool = True,
        mode: str = "auto", gives_way: bool = True, writeback: bool = True,
        neighbour: str = "off") -> tuple[list[dict[str, Any]], list[Outcome]]:
    """Runs programs under a private daemon. Returns the trace until the first program ended."""
    with card.sharing(
        "--tq", card.quantum(quantum), "--anti-thrash", mode, "--capacity", capacity,
        "--bus-sharing", "on" if gives_way else "off", "--writeback", "on" if writeback else "off",
        "--neighbour", neighbour, NVSHARE_EXAMINE="1" if examined else "0") as daemon:
        outcomes = perform(tasks, daemon.environment)
        return shared(daemon.trace()), outcomes


def wrong(outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    return tuple(f"program {one.task.seed}: {one.message}" for one in outcomes if not one.right)


def described(tasks: Sequence[Task], outcomes: Sequence[Outcome]) -> dict[str, Any]:
    return {"programs": [
        {"bytes": task.memory, "used": task.used or task.memory,
         "changed": task.changed or task.used or task.memory, "copied": task.copied,
         "steps": len(one.steps), "right": one.right}
        for task, one in zip(tasks, outcomes, strict=True)]}
