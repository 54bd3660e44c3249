# SPDX-License-Identifier: Apache-2.0
"""What is set for programs and tenants: limit, weight, priority, suspend and resume.

Several changes may be for one command: whoever cannot have them all hears which of them hold.
"""

import argparse
import pwd
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from nvshared.cli.output import show, warn
from nvshared.cli.verb import Options, Verb, add_target, number_or_none, tenant
from nvshared.control import Daemon
from nvshared.errors import Interrupted, InvalidArgs, NotKept, NvshareError
from nvshared.names import PRIORITIES, TENANT_KINDS, USUAL_TERMS
from nvshared.quantity import limit, share, sized, weight
from nvshared.tui.tables import named, term_sentence, tighter_limit, user

if TYPE_CHECKING:
    from nvshared.control.tenants import Tenant


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


def set_terms(options: Options, name: str, terms: Mapping[str, int]) -> None:
    """Sets terms of a tenant, by their names on the bus; 0 takes back. Says what then holds."""
    if options.gpu is not None:
        raise InvalidArgs("what is set for a tenant holds on each GPU", "leave out --gpu")
    with Daemon(options.bus) as daemon:
        daemon.set_tenant_terms(name, terms)
        now = daemon.tenant(name)
        around = [daemon.tenant(one) for one in now.within]
    if not _has_account(now.name) and not now.programs:
        warn(f"this machine has no user {now.name.partition(':')[2]!r} now; what is set holds once "
             "a program of such a user comes")
    values: dict[str, int | str] = {term.replace("-", "_"): now.value(term) for term in terms}
    if "priority" in values:
        values["priority"] = named(now.value("priority"))
    if "suspended" in values:
        values["suspended"] = bool(values["suspended"])
    show(options, {"tenant": now.name, **values}, lambda: _print_tenant(now, terms, around))


def tightest(around: "Iterable[Tenant]", term: str, value: int) -> "Tenant | None":
    """The tenant whose limit is below `value`, where 0 is no limit of bytes, and lowest."""
    usual = USUAL_TERMS[term]
    limited = [one for one in around if one.value(term) != usual]
    least = min(limited, key=lambda one: one.value(term), default=None)
    if least is None or (value != usual and least.value(term) >= value):
        return None
    return least


def _has_account(name: str) -> bool:
    """Whether a tenant is none of a user, or of one that has a name here."""
    kind, _, user = name.partition(":")
    if kind != "user" or user.isdecimal():
        return True
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


def _print_tenant(now: "Tenant", terms: Mapping[str, int], around: "list[Tenant]") -> None:
    for term in terms:
        print(term_sentence(now, term))
        if term in ("memory-limit", "host-memory-limit", "compute-limit"):
            outer = tightest(around, term, now.value(term))
            if outer is not None:
                print(tighter_limit(outer, term))
    if not now.programs:
        print("It has no program that uses a GPU now.")


UNLIMITED = USUAL_TERMS["compute-limit"]


def _configure_limit(parser: argparse.ArgumentParser) -> None:
    add_target(parser)
    parser.add_argument(
        "--memory", metavar="SIZE", type=number_or_none("memory limit", limit),
        help="how much it may allocate, such as 20GiB; none: what was set is taken back",
    )
    parser.add_argument(
        "--host-memory", metavar="SIZE", type=number_or_none("host memory limit", limit),
        help="of a tenant: how much host memory what may leave GPUs may need, on all GPUs "
        "together; none: what was set is taken back",
    )
    parser.add_argument(
        "--compute", metavar="PERCENT", type=number_or_none("compute limit", share),
        help="its greatest share of the GPU's time, 1 to 100; none: what was set is taken back",
    )
    parser.add_argument(
        "--request", metavar="PERCENT", type=number_or_none("compute request", share),
        help="of a tenant: the share of the GPU's time that it gets whenever it wants it, 1 to "
        "100, whatever others' weights are; none: what was set is taken back",
    )


def _act_limit(options: Options) -> None:
    wanted = {
        "memory-limit": options.memory, "host-memory-limit": options.host_memory,
        "compute-limit": options.compute, "compute-request": options.request,
    }
    if all(limit is None for limit in wanted.values()):
        raise InvalidArgs(
            "there is nothing to limit",
            "give --memory SIZE, --host-memory SIZE, --compute PERCENT or --request PERCENT",
        )
    if isinstance(options.target, str):
        set_terms(options, options.target, {
            term: limit for term, limit in wanted.items() if limit is not None
        })
        return
    if options.host_memory is not None:
        raise InvalidArgs("the host memory of a process has no limit", f"give {TENANT_KINDS}")
    if options.request is not None:
        raise InvalidArgs("a process cannot request time", f"give {TENANT_KINDS}")
    _limit_program(options)


def _limit_program(options: Options) -> None:
    pid, gpu, memory = options.target, options.gpu, options.memory
    compute = UNLIMITED if options.compute == 0 else options.compute
    with Daemon(options.bus) as daemon:
        found = daemon.clients_of(pid, gpu)
        carry_out([
            Step(
                f"the {name} limit", {"gpu": on, f"{name}_limit": value}, partial(put, one, value)
            )
            for name, put, value in (
                ("memory", daemon.set_memory_limit, memory),
                ("compute", daemon.set_compute_limit, compute),
            )
            if value is not None for one, on in found.items()
        ])
        names = {one.tenant for one in daemon.snapshot().clients if one.id in found}
        inner = [daemon.tenant(name) for name in names]
        around = [*inner, *(daemon.tenant(name) for one in inner for name in one.within)]
    limits = {"memory_limit": memory, "compute_limit": compute}
    show(
        options,
        {"pid": pid, "gpu": gpu}
        | {name: limit for name, limit in limits.items() if limit is not None},
        lambda: _print_limit(pid, gpu, memory, compute, around),
    )


def _print_limit(
    pid: int, gpu: str | None, memory: int | None, compute: int | None, around: "list[Tenant]"
) -> None:
    if memory is not None:
        limit = sized(memory) if memory else "as much as there is"
        print(f"Process {pid} may allocate {limit}{where(gpu)}.")
    if compute is not None:
        limit = f"at most {compute} % of the time"
        if compute == UNLIMITED:
            limit = "all of the time that others leave it"
        which = "the GPU" if gpu is None else f"GPU {gpu}"
        print(f"Process {pid} may use {which} {limit}.")
    for name, value in (("memory-limit", memory), ("compute-limit", compute)):
        outer = None if value is None else tightest(around, name, value)
        if outer is not None:
            print(tighter_limit(outer, name))


LIMIT = Verb(
    name="limit",
    summary="limit the memory and time of a GPU for a program or tenant",
    description=(
        "With --memory, the GPU is that large for the program from then on: allocations beyond it "
        "fail as out of memory. The program keeps what it has already. With --compute, it uses "
        "the GPU for no more than that share of the time, whether others want it or not; how much "
        "work that is depends on clock rates and on the program's processor. With "
        "--host-memory, the programs of a tenant may have allocated on all GPUs together what "
        "could move into so much host memory; what is held already may still move. With "
        "--request, a tenant gets at least that share of each GPU's time while programs take "
        "turns. What all request together is at most 100 %. A limit "
        "lasts until the program ends. A limit of a tenant (a user, unit, container, job or pod) "
        "holds on each GPU for all its programs together, also for those to come, until it is "
        "taken back; then the configuration holds again. You may limit your own programs; for "
        "other users' programs and for tenants you need permission."
    ),
    examples=(
        ("nvsharectl limit 4711 --memory 20GiB", "at most 20 GiB on each GPU it uses"),
        ("nvsharectl limit 4711 --compute 50", "at most half of the time"),
        ("nvsharectl limit 4711 --memory none", "as much as the GPU has"),
        ("nvsharectl limit user:alice --memory 40GiB", "all programs of a user together"),
        ("nvsharectl limit user:alice --host-memory 64GiB", "what leaves the GPUs, of all of them"),
        ("nvsharectl limit job:4711 --request 30", "30 % of the time whenever the job wants it"),
        ("nvsharectl limit user:alice --memory none", "as the configuration says"),
    ),
    configure=_configure_limit,
    act=_act_limit,
)


def _configure_weight(parser: argparse.ArgumentParser) -> None:
    add_target(parser)
    parser.add_argument(
        "weight", metavar="WEIGHT|none", type=number_or_none("weight", weight),
        help="1 to 1000; usual is 100; none: what was set is taken back",
    )


def _act_weight(options: Options) -> None:
    target, weight = options.target, options.weight
    if isinstance(target, str):
        set_terms(options, target, {"weight": weight})
        return
    weight = weight or USUAL_TERMS["weight"]
    data = change(
        options, target, f"the weight of process {target}", {"weight": weight},
        lambda daemon, client: daemon.set_weight(client, weight),
    )
    place = where(options.gpu)
    show(options, data, lambda: print(f"The weight of process {target}{place} is {weight}."))


WEIGHT = Verb(
    name="weight",
    summary="set which share of the time a program or tenant gets",
    description=(
        "Tenants that take turns share the time in proportion to their weights: first pods, "
        "containers and units of the system, and users outside of these; then, of what one of "
        "them gets, a user's jobs, units and containers, or the users of a unit; and last the "
        "programs in each of these. Each begins with 100; one with 200 "
        "gets twice the time of one with 100. The weight of a program lasts until the program "
        "ends, that of a tenant (a user, unit, container, job or pod) until it is taken back."
    ),
    examples=(
        ("nvsharectl weight 4711 200", "twice the time of other programs of its tenant"),
        ("nvsharectl weight job:4711 200", "twice the time of its user's other jobs"),
        ("nvsharectl weight user:alice 200", "of all programs of a user together"),
        ("nvsharectl weight user:alice none", "as the configuration says, or 100"),
    ),
    configure=_configure_weight,
    act=_act_weight,
)


def _configure_priority(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target", metavar="TENANT", type=tenant,
        help=f"whose programs, as nvsharectl tenants shows it: {TENANT_KINDS}",
    )
    parser.add_argument(
        "priority", choices=[*PRIORITIES, "none"],
        help="none: what was set is taken back",
    )


def _act_priority(options: Options) -> None:
    options.gpu = None
    set_terms(options, options.target, {"priority": PRIORITIES.get(options.priority, 0)})


PRIORITY = Verb(
    name="priority",
    summary="set which tenants go first",
    description=(
        "Where programs take turns, those of high priority go before all others who wait. Those in "
        "the background get the GPU only while nobody else wants it, and are stopped as soon as "
        "somebody does; if others are always busy, they never run. Weights count among those of "
        "one priority. A program is in the background if one of its tenants is. Where programs fit "
        "on the GPU together, no turns are taken, and one in the background submits nothing while "
        "another has work on the GPU; what it submitted before takes about 300 microseconds, or is "
        "one kernel. It holds until it is taken back; then the configuration holds again."
    ),
    examples=(
        ("nvsharectl priority unit:alice/train.service background", "when nobody else needs it"),
        ("nvsharectl priority unit:inference.service high", "before others who wait"),
        ("nvsharectl priority unit:inference.service none", "as the configuration says"),
    ),
    configure=_configure_priority,
    act=_act_priority,
)


POLL = 0.02                             # seconds


def _configure_suspension(suspended: bool, parser: argparse.ArgumentParser) -> None:
    add_target(parser)
    if suspended:
        parser.add_argument(
            "--wait", action="store_true", help="return when nothing that can leave is on the GPU",
        )


def _act_suspension(suspended: bool, options: Options) -> None:
    if isinstance(options.target, str):
        set_terms(options, options.target, {"suspended": int(suspended)})
    else:
        _change(suspended, options)
    if suspended and options.wait:
        with Daemon(options.bus) as daemon:
            while _on_a_gpu(daemon, options):
                time.sleep(POLL)


def _change(suspended: bool, options: Options) -> None:
    put, become, now = Daemon.resume, "resumed", "no longer suspended"
    if suspended:
        put, become, now = Daemon.suspend, "suspended", "suspended"
    pid = options.target
    data = change(options, pid, f"process {pid}", {"suspended": suspended}, put, become)
    show(options, data, lambda: print(f"Process {pid} is {now}{where(options.gpu)}."))


def _on_a_gpu(daemon: Daemon, options: Options) -> bool:
    index, target = None if options.gpu is None else daemon.gpu(options.gpu), options.target
    return any(
        one.state != "suspended" or (one.resident and not one.stays)
        for one in daemon.snapshot().clients
        if target in (one.pid, one.tenant, f"user:{user(one.uid)}") and index in (None, one.gpu)
    )


SUSPEND = Verb(
    name="suspend",
    summary="have a program or tenant leave the GPU until it is resumed",
    description=(
        "Ends the program's turn and moves its memory to the host. The program goes on until it "
        "needs the GPU, and then waits. For a tenant (a user, unit, container, job or pod), that "
        "is so for all its programs, also for those to come."
    ),
    examples=(
        ("nvsharectl suspend 4711", "until: nvsharectl resume 4711"),
        ("nvsharectl suspend --wait job:4711", "returns when its memory has left the GPU"),
    ),
    configure=partial(_configure_suspension, True),
    act=partial(_act_suspension, True),
)
RESUME = Verb(
    name="resume",
    summary="let a suspended program or tenant use the GPU again",
    description=(
        "Puts a program that was suspended back in the queue. One that was suspended itself and "
        "with its tenant needs both."
    ),
    examples=(
        ("nvsharectl resume 4711", "after: nvsharectl suspend 4711"),
        ("nvsharectl resume job:4711", "after: nvsharectl suspend job:4711"),
    ),
    configure=partial(_configure_suspension, False),
    act=partial(_act_suspension, False),
)
