# SPDX-License-Identifier: Apache-2.0
"""nvsharectl limit: how much of a GPU a program may have, of its memory and of its time."""

import argparse
from functools import partial

from nvshared.cli.output import show
from nvshared.cli.steps import Step, carry_out, where
from nvshared.cli.verb import Options, Verb, add_client, whole
from nvshared.control import Daemon
from nvshared.errors import InvalidArgs
from nvshared.quantity import size, sized

NO_LIMIT = 100                          # percent of the time
LARGEST = (1 << 64) - 1                 # bytes; what a D-Bus `t` holds


def _bytes(text: str) -> int:
    if text == "none":
        return 0
    try:
        if 0 < (value := size(text)) <= LARGEST:
            return value
        reason = "that is none at all; to set no limit, give none"
        if value:
            reason = f"give {LARGEST} bytes at most, or none"
    except ValueError as error:
        reason = f"{error}, or none"
    raise InvalidArgs(f"the memory limit cannot be {text!r}", reason)


def _percent(text: str) -> int:
    if text == "none":
        return NO_LIMIT
    right = f"give a percentage of the time from 1 to {NO_LIMIT}, or none"
    wrong = f"the compute limit cannot be {text!r}"
    return whole(text.removesuffix("%"), NO_LIMIT, wrong, right)


def _configure(parser: argparse.ArgumentParser) -> None:
    add_client(parser)
    parser.add_argument(
        "--memory", metavar="SIZE", type=_bytes,
        help="how much it may allocate, such as 20GiB; none: no limit",
    )
    parser.add_argument(
        "--compute", metavar="PERCENT", type=_percent,
        help="its greatest share of the GPU's time, 1 to 100; none: no limit",
    )


def _act(options: Options) -> None:
    if options.memory is None and options.compute is None:
        raise InvalidArgs(
            "there is nothing to limit", "give --memory SIZE, --compute PERCENT, or both"
        )
    with Daemon(options.bus) as daemon:
        found = daemon.clients_of(options.pid, options.gpu)
        carry_out([
            Step(
                f"the {name} limit", {"gpu": gpu, f"{name}_limit": value}, partial(put, one, value)
            )
            for name, put, value in (
                ("memory", daemon.set_memory_limit, options.memory),
                ("compute", daemon.set_compute_limit, options.compute),
            )
            if value is not None for one, gpu in found.items()
        ])
    limits = {"memory_limit": options.memory, "compute_limit": options.compute}
    show(
        options,
        {"pid": options.pid, "gpu": options.gpu}
        | {name: limit for name, limit in limits.items() if limit is not None},
        lambda: _print(options),
    )


def _print(options: Options) -> None:
    if options.memory is not None:
        limit = sized(options.memory) if options.memory else "as much as there is"
        print(f"Process {options.pid} may allocate {limit}{where(options.gpu)}.")
    if options.compute is not None:
        limit = f"at most {options.compute} % of the time"
        if options.compute == NO_LIMIT:
            limit = "all of the time that others leave it"
        which = "the GPU" if options.gpu is None else f"GPU {options.gpu}"
        print(f"Process {options.pid} may use {which} {limit}.")


VERB = Verb(
    name="limit",
    summary="limit how much memory and time of a GPU a program may have",
    description=(
        "With --memory, the GPU is that large for the program from then on: allocations beyond it "
        "fail as out of memory. The program keeps what it has already. With --compute, it uses "
        "the GPU for no more than that share of the time, whether others want it or not. A limit "
        "lasts until the program ends. You may limit your own programs; for other users' programs "
        "you need permission."
    ),
    examples=(
        ("nvsharectl limit 4711 --memory 20GiB", "at most 20 GiB on each GPU it uses"),
        ("nvsharectl limit 4711 --compute 50", "at most half of the time"),
        ("nvsharectl limit 4711 --memory none", "as much as the GPU has"),
    ),
    configure=_configure,
    act=_act,
)
