# SPDX-License-Identifier: Apache-2.0
"""nvsharectl limit: how much of a GPU, of its memory and time, a program or tenant may have."""

import argparse
from functools import partial
from typing import TYPE_CHECKING

from nvshared.cli.output import show
from nvshared.cli.steps import Step, carry_out, where
from nvshared.cli.tenant import set_terms, tightest
from nvshared.cli.verb import Options, Verb, add_target, term
from nvshared.control import Daemon
from nvshared.errors import InvalidArgs
from nvshared.names import TENANT_KINDS, USUAL_TERMS
from nvshared.quantity import limit, share, sized
from nvshared.tui.terms import restriction

if TYPE_CHECKING:
    from nvshared.control.tenants import Tenant

UNLIMITED = USUAL_TERMS["compute-limit"]


def _configure(parser: argparse.ArgumentParser) -> None:
    add_target(parser)
    parser.add_argument(
        "--memory", metavar="SIZE", type=term("memory limit", limit),
        help="how much it may allocate, such as 20GiB; none: what was set is taken back",
    )
    parser.add_argument(
        "--host-memory", metavar="SIZE", type=term("host memory limit", limit),
        help="of a tenant: how much host memory what may leave GPUs may need, on all GPUs "
        "together; none: what was set is taken back",
    )
    parser.add_argument(
        "--compute", metavar="PERCENT", type=term("compute limit", share),
        help="its greatest share of the GPU's time, 1 to 100; none: what was set is taken back",
    )
    parser.add_argument(
        "--request", metavar="PERCENT", type=term("compute request", share),
        help="of a tenant: the share of the GPU's time that it gets whenever it wants it, 1 to "
        "100, whatever others' weights are; none: what was set is taken back",
    )


def _act(options: Options) -> None:
    wanted = {
        "memory": options.memory, "host-memory": options.host_memory,
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
        lambda: _print(pid, gpu, memory, compute, around),
    )


def _print(
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
    for name, value in (("memory", memory), ("compute-limit", compute)):
        outer = None if value is None else tightest(around, name, value)
        if outer is not None:
            print(restriction(outer, name))


VERB = Verb(
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
    configure=_configure,
    act=_act,
)
