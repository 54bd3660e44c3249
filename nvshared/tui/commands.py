# SPDX-License-Identifier: Apache-2.0
"""What can be done to a program from within the dashboard: the questions, and the outcomes."""

from collections.abc import Callable
from typing import NamedTuple

from nvshared.control import Daemon
from nvshared.names import USUAL_TERMS
from nvshared.quantity import limit, share, sized, weight
from nvshared.tui.state import Command

UNLIMITED = USUAL_TERMS["compute-limit"]
USUAL_WEIGHT = USUAL_TERMS["weight"]


class Kind(NamedTuple):
    """One verb."""

    key: str
    label: str                          # beside its key
    question: Callable[[Command], str]
    done: Callable[[Command], str]
    carry_out: Callable[[Daemon, Command], None]
    prompt: str = ""                    # what is typed for it; "": nothing
    parse: Callable[[str], int] = int   # raises ValueError with what would have been right
    none: int = 0                       # what "none" stands for


def _memory(command: Command) -> str:
    return sized(command.value) if command.value else "as much as there is"


def _compute(command: Command) -> str:
    return "no limit" if command.value == UNLIMITED else f"at most {command.value} % of the time"


KINDS: dict[str, Kind] = {
    "memory": Kind(
        "m", "memory limit",
        lambda one: f"Limit {one.name} on GPU {one.gpu} to {_memory(one)} of memory?",
        lambda one: f"{one.name} may allocate {_memory(one)} on GPU {one.gpu}.",
        lambda daemon, one: daemon.set_memory_limit(one.client.id, one.value),
        "Memory limit (such as 20GiB, or none)", limit,
    ),
    "compute": Kind(
        "c", "time limit",
        lambda one: f"Limit the time of {one.name} on GPU {one.gpu}: {_compute(one)}?",
        lambda one: f"{one.name} may use GPU {one.gpu}: {_compute(one)}.",
        lambda daemon, one: daemon.set_compute_limit(one.client.id, one.value),
        "Share of the GPU's time at most (1 to 100 percent, or none)", share, UNLIMITED,
    ),
    "weight": Kind(
        "w", "weight",
        lambda one: f"Give {one.name} the weight {one.value} on GPU {one.gpu}?",
        lambda one: f"The weight of {one.name} on GPU {one.gpu} is {one.value}.",
        lambda daemon, one: daemon.set_weight(one.client.id, one.value),
        f"Weight (1 to 1000, usual is {USUAL_WEIGHT})", weight, USUAL_WEIGHT,
    ),
    "suspend": Kind(
        "s", "suspend",
        lambda one: f"Suspend {one.name}? It leaves GPU {one.gpu} and waits until it is resumed.",
        lambda one: f"{one.name} is suspended on GPU {one.gpu}.",
        lambda daemon, one: daemon.suspend(one.client.id),
    ),
    "resume": Kind(
        "r", "resume",
        lambda one: f"Resume {one.name}? It queues for GPU {one.gpu} again.",
        lambda one: f"{one.name} is no longer suspended on GPU {one.gpu}.",
        lambda daemon, one: daemon.resume(one.client.id),
    ),
    "preempt": Kind(
        "p", "preempt",
        lambda one: f"End the present turns on GPU {one.gpu} at once, if somebody waits?",
        lambda one: f"The turns on GPU {one.gpu} end now, if somebody waits.",
        lambda daemon, one: daemon.preempt(str(one.gpu)),
    ),
}
BY_KEY = {kind.key: verb for verb, kind in KINDS.items()}


def parsed(verb: str, text: str) -> int:
    """What was typed. Raises ValueError with a sentence."""
    kind = KINDS[verb]
    text = text.strip()
    if text == "none":
        return kind.none
    try:
        return kind.parse(text)
    except ValueError as wrong:
        raise ValueError(f"{text!r} will not do: {wrong}, or none") from None
