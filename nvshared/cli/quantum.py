# SPDX-License-Identifier: Apache-2.0
"""nvsharectl set-tq: how long a program may keep a GPU while others wait."""

import argparse

from nvshared.cli.output import show
from nvshared.cli.verb import Options, Verb, add_gpu, seconds
from nvshared.client import Client
from nvshared.errors import ExitCode


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("seconds", metavar="SECONDS", type=seconds, help="the quantum")
    add_gpu(parser)


def _act(options: Options) -> ExitCode:
    change(options, options.seconds, options.gpu)
    return ExitCode.OK


def change(options: Options, tq: int, gpu: str | None) -> None:
    """Sets it and says so."""
    with Client(options.bus) as client:
        client.set_tq(tq, gpu)
    where = "all GPUs" if gpu is None else f"GPU {gpu}"
    show(
        options, {"tq": tq, "gpu": gpu},
        lambda: print(f"The quantum of {where} is {tq} seconds."),
    )


VERB = Verb(
    name="set-tq",
    summary="set how long a program may keep a GPU while others wait",
    description=(
        "Sets the quantum (TQ) in seconds. Shorter ones let programs answer sooner, longer ones "
        "spend less time on moving memory. It holds at once and outlives a restart, until: "
        "nvsharectl reset."
    ),
    examples=(
        ("nvsharectl set-tq 30", "half a minute each, on all GPUs"),
        ("nvsharectl set-tq 5 --gpu 1", "five seconds on the second GPU"),
    ),
    configure=_configure,
    act=_act,
)
