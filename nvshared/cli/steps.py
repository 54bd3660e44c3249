# SPDX-License-Identifier: Apache-2.0
"""Several changes for one command: whoever cannot have them all hears which of them hold."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from nvshared.cli.verb import Options
from nvshared.control import Daemon
from nvshared.errors import Interrupted, NotKept, NvshareError


class Step(NamedTuple):
    """One change. Those that differ by the GPU alone have the same name."""

    name: str                           # what is changed, such as "the memory limit"
    data: dict[str, Any]                # its GPU's index (or None) as "gpu", and what it is set to
    act: Callable[[], None]             # raises NvshareError


def carry_out(steps: Sequence[Step], become: str = "set") -> None:
    """Takes the steps one after the other; each thing is then what `become` says.

    The error of one that fails ends it, and says what is done, what is not, and what may
    be: in its message where there is more than one step, and in its details for --json.
    """
    for at, step in enumerate(steps):
        try:
            step.act()
        except (NvshareError, KeyboardInterrupt) as reason:
            error = reason if isinstance(reason, NvshareError) else Interrupted("interrupted")
            done = at + 1 if isinstance(error, NotKept) else at     # what is not kept holds
            tried = done if error.answered else done + 1
            parts = steps[:done], steps[done:tried], steps[tried:]
            error.details = {
                name: [one.data for one in part]
                for name, part in zip(("done", "unknown", "not_done"), parts, strict=True)
            }
            if tried and done < len(steps) > 1:
                error.message = f"{_outcome(parts, become)}: {error.message}"
            raise error from None


def change(
    options: Options, pid: int, name: str, values: dict[str, Any],
    put: Callable[[Daemon, int], None], become: str = "set",
) -> dict[str, Any]:
    """Changes a program, on all its GPUs or the one that is named. Returns what --json prints.

    `name`: what is changed, to `values`; `put` does it for a client's id.
    """
    with Daemon(options.bus) as daemon:
        carry_out([
            Step(name, {"gpu": gpu, **values}, partial(put, daemon, client))
            for client, gpu in daemon.clients_of(pid, options.gpu).items()
        ], become)
    return {"pid": pid, "gpu": options.gpu, **values}


def _outcome(parts: Sequence[Sequence[Step]], become: str) -> str:
    """What is done, what may be, and what is not."""
    names = {step.name for part in parts for step in part}
    places = {step.data["gpu"] for part in parts for step in part}
    words: list[str] = []
    for doubt, part in zip(("", "perhaps ", "not "), parts, strict=True):
        found: dict[str, list[int]] = {}
        for step in part:
            found.setdefault(step.name, []).append(step.data["gpu"])
        if not found:
            continue
        place = {name: _on(indices) if len(places) > 1 else "" for name, indices in found.items()}
        if len(names) == 1:
            what = "".join(place.values())
        else:
            what = _listed([f"{name} {place[name]}".rstrip() for name in found])
            if not words:
                what += f" {'is' if len(found) == 1 else 'are'} {become}"
        words.append(doubt + what)
    all_words = ", ".join(words)
    return f"{names.pop()} is {become} {all_words}" if len(names) == 1 else all_words


def where(gpu: str | None) -> str:
    """What a sentence about a program ends with if one GPU was named."""
    return "" if gpu is None else f" on GPU {gpu}"


def _on(gpus: Sequence[int]) -> str:
    """On GPU 0; on GPUs 0 and 1."""
    return f"on GPU{'s' if len(gpus) > 1 else ''} {_listed([str(gpu) for gpu in gpus])}"


def _listed(items: Sequence[str]) -> str:
    """A; a and b; a, b and c."""
    return " and ".join(filter(None, [", ".join(items[:-1]), items[-1]]))
