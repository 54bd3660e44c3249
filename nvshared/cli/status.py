# SPDX-License-Identifier: Apache-2.0
"""nvsharectl status, clients, tenants and top: show GPUs, programs and their tenants."""

import json
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from nvshared.cli.verb import (
    Options,
    argument,
    container_names,
    draw,
    drawable,
    named_tenant,
    show,
    show_table,
    tenant,
    verb,
)
from nvshared.control import Daemon
from nvshared.control.snapshot import ClientSnapshot, TenantSnapshot
from nvshared.errors import InvalidArgs, NoSuchGPU
from nvshared.quantity import counted
from nvshared.tui import tables
from nvshared.tui.tables import CLIENTS, TENANT_COLUMNS, duration, gpu_columns, plain, size


@verb("status")
def status(options: Options) -> None:
    """The GPUs and the programs that use them.

    Shows each GPU: figures of nvidia-smi, the quantum (TQ), the anti-thrash mode and a policy other
    than fair (Mode), the program that holds it, and how many wait. Then each program: its memory,
    on the card and in host memory, and how long it has held the GPU and waited for it, also before
    nvshared was restarted. Then faults of the GPUs and of nvshared, with remedies. A narrow
    terminal shows fewer columns, a pipe all of them.

        nvsharectl status                                 # a table
        nvsharectl status --json | jq '.gpus[0].holders'  # the same as data
        watch nvsharectl status  # every two seconds; nvsharectl top shows more
    """
    with Daemon(options.bus) as daemon:
        now = daemon.snapshot()

    def text() -> None:
        show_table(gpu_columns(now), now.gpus)
        print()
        if now.clients:
            show_table(CLIENTS, _with_names(now.clients))
        else:
            print("No program uses a GPU through nvshare.")
        if now.disk and not now.disk_fault:
            print(f"\n{size(now.disk_used)} of {size(now.disk_size)} are used in {now.disk}.")
        for fault in now.all_faults:
            print(f"\n{_sentence(fault.words)}\n→ {_sentence(fault.remedy)}")

    show(options, now.as_dict(), text)


def _sentence(words: str) -> str:
    """With a capital letter, unless a name begins the sentence, and a full stop."""
    return (words if words.startswith("nv") else words[:1].upper() + words[1:]) + "."


def _with_names(clients: Sequence[ClientSnapshot]) -> list[ClientSnapshot]:
    names = container_names(one.tenant for one in clients)
    return [one._replace(tenant=names.get(one.tenant, one.tenant)) for one in clients]


@verb("clients", argument("--gpu", "GPU", "only the programs on this GPU"))
def clients(options: Options) -> None:
    """The programs that use a GPU.

    Shows a line for each program on each GPU: its memory (MEM), how much of it is on the card
    (RESIDENT), in host memory or on another card (SWAPPED), its state, and how long it has held
    the GPU and waited for it, also before nvshared was restarted. BORROWED and ON DISK are its
    memory on another card and on the disk. IDLE is the time without work since its turn. LIMITS are
    its terms: memory limit, share of the time in percent, weight (w200). PIN-REASON is why its
    memory is pinned on the GPU: its work does not end (undrained), the library may not see its work
    (unseen), or a device or another library has its memory (given). A narrow terminal shows fewer
    columns, a pipe all of them.

        nvsharectl clients                            # all programs
        nvsharectl clients --gpu 0                    # the programs of one GPU
        nvsharectl clients | awk 'NR > 1 {print $2}'  # their process ids
    """
    with Daemon(options.bus) as daemon:
        index = None if options.gpu is None else daemon.gpu(options.gpu)
        now = daemon.snapshot()
    if index is not None and index not in {gpu.index for gpu in now.gpus}:
        raise NoSuchGPU(f"GPU {index} has just gone")
    chosen = [one for one in now.clients if index is None or one.gpu == index]
    wanted = {one.id for one in chosen}
    data = [one for one in now.as_dict()["clients"] if one["id"] in wanted]
    show(options, {"clients": data}, lambda: show_table(CLIENTS, _with_names(chosen)))


@verb(
    "tenants",
    argument(
        "--explain", "TENANT", "show the source of each term of one tenant, which need not have "
        "programs yet", type=tenant))
def tenants(options: Options) -> None:
    """The tenants of the programs, and their terms.

    Shows the pods, jobs, containers, systemd units and users that the programs belong to, and other
    tenants with terms. A program is under the terms of each of its tenants. LIMITS are the terms
    that hold for all programs of a tenant together: memory on each GPU, host memory (h64.0G), on
    the disk (d50.0G), on other GPUs (n2.0G, n off), share of the time in percent at most and at
    least (r30%), weight (w200), priority, deadline (in50ms), suspended, saved at shutdown (saved).
    FROM is the source of the terms: by hand, with nvsharectl limit, weight and priority, a pod's
    annotation or claim, a SLURM job, or a rule of the configuration, see nvshared.conf(5). A
    container goes by its name; a user's own container has the name in front of its id where Docker
    or Podman tells you that name.

        nvsharectl tenants                       # all tenants
        nvsharectl tenants --explain user:alice  # the source of each term
    """
    with Daemon(options.bus) as daemon:
        if options.explain is not None:
            one = daemon.tenant(named_tenant(daemon, options.explain))
            show(options, one.as_dict(), lambda: _explain(one))
            return
        found = daemon.tenants()

    def text() -> None:
        if found:
            names = container_names(one.name for one in found)
            show_table(TENANT_COLUMNS, [
                one._replace(name=names.get(one.name, one.name)) for one in found])
        else:
            print("No program uses a GPU through nvshared, and no tenant has terms set by hand. "
                  "Rules show with: nvsharectl tenants --explain TENANT")

    show(options, {"tenants": [one.as_dict() for one in found]}, text)


def _explain(one: TenantSnapshot) -> None:
    figures = "no program uses a GPU now"
    if one.programs:
        figures = (
            f"{counted(one.programs, 'program')}, {size(one.allocated + one.pinned)} of memory, "
            f"{size(one.resident + one.pinned)} of it on GPUs, held for {duration(one.held_usec)}")
    print(f"{one.name}: {figures}.")
    in_force = [term for term in one.terms if term is one.holding(term.name)]
    others = [term for term in one.terms if term not in in_force]
    print("\n" + plain(tables.TERM_COLUMNS, in_force) if in_force else
          f"No term is set for {one.name}.")
    if others:
        print("\nOverridden by the terms above:\n\n" + plain(tables.TERM_COLUMNS, others))
    if one.within:
        print(f"\nThe terms of {', '.join(one.within)} also apply to its programs.")


SHORTEST = 0.1                          # seconds between polls; a shorter time would only cost work
LONGEST = 3600.0


def _interval(text: str) -> float:
    with suppress(ValueError):
        if SHORTEST <= (seconds := float(text)) <= LONGEST:
            return seconds
    raise InvalidArgs(
        f"the interval cannot be {text!r}", f"give seconds from {SHORTEST} to {LONGEST:.0f}")


@verb(
    "top",
    argument("-i --interval", "SECONDS", "time between two snapshots (default: 1)",
             type=_interval, default=1.0))
def top(options: Options) -> None:
    """Watch the GPUs, their programs, and memory move.

    Shows each GPU, live: how full the card is, and for the last minutes its use, the number of
    waiting programs, and the memory loaded and evicted. Below are the programs: the holders of a
    GPU (▶), memory on the card (█) and in host memory (▒), how long each has waited and about how
    much longer; and programs that use a GPU without sharing it. The arrows select a program, Enter
    shows its tenants, memory, terms with their sources, and last turns. m, c, w, s, r and p limit
    its memory or time, set its weight, suspend, resume and preempt, and ask first; Tab extends the
    command to all programs of its tenant. / filters, < and > sort, ? shows all keys, q quits. A
    mouse selects, sorts and scrolls. A small terminal shows less of each GPU; one that cannot be
    drawn on (TERM=dumb) gets each picture below the last.

        nvsharectl top         # once a second
        nvsharectl top -i 0.2  # five times a second
        nvsharectl top --json  # one line of JSON each time, for a program
    """
    if not options.json and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InvalidArgs("top needs a terminal", "for a single snapshot, use: nvsharectl status")
    if not options.json and drawable():
        from nvshared.tui.live import watch

        watch(options.bus, options.interval)
        return
    past = None
    with Daemon(options.bus) as daemon:
        while True:                     # until the reader closes the pipe, or Ctrl-C
            snapshot = daemon.snapshot()
            if options.json:
                print(json.dumps(snapshot.as_dict()), flush=True)
            else:
                from nvshared.tui.screen import Dashboard
                from nvshared.tui.state import Past

                past = (past or Past()).after(snapshot, time.monotonic())
                draw(Dashboard(snapshot, past))
            time.sleep(options.interval)
