# SPDX-License-Identifier: Apache-2.0
"""nvsharectl limit: how much memory of a GPU a program may have."""

import argparse

from nvshared.cli.output import show
from nvshared.cli.verb import Options, Verb, add_client
from nvshared.client import Client
from nvshared.errors import ExitCode, InvalidArgs
from nvshared.quantity import size


def _bytes(text: str) -> int:
    if text == "none":
        return 0
    try:
        if (value := size(text)) > 0:
            return value
        reason = "that is none at all; to set no limit, give none"
    except ValueError as error:
        reason = f"{error}, or none"
    raise InvalidArgs(f"the memory limit cannot be {text!r}", reason)


def _configure(parser: argparse.ArgumentParser) -> None:
    add_client(parser)
    parser.add_argument(
        "--memory", metavar="SIZE", type=_bytes, required=True,
        help="such as 20GiB, or none to lift the limit",
    )


def _act(options: Options) -> ExitCode:
    with Client(options.bus) as client:
        for one in client.clients_of(options.pid, options.gpu):
            client.set_memory_limit(one, options.memory)
    limit = f"{options.memory} bytes" if options.memory else "as much as there is"
    show(
        options, {"pid": options.pid, "gpu": options.gpu, "memory_limit": options.memory},
        lambda: print(f"Process {options.pid} may allocate {limit}."),
    )
    return ExitCode.OK


VERB = Verb(
    name="limit",
    summary="limit how much memory of a GPU a program may have",
    description=(
        "From then on the GPU is as large as that for the program, and what it tries to allocate "
        "beyond fails as out of memory. What it has already it keeps. The limit lasts until the "
        "program or nvshared ends."
    ),
    examples=(
        ("nvsharectl limit 4711 --memory 20GiB", "at most 20 GiB on each GPU it uses"),
        ("nvsharectl limit 4711 --memory none", "as much as the GPU has"),
    ),
    configure=_configure,
    act=_act,
)
