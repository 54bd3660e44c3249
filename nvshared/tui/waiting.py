# SPDX-License-Identifier: Apache-2.0
"""Who waits, for what, since when and about how much longer, in words."""

from nvshared.control.snapshot import ClientSnapshot, GPUSnapshot, Snapshot
from nvshared.tui.quantities import duration, process, size
from nvshared.tui.tables import PROCESS, shortened

NAMED = 2                               # of those who hold a GPU


def reason(snapshot: Snapshot, client: ClientSnapshot) -> str:
    """What it waits for, to stand behind "waits"; "" if it does not wait."""
    match client.state:
        case "waiting" if client.gang and not client.position:
            return "for its turn on several GPUs at once"
        case "waiting":
            return f"for {_holders(snapshot, client)}"
        case "loading":
            return "for its memory to come in"
        case "limited":
            return "until it may have time again, as its time is limited"
        case "suspended":
            return "to be resumed"
        case "crowded":
            return f"for memory that is not shared{_outsiders(snapshot, client)}"
    return "for its turn" if client.waiting_usec else ""


def since(client: ClientSnapshot) -> str:
    """3.9s, about 26s more."""
    if not client.waiting_usec:
        return ""
    so_far = duration(client.waiting_usec)
    left = client.expected_usec
    return so_far if left is None else f"{so_far}, about {duration(left)} more"


def left(client: ClientSnapshot) -> str:
    """~26s; "?" where nobody can tell; "" if it does not wait."""
    if not client.waiting_usec:
        return ""
    return "?" if client.expected_usec is None else f"~{duration(client.expected_usec)}"


def sentence(snapshot: Snapshot, gpu: GPUSnapshot, width: int) -> str:
    """Who waits for a GPU: the next one, and how many more.

    Where that is longer than `width`, for what it waits is left out, and then the name shortened.
    """
    waiting = [one for one in snapshot.of(gpu) if one.waiting_usec]
    if not waiting:
        return "nobody waits"
    # Who stands in the queue goes before those that wait for time or memory.
    waiting.sort(key=lambda one: (one.position == 0, one.position))
    first, *others = waiting
    name, behind = process(first), f"{since(first)}{f'; {len(others)} more' if others else ''}"
    whole = f"{name} waits {reason(snapshot, first)}: {behind}"
    if len(whole) <= width:
        return whole
    room = max(PROCESS, width - len(f" waits: {behind}"))
    return f"{shortened(name, room)} waits: {behind}"


def _holders(snapshot: Snapshot, client: ClientSnapshot) -> str:
    gpu = next(one for one in snapshot.gpus if one.index == client.gpu)
    holding = [process(one) for one in snapshot.clients if one.id in gpu.holders]
    if not holding:
        return "its turn"
    if len(holding) > NAMED:
        return f"the turns of {len(holding)} programs to end"
    return f"{' and '.join(holding)}"


def _outsiders(snapshot: Snapshot, client: ClientSnapshot) -> str:
    gpu = next(one for one in snapshot.gpus if one.index == client.gpu)
    held = [f"{one.name}[{one.pid}] has {size(one.memory)}" for one in gpu.unshared[:NAMED]]
    return f" ({', '.join(held)})" if held else ""
