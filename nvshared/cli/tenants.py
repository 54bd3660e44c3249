# SPDX-License-Identifier: Apache-2.0
"""nvsharectl tenants: whom the programs belong to, and what is set for these."""

import argparse
from typing import TYPE_CHECKING

from nvshared.cli.output import show, show_table
from nvshared.cli.verb import Options, Verb, tenant
from nvshared.control import Daemon
from nvshared.quantity import counted
from nvshared.tui.quantities import duration, size
from nvshared.tui.tables import TENANTS, plain
from nvshared.tui.terms import TERMS

if TYPE_CHECKING:
    from nvshared.control.tenants import Tenant

def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--explain", metavar="TENANT", type=tenant,
        help="say where each term of one tenant comes from, also of one that is yet to come",
    )


def _act(options: Options) -> None:
    with Daemon(options.bus) as daemon:
        if options.explain is not None:
            one = daemon.tenant(options.explain)
            show(options, one.as_dict(), lambda: _explain(one))
            return
        found = daemon.tenants()
    show(options, {"tenants": [one.as_dict() for one in found]}, lambda: _print(found))


def _print(found: "list[Tenant]") -> None:
    if found:
        show_table(TENANTS, found)
    else:
        print("No program uses a GPU through nvshare, and nothing is set for a tenant.")


def _explain(one: "Tenant") -> None:
    figures = "no program uses a GPU now"
    if one.programs:
        figures = (
            f"{counted(one.programs, 'program')}, {size(one.allocated + one.pinned)} of memory, "
            f"{size(one.resident + one.pinned)} of it on GPUs, held for {duration(one.held_usec)}"
        )
    print(f"{one.name}: {figures}.")
    in_force = [term for term in one.terms if term is one.holding(term.name)]
    others = [term for term in one.terms if term not in in_force]
    print("\n" + plain(TERMS, in_force) if in_force else "Nothing is set for it.")
    if others:
        print("\nWithout these, there would hold:\n\n" + plain(TERMS, others))
    if one.within:
        print(f"\nIts programs are also under what is set for {', '.join(one.within)}.")


VERB = Verb(
    name="tenants",
    summary="whom the programs belong to, and what is set for these",
    description=(
        "Shows the pods, jobs, containers, systemd units and users that the programs belong to, "
        "and those for which something is set. A program is under what is set for each of its "
        "tenants. LIMITS shows what holds for all programs of a tenant together: memory on each "
        "GPU, host memory (h64.0G), share of the time in percent at most and in any case (r30%), "
        "weight (w200), priority. FROM shows whether it was set by hand, "
        "with nvsharectl limit, weight and priority, by a pod's annotation or claim, by a SLURM "
        "job, or by a rule of the configuration, see nvshared.conf(5)."
    ),
    examples=(
        ("nvsharectl tenants", "all of them"),
        ("nvsharectl tenants --explain user:alice", "which rule set what"),
    ),
    configure=_configure,
    act=_act,
)
