# SPDX-License-Identifier: Apache-2.0
"""Verbs that change terms, settings and turns, or move programs; nvshare's flags -T and -S."""

import pwd
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from nvshared import quantity
from nvshared.cli.progress import (
    Followed,
    Picture,
    Progress,
    Work,
    changes_of,
    departures_from,
    snapshots,
    watching,
)
from nvshared.cli.verb import (
    GPU,
    PID,
    TARGET,
    Options,
    argument,
    is_unknown_container,
    named_tenant,
    parsed,
    show,
    tenant,
    verb,
)
from nvshared.control import Daemon
from nvshared.control.snapshot import ClientSnapshot, Snapshot, TenantSnapshot
from nvshared.errors import Interrupted, InvalidArgs, NotKept, NvshareError
from nvshared.names import AUTO, MODES, POLICIES, PRIORITIES, TENANT_KINDS
from nvshared.quantity import counted, or_word
from nvshared.terms import TERMS, Term
from nvshared.tui import tables
from nvshared.tui.tables import program_sentence, term_sentence
from nvshared.units import MILLISECOND, SECOND

QUANTUM = f"TIME|{AUTO}"                # metavar of an argument that is a quantum
# Parses a quantum to microseconds; auto: 0.
quantum = parsed(or_word(AUTO, 0, quantity.quantum, ", or auto"), "the quantum cannot be {!r}")


POD_BY_UID = re.compile("pod:[^/]+")


class SettingStep(NamedTuple):
    name: str                           # the setting, such as "memory limit"
    data: dict[str, Any]                # for --json: "gpu" (index or None), and the new values
    act: Callable[[], None]             # raises NvshareError

    def __str__(self) -> str:
        gpu = self.data["gpu"]
        return self.name if gpu is None else f"{self.name} on GPU {gpu}"


def carry_out(steps: Sequence[SettingStep]) -> None:
    """Carries out the steps in order. If one fails, the error lists the steps done and not done."""
    for at, step in enumerate(steps):
        try:
            step.act()
        except (NvshareError, KeyboardInterrupt) as reason:
            error = reason if isinstance(reason, NvshareError) else Interrupted(
                "interrupted, but nvshared may go on with it")
            done = at + 1 if isinstance(error, NotKept) else at     # NotKept: done but unsaved
            tried = done if error.answered else done + 1
            parts = {"done": steps[:done], "unknown": steps[done:tried], "not_done": steps[tried:]}
            error.details = {name: [one.data for one in part] for name, part in parts.items()}
            if tried and done < len(steps) > 1:
                outcome = "; ".join(
                    f"{words}: {', '.join(map(str, part))}" for words, part in zip(
                        ("done", "perhaps done", "not done"), parts.values(), strict=True) if part)
                error.message = f"{error.message} ({outcome})"
            raise error from None


def set_terms(options: Options, terms: Mapping[str, int]) -> str:
    """Sets terms, given by their D-Bus names, of a tenant or process; 0 removes a term.

    Returns which nvshared has done so: Daemon.peer."""
    if isinstance(options.target, str):
        return _set_for_tenant(options, options.target, terms)
    return _set_for_program(options, options.target, {
        term: value or TERMS[term].default for term, value in terms.items()})


def _set_for_tenant(options: Options, name: str, terms: Mapping[str, int]) -> str:
    if getattr(options, "gpu", None) is not None:
        raise InvalidArgs("the terms of a tenant apply to each GPU", "leave out --gpu")
    with Daemon(options.bus) as daemon:
        name = named_tenant(daemon, name)
        daemon.set_tenant_terms(name, terms)
        now = daemon.tenant(name)
        around = [daemon.tenant(one) for one in now.within]
        if terms.get("disk-limit") and not daemon.snapshot().disk:
            print("nvsharectl: warning: no memory is swapped to a disk: nvshared.conf has no "
                  "setting disk", file=sys.stderr)
    sets = any(terms.values())          # and does not only take back
    if sets and not _has_account(now.name) and not now.programs:
        name = now.name.partition(":")[2]
        print(f"nvsharectl: warning: this machine has no user {name!r} now; the setting takes "
              "effect when a program of such a user starts", file=sys.stderr)
    if sets and not now.programs and is_unknown_container(now.name):
        name = now.name.partition(":")[2]
        print(f"nvsharectl: warning: no container {name!r} is known to nvshared, or to Docker and "
              "Podman as far as you may ask them; the setting takes effect when one with this name "
              "uses a GPU", file=sys.stderr)

    if sets and not now.programs and POD_BY_UID.fullmatch(now.name):
        name = now.name.partition(":")[2]
        print(f"nvsharectl: warning: no pod with the UID {name!r} uses a GPU; the setting takes "
              "effect when one does; for a pod's name, give pod:NAMESPACE/NAME", file=sys.stderr)

    def text() -> None:
        for term in terms:
            print(term_sentence(now, term))
            _print_tighter(around, term, now.value(term))
        if not now.programs:
            print(f"{now.name} has no program that uses a GPU now.")

    data = {"tenant": now.name, **_as_json({term: now.value(term) for term in terms})}
    show(options, data, text)
    return daemon.peer


def _set_for_program(options: Options, pid: int, terms: Mapping[str, int]) -> str:
    gpu, around = options.gpu, list[TenantSnapshot]()
    with Daemon(options.bus) as daemon:
        found = daemon.clients_of(pid, gpu)
        carry_out([
            SettingStep(TERMS[term].label if term != "suspended" or value else "resumed",
                 {"gpu": on, **_as_json({term: value})},
                 partial(daemon.set_client_term, one, term, value))
            for term, value in terms.items() for one, on in found.items()])
        if any(term.endswith("-limit") for term in terms):
            names = {one.tenant for one in daemon.snapshot().clients if one.id in found}
            around = [daemon.tenant(name) for name in names]
            around += [daemon.tenant(name) for one in around for name in one.within]

    def text() -> None:
        for term, value in terms.items():
            sentence = program_sentence(f"process {pid}", term, value, gpu)
            print(sentence[0].upper() + sentence[1:])
            _print_tighter(around, term, value)

    show(options, {"pid": pid, "gpu": gpu, **_as_json(terms)}, text)
    return daemon.peer


def _as_json(terms: Mapping[str, int]) -> dict[str, Any]:
    return {TERMS[term].field: TERMS[term].unit.plain(value) for term, value in terms.items()}


def _print_tighter(around: Iterable[TenantSnapshot], term: str, value: int) -> None:
    usual = TERMS[term].default
    limited = (one for one in around if term.endswith("-limit") and one.value(term) != usual)
    least = min(limited, key=lambda one: one.value(term), default=None)
    if least is not None and (value == usual or least.value(term) < value):
        print(f"A tighter limit applies: {term_sentence(least, term)}")


def _has_account(name: str) -> bool:
    """False if the tenant is a user with a name unknown to this machine."""
    kind, _, user = name.partition(":")
    with suppress(KeyError):
        return kind != "user" or user.isdecimal() or bool(pwd.getpwnam(user))
    return False


def _term(names: str, term: Term) -> tuple[list[str], dict[str, Any]]:
    """An argument that sets a term; "none" is parsed as 0, which removes the term."""
    parse = parsed(term.parser(0), f"the {term.label} cannot be {{!r}}")
    if names[0] != "-":
        return argument(names, f"{names.upper()}|none", f"{term.help}; none: remove the setting",
                        type=parse)
    help = f"{'' if term.of_client else 'tenants only: '}{term.help}; none: remove the setting"
    return argument(names, term.unit.metavar, help, type=parse, dest=term.name)


LIMITS = [term for term in TERMS.values() if term.option]


@verb("limit", *TARGET, *(_term(term.option, term) for term in LIMITS))
def limit(options: Options) -> None:
    """Limit the memory and time of a GPU for a program or tenant.

    With --memory, the GPU is that large for the program: later allocations beyond it fail as out of
    memory. With --compute, the program uses the GPU for at most that share of the time, even if no
    other program wants it; how much work that is depends on clock rates and the program's
    processor. With --deadline, where the policy is deadline, the program goes before others, and
    their turns end in time for it: see nvsharectl policy. The other limits are a tenant's: with
    --host-memory, its programs may allocate, on all GPUs together, as much evictable memory as fits
    into that much host memory (memory that they have already may still be evicted); with
    --neighbour and --disk, at most that much of their memory is swapped to other GPUs and to the
    disk tier; with --request, they get at least that share of each GPU's time while programs take
    turns. All requests together are at most 100 %. A program's limit lasts until the program ends.
    A tenant's limit holds on each GPU for all its programs together, also later ones, until it is
    removed and the configuration holds again. You may limit your own programs; other users'
    programs, tenants and deadlines need permission.

        nvsharectl limit 4711 --memory 20GiB             # at most 20 GiB on each GPU it uses
        nvsharectl limit 4711 --compute 50               # at most half of the time
        nvsharectl limit 4711 --memory none              # as much as the GPU has
        nvsharectl limit user:alice --memory 40GiB       # all programs of a user together
        nvsharectl limit user:alice --host-memory 64GiB  # swapped memory of all its programs
        nvsharectl limit job:4711 --request 30  # 30 % of the time whenever the job wants it
        nvsharectl limit unit:serve --deadline 200ms     # turns that begin within 200 ms
        nvsharectl limit container:ollama --memory 8GiB  # also the next one called so
        nvsharectl limit user:alice --memory none        # as the configuration says
    """
    terms = {term.name: value for term in LIMITS
             if (value := getattr(options, term.name)) is not None}
    if not terms:
        *given, last = (f"{term.option} {term.unit.metavar}" for term in LIMITS)
        raise InvalidArgs("no limit is given", f"give {', '.join(given)} or {last}")
    for term in LIMITS:
        if isinstance(options.target, int) and term.name in terms and not term.of_client:
            raise InvalidArgs(f"a process has no {term.label}", f"give {TENANT_KINDS}")
    set_terms(options, terms)


@verb("weight", *TARGET, _term("weight", TERMS["weight"]))
def weight(options: Options) -> None:
    """Set which share of the time a program or tenant gets.

    Tenants that take turns share the time in proportion to their weights: first pods, containers
    and units of the system, and users outside of these; then each one's part is shared by a user's
    jobs, units and containers, or the users of a unit; and last by the programs in each of these.
    The usual weight is 100; 200 gets twice the time. A program's weight lasts until the program
    ends, a tenant's until it is removed.

        nvsharectl weight 4711 200         # twice the time of other programs of its tenant
        nvsharectl weight job:4711 200     # twice the time of its user's other jobs
        nvsharectl weight user:alice 200   # of all programs of a user together
        nvsharectl weight user:alice none  # as the configuration says, or 100
    """
    set_terms(options, {"weight": options.weight})


@verb(
    "priority",
    argument("target", "TENANT", f"a tenant, as nvsharectl tenants shows it: {TENANT_KINDS}",
             type=tenant),
    argument("priority", "", "none: remove the setting", choices=[*PRIORITIES, "none"]))
def priority(options: Options) -> None:
    """Set which tenants go first.

    Where programs take turns, those of high priority go first. Background programs get the GPU only
    while no other program wants it, and are stopped as soon as another program does; if others are
    always busy, they never run. Weights count among programs of equal priority. A program is in the
    background if one of its tenants is. Where programs fit on the GPU together, no turns are taken,
    and a background program submits no work while another has work on the GPU; work submitted
    before takes about 300 microseconds, or is one kernel. A priority holds until it is removed;
    then the configuration holds again.

        nvsharectl priority unit:alice/train.service background  # while no other program wants it
        nvsharectl priority unit:inference.service high          # before other waiting programs
        nvsharectl priority unit:inference.service none          # as the configuration says
    """
    set_terms(options, {"priority": PRIORITIES.get(options.priority, 0)})


POLL = 0.02                             # seconds between two polls of the daemon
STALLED = 5.0                           # seconds without change until a note says that it waits


def _wait_until_off(options: Options, peer: str) -> None:
    """Returns once all evictable memory has left the GPU. Raises NvshareError if it will not.

    `peer`: the nvshared that suspends the programs."""
    followed, whole = Followed(), 0
    before, since = list[tuple[int, str, int]](), time.monotonic()      # of the last change
    noted = options.json
    with Daemon(options.bus) as daemon, Progress(options) as progress:
        index, target = None if options.gpu is None else daemon.gpu(options.gpu), options.target
        if isinstance(target, str):
            # As the daemon shows it, not as it was given.
            target = daemon.tenant(named_tenant(daemon, target)).name
        for now in snapshots(daemon, POLL, peer):
            left = [one for one in _not_lost(now) if index in (None, one.gpu) and not _is_off(one)]
            known = {one.name: one for one in daemon.tenants()} if left else {}
            of = {one.id: _tenants_of(one, known) for one in left}
            left = [one for one in left if one.pid == target or any(
                tenant.name == target for tenant in of[one.id])]
            if not left:
                return
            whole = max(whole, len(left))
            if not all(one.terms["suspended"] or any(
                    tenant.value("suspended") for tenant in of[one.id]) for one in left):
                name = f"process {target}" if isinstance(target, int) else target
                raise NvshareError(f"{name} was resumed before its memory had left the GPU",
                                   "see: nvsharectl clients")
            if (after := [(one.id, one.state, one.resident) for one in left]) != before:
                before, since = after, time.monotonic()
            elif not noted and time.monotonic() - since >= STALLED:
                noted = True            # its work does not end, or host memory is full
                progress.say("nvsharectl: waits until memory can leave the GPU, as nvsharectl "
                             "clients shows; Ctrl-C gives up", sys.stderr)
            progress.show(Picture(followed.work(left), whole - len(left), whole))


def _is_off(client: ClientSnapshot) -> bool:
    """Whether no memory of a suspended client is on its GPU that could be evicted."""
    if client.state == "suspended":
        return not client.resident or bool(client.pin_reason)
    return client.state == "parked"


def _not_lost(now: Snapshot) -> list[ClientSnapshot]:
    """The clients but for lost ones: their GPU is lost, or the driver cannot restore them. Calls of
    a lost client fail, and neither its turn nor its memory can be waited for."""
    lost = {gpu.index for gpu in now.gpus if gpu.state == "lost"}
    return [one for one in now.clients if one.gpu not in lost and one.state != "lost"]


def _tenants_of(
    client: ClientSnapshot, known: Mapping[str, TenantSnapshot]
) -> list[TenantSnapshot]:
    """The client's tenants; none if their last program has just ended."""
    own = known.get(client.tenant)
    return [] if own is None else [own, *(known[name] for name in own.within if name in known)]


@verb(
    "suspend", *TARGET, argument("--wait", "", "return when all evictable memory has left the GPU"))
def suspend(options: Options) -> None:
    """Have a program or tenant leave the GPU until it is resumed.

    Ends the program's turn and moves its memory to the host. The program goes on until it needs the
    GPU, and then waits. A tenant's suspension holds for all its programs, also later ones.

        nvsharectl suspend 4711             # until: nvsharectl resume 4711
        nvsharectl suspend --wait job:4711  # returns when its memory has left the GPU
    """
    peer = set_terms(options, {"suspended": 1})
    if options.wait:
        _wait_until_off(options, peer)


@verb("resume", *TARGET)
def resume(options: Options) -> None:
    """Let a suspended program or tenant use the GPU again.

    Puts a suspended program back in the queue. A program that was suspended itself and with its
    tenant must be resumed both ways.

        nvsharectl resume 4711      # after: nvsharectl suspend 4711
        nvsharectl resume job:4711  # after: nvsharectl suspend job:4711
    """
    set_terms(options, {"suspended": 0})


def _change(options: Options, usec: int | None, mode: str | None, gpu: str | None,
            policy: str | None = None) -> None:
    """Sets the quantum (0: auto), the anti-thrash mode and the policy, if not None, and prints the
    result."""
    steps: list[SettingStep] = []
    with Daemon(options.bus) as daemon:
        if usec is not None:
            data = {"gpu": gpu, **_quantum_as_json(usec)}
            steps.append(SettingStep("quantum", data, partial(daemon.set_tq, usec, gpu)))
        if mode is not None:
            data = {"gpu": gpu, "anti_thrash": mode}
            steps.append(SettingStep(
                "anti-thrash mode", data, partial(daemon.set_anti_thrash, mode, gpu)))
        if policy is not None:
            data = {"gpu": gpu, "policy": policy}
            steps.append(SettingStep("policy", data, partial(daemon.set_policy, policy, gpu)))
        carry_out(steps)

    def text() -> None:
        where = "all GPUs" if gpu is None else f"GPU {gpu}"
        for step in steps:
            value = policy or (
                mode if usec is None or step is not steps[0] else _in_words(usec))
            print(f"The {step.name} of {where} is {value}.")

    show(options, {name: value for step in steps for name, value in step.data.items()}, text)


def _quantum_as_json(usec: int) -> dict[str, Any]:
    return {"tq": -(-usec // SECOND) or AUTO, "tq_usec": usec or None}


def _in_words(usec: int) -> str:
    """A quantum as 30 seconds, 1 second or 500 ms; auto for 0."""
    if usec % SECOND:
        return f"{usec / MILLISECOND:.10g} ms"
    return counted(usec // SECOND, "second") if usec else AUTO


@verb(
    "set-tq",
    argument("quantum", QUANTUM, "seconds, 500ms, 2min, or auto: as short as moving memory allows",
             type=quantum),
    GPU)
def set_tq(options: Options) -> None:
    """Set how long a program may keep a GPU while others wait.

    Sets the quantum (TQ) at once. With a short one programs answer sooner, with a long one less
    time goes into moving memory; auto is as short as keeps that at 5 percent of the time or less.
    Where the daemon has a state-dir, as the service has, the quantum outlives a restart, until:
    nvsharectl reset.

        nvsharectl set-tq 30         # half a minute each, on all GPUs
        nvsharectl set-tq 500ms      # half a second
        nvsharectl set-tq auto       # as short as moving memory permits
        nvsharectl set-tq 5 --gpu 1  # five seconds on the second GPU
    """
    _change(options, options.quantum, None, options.gpu)


@verb(
    "anti-thrash",
    argument(
        "mode", "MODE", "auto: when not all programs fit, or all keep the GPU busy; on: always; "
        "off: never", choices=MODES),
    GPU)
def anti_thrash(options: Options) -> None:
    """Set when programs take turns: auto, on or off.

    With auto, programs run at the same time while all of them fit into the GPU's memory and leave
    the GPU idle at times, and else take turns: programs that all keep the GPU busy finish sooner
    one at a time. With on they always take turns, with off never. Use on for programs that each
    keep the GPU busy while they work, such as cells of notebooks, so that one cell need not wait
    for the other; but not beside a program that leaves the GPU idle for moments, which others then
    cannot use.

        nvsharectl anti-thrash auto        # turns only where they are needed
        nvsharectl anti-thrash on --gpu 0  # one at a time on the first GPU
    """
    _change(options, None, options.mode, options.gpu)


@verb(
    "policy",
    argument("policy", "NAME", "; ".join(f"{name}: {words}" for name, words in POLICIES.items()),
             choices=[*POLICIES]),
    GPU)
def policy(options: Options) -> None:
    """Set which waiting program goes next.

    With fair, tenants get equal time, or time by their weights and requests. With fifo, programs go
    in the order in which they began to wait, for one quantum each. With deadline, programs for
    which a deadline is set (nvsharectl limit --deadline) go first, and turns of other programs end
    in time for them; use it for services that answer requests beside programs that train. All
    policies serve programs of higher priority first.

        nvsharectl policy deadline      # on all GPUs
        nvsharectl policy fifo --gpu 1  # first come, first served on the second GPU
    """
    _change(options, None, None, options.gpu, options.policy)


@verb("reset")
def reset(options: Options) -> None:
    """Drop the settings made with set-tq, anti-thrash and policy.

    The settings that nvshared last read hold again for all GPUs: those of
    /etc/nvshare/nvshared.conf, and the defaults for the rest: 30 seconds, auto, fair. Terms set for
    programs and tenants, with limit, weight and suspend, stay.

        nvsharectl reset  # the TQ, the anti-thrash mode and the policy of the file
    """
    with Daemon(options.bus) as daemon:
        daemon.reset_settings()
        try:
            now = daemon.snapshot()
        except NvshareError as error:
            forgotten = "the settings are reset, but the values in force are not known"
            error.message = f"{forgotten}: {error.message}"
            raise
    usec = 0 if now.tq_auto else now.tq_usec
    show(
        options,
        {**_quantum_as_json(usec), "anti_thrash": now.anti_thrash, "policy": now.policy},
        lambda: print(f"The configuration holds again: TQ {_in_words(usec)}, "
                      f"anti-thrash {now.anti_thrash}, policy {now.policy}."))


def act_predecessors(options: Options) -> bool:
    """Carries out -T and -S, flags of the predecessor nvshare, on all GPUs. False: none is given.

    Raises InvalidArgs if a verb follows: a user may take -T and -S for options of the verb."""
    usec, mode = options.set_tq, options.anti_thrash
    commands = [] if usec is None else [
        f"nvsharectl set-tq {quantity.timed(usec) if usec else AUTO}"]
    commands += [] if mode is None else [f"nvsharectl anti-thrash {mode}"]
    if commands and options.verb is not None:
        raise InvalidArgs(f"-T and -S stand alone, and not before {options.verb.name}",
                          f"write: {' && '.join(commands)}")
    if commands:
        _change(options, usec, mode, None)
    return bool(commands)


@verb(
    "preempt",
    argument(
        "gpu", "GPU", "index, UUID or PCI address; not needed where there is one GPU", nargs="?"))
def preempt(options: Options) -> None:
    """End the present turns on a GPU at once, if a program waits.

    The program that has waited longest gets its turn now; holders that must make room queue again.

        nvsharectl preempt 0  # on the first GPU
    """
    with Daemon(options.bus) as daemon:
        indices = [options.gpu] if options.gpu else [str(gpu["Index"]) for gpu in daemon.gpus()]
        if len(indices) != 1:
            raise InvalidArgs(
                f"there are {len(indices)} GPUs here", f"name one: {', '.join(indices) or 'none'}")
        (gpu,) = indices
        daemon.preempt(gpu)
    show(options, {"gpu": gpu},
         lambda: print(f"The turns on GPU {gpu} end now if a program waits."))


@verb("forget-gpu", argument("gpu", "GPU", "index, UUID or PCI address"))
def forget_gpu(options: Options) -> None:
    """Forget a lost GPU, or reported errors of a GPU.

    A GPU that the driver does not find any more stays listed as lost, also after a restart of
    nvshared, until the driver finds it again or this command says that it was taken out for good:
    its settings are dropped, too. An error that the driver has reported of a GPU (Xid) counts until
    the machine boots, or until this command says that the GPU was reset.

        nvsharectl forget-gpu 1  # the second GPU was taken out, or was reset
    """
    with Daemon(options.bus) as daemon:
        index = daemon.gpu(options.gpu)
        daemon.forget_gpu(options.gpu)
    show(options, {"gpu": index},
         lambda: print(f"The faults and errors of GPU {index} are forgotten."))


DRAIN_POLL = 1.0                        # seconds between two polls of the daemon
SETTLED = 5                             # polls with equal results after which --no-wait gives up
SLOW = 30                               # replaces SETTLED while the state of a program is in MOVING
LONGEST = 60.0                          # seconds until --no-wait gives up though results change
EMPTY_WITHIN = 3600.0                   # most seconds until the reply: nvshared moves one by one
MOVING = frozenset({"loading", "draining", "evicting"})


@verb(
    "drain",
    argument("--gpu", "GPU", "empty one GPU (index, UUID or PCI address) instead: move its "
             "programs to other GPUs, or park them; exit status 1 if programs stay"),
    argument(
        "--check", "", "only report: exit status 1 if there are programs that would stand still"),
    argument("--no-wait", "", "admit the programs that fit, and do not wait for the rest: exit "
             "status 1 if programs remain, after a minute at most"))
def drain(options: Options) -> None:
    """Admit waiting programs, so that nvshared can be stopped.

    Without nvshared, a program that holds a GPU keeps it; any other one stands still at its next
    use of the GPU, until nvshared is started again. This command lists such programs, a line each,
    admits all that fit beside the holders, the smallest first, and waits until none is left. No
    program's turn ends meanwhile. apt and dnf do the same before they remove nvshared, but do not
    wait for programs that do not fit. With --gpu, nvshared goes on: the programs of one GPU move to
    GPUs of the same kind, or are parked.

        nvsharectl drain            # then: systemctl stop nvshared
        nvsharectl drain --no-wait  # the same; programs that do not fit are named
        nvsharectl drain --check    # which programs would stand still
        nvsharectl drain --gpu 1    # before maintenance of the second GPU
    """
    if options.gpu is not None:
        if options.check or options.no_wait:
            raise InvalidArgs("--gpu empties a GPU", "leave out --check and --no-wait")
        with Daemon(options.bus, EMPTY_WITHIN) as daemon, watching(
                options, departures_from(options.gpu)):
            try:
                stay = daemon.drain_gpu(options.gpu)
            except KeyboardInterrupt:
                raise Interrupted(
                    "interrupted, but nvshared may go on with programs that it moves now",
                    f"see: nvsharectl clients --gpu {options.gpu}") from None
        if stay:
            raise NvshareError(
                f"{counted(len(stay), 'program')} could not leave GPU {options.gpu}: "
                + "; ".join(f"{pid}: {why}" for pid, why in stay),
                left=[{"pid": pid, "why": why} for pid, why in stay])
        show(options, {"left": []}, lambda: print(f"No program is on GPU {options.gpu} any more."))
        return
    if options.check and options.no_wait:
        raise InvalidArgs("--check admits no program", "leave out --no-wait")
    reported: dict[int, str] = {}
    settled, before, whole = 0, None, 0
    end = time.monotonic() + LONGEST
    with Daemon(options.bus) as daemon, Progress(options) as progress:
        for snapshot in snapshots(daemon, DRAIN_POLL):
            left = [one for one in _not_lost(snapshot) if one.state != "running"]
            if not options.json:
                _report(left, reported, progress)
            if not left:
                break
            if options.check:
                raise _error(
                    left, "admit the programs that fit, and wait for the rest: nvsharectl drain")
            if before is None:
                daemon.drain()
            now = [(one.id, one.state, one.swapped) for one in left]
            settled, before = settled + 1 if now == before else 0, now
            moving = [one for one in left if one.state in MOVING]
            patience = SLOW if moving else SETTLED
            if options.no_wait and (settled >= patience or time.monotonic() >= end):
                raise _error(left, "end these programs or the holders of their GPU, or wait: "
                             "nvsharectl drain")
            if settled == patience and not options.json:
                progress.say("nvsharectl: waits until these programs or the holders of their GPU "
                             "end; Ctrl-C gives up", sys.stderr)
            whole = max(whole, len(left))
            progress.show(Picture([
                Work(tables.process(one), one.state, max(0, one.loading - one.swapped), one.loading)
                for one in moving], whole - len(left), whole))
    show(options, {"left": []}, lambda: print("nvshared can be stopped: no program needs it now."))


def _report(left: list[ClientSnapshot], reported: dict[int, str], progress: Progress) -> None:
    """Prints each program when it joins `left`, and again when it is admitted or has ended."""
    for one in left:
        if one.id not in reported:
            reported[one.id] = name = tables.process(one)
            memory = f", {tables.size(one.swapped)} in host memory" if one.swapped else ""
            state = "" if one.state == "idle" else f", {one.state}"
            progress.say(f"{name} on GPU {one.gpu}{memory}{state}: {tables.command(one)}")
    for id in reported.keys() - {one.id for one in left}:
        progress.say(f"{reported.pop(id)} goes on without nvshared, or has ended")


def _error(left: list[ClientSnapshot], hint: str) -> NvshareError:
    return NvshareError(f"{counted(len(left), 'program')} would stand still without nvshared", hint,
                        left=[{"pid": one.pid, "gpu": one.gpu} for one in left])


PATIENCE = 600.0                        # most seconds until nvshared replies: evictions may be slow


def _for_each_client(options: Options, become: str, data: dict[str, object],
                     put: Callable[[Daemon, int], None], result: str) -> None:
    """Calls `put` for each client of the process. `become`: such as "moved", for errors."""
    with Daemon(options.bus, PATIENCE) as daemon, watching(options, changes_of(options.pid)):
        carry_out([
            SettingStep(become, {"gpu": gpu, **data}, partial(put, daemon, client))
            for client, gpu in daemon.clients_of(options.pid, None).items()])
    show(options, {"pid": options.pid, **data}, lambda: print(result))


@verb("park", PID)
def park(options: Options) -> None:
    """Take a program off its GPU until it uses the GPU again.

    Moves the program's memory to the host and has the driver take its context off the GPU, too,
    which is 0.5 to 3 GiB. The program goes on, and wakes by itself when it calls the driver. The
    setting deep-idle does so with programs that are idle for long. Needs driver 570 or later.
    Programs with managed memory, memory shared with other processes, several GPUs or a gang are
    not parked.

        nvsharectl park 4711  # takes process 4711 off its GPU
    """
    _for_each_client(options, "parked", {}, Daemon.park,
            f"Process {options.pid} is parked: its memory and context are off the GPU.")


@verb(
    "move",
    PID,
    argument("--to", "GPU", "index, UUID or PCI address of a GPU of the same kind", required=True,
             dest="target"))
def move(options: Options) -> None:
    """Move a program to another GPU.

    Parks the program and restores it on another GPU of the same kind, under the same number as
    before. If the driver does not restore it there, it goes on where it was.

        nvsharectl move 4711 --to 1  # to the second GPU
    """
    _for_each_client(options, "moved", {"to": options.target},
            lambda daemon, client: daemon.move(client, options.target),
            f"Process {options.pid} is on GPU {options.target} now.")
