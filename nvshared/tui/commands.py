# SPDX-License-Identifier: Apache-2.0
"""What can be done from within the dashboard to a program, or to all programs of its tenant.

The questions, and the outcomes.
"""

from collections.abc import Callable
from typing import NamedTuple

from nvshared.control import Daemon
from nvshared.names import USUAL_TERMS
from nvshared.quantity import limit, share, sized, weight
from nvshared.tui.state import Command, Prompt
from nvshared.tui.terms import sentence

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
    none: int = 0                       # what "none" stands for; for a tenant 0: taken back
    term: str = ""                      # a tenant's, which it sets; "": it is about programs alone
    together: Callable[[Command], str] = str    # the question where it is about a tenant


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
        "Memory limit (such as 20GiB, or none)", limit, term="memory",
        together=lambda one:
            f"Limit all programs of {one.name} together to {_memory(one)} of memory on each GPU?",
    ),
    "compute": Kind(
        "c", "time limit",
        lambda one: f"Limit the time of {one.name} on GPU {one.gpu}: {_compute(one)}?",
        lambda one: f"{one.name} may use GPU {one.gpu}: {_compute(one)}.",
        lambda daemon, one: daemon.set_compute_limit(one.client.id, one.value),
        "Share of the GPU's time at most (1 to 100 percent, or none)", share, UNLIMITED,
        "compute-limit", lambda one:
            f"Limit the time of all programs of {one.name} together on each GPU: {_compute(one)}?",
    ),
    "weight": Kind(
        "w", "weight",
        lambda one: f"Give {one.name} the weight {one.value} on GPU {one.gpu}?",
        lambda one: f"The weight of {one.name} on GPU {one.gpu} is {one.value}.",
        lambda daemon, one: daemon.set_weight(one.client.id, one.value),
        f"Weight (1 to 1000, usual is {USUAL_WEIGHT})", weight, USUAL_WEIGHT,
        "weight", lambda one: f"Give {one.name} the weight {one.value} on each GPU?",
    ),
    "suspend": Kind(
        "s", "suspend",
        lambda one: f"Suspend {one.name}? It leaves GPU {one.gpu} and waits until it is resumed.",
        lambda one: f"{one.name} is suspended on GPU {one.gpu}.",
        lambda daemon, one: daemon.suspend(one.client.id),
        term="suspended", together=lambda one:
            f"Suspend all programs of {one.name}? They leave the GPUs until they are resumed.",
    ),
    "resume": Kind(
        "r", "resume",
        lambda one: f"Resume {one.name}? It queues for GPU {one.gpu} again.",
        lambda one: f"{one.name} is no longer suspended on GPU {one.gpu}.",
        lambda daemon, one: daemon.resume(one.client.id),
        term="suspended", together=lambda one:
            f"Resume all programs of {one.name}? They queue for the GPUs again.",
    ),
    "preempt": Kind(
        "p", "preempt",
        lambda one: f"End the present turns on GPU {one.gpu} at once, if somebody waits?",
        lambda one: f"The turns on GPU {one.gpu} end now, if somebody waits.",
        lambda daemon, one: daemon.preempt(str(one.gpu)),
    ),
}
BY_KEY = {kind.key: verb for verb, kind in KINDS.items()}


def question(command: Command) -> str:
    """Whether to do it."""
    kind = KINDS[command.verb]
    if not command.tenant:
        return kind.question(command)
    if kind.prompt and not command.value:
        return f"Take back the {kind.label} that was set for {command.name}?"
    return kind.together(command)


def carry_out(daemon: Daemon, command: Command) -> str:
    """What came of it. Raises what Daemon raises."""
    kind = KINDS[command.verb]
    if not command.tenant:
        kind.carry_out(daemon, command)
        return kind.done(command)
    value = 1 if command.verb == "suspend" else command.value
    daemon.set_tenant_terms(command.tenant, {kind.term: value})
    return sentence(daemon.tenant(command.tenant), kind.term)


def parsed(prompt: Prompt) -> int:
    """What was typed. Raises ValueError with a sentence."""
    kind = KINDS[prompt.verb]
    text = prompt.text.strip()
    if text == "none":
        return 0 if prompt.tenant else kind.none
    try:
        return kind.parse(text)
    except ValueError as wrong:
        raise ValueError(f"{text!r} will not do: {wrong}, or none") from None
