# SPDX-License-Identifier: Apache-2.0
"""nvsharectl weight: which share of the time a program gets."""

import argparse
from functools import partial

from nvshared.cli.output import show
from nvshared.cli.steps import Step, carry_out, where
from nvshared.cli.verb import Options, Verb, add_client, whole
from nvshared.control import Daemon
from nvshared.errors import ExitCode, InvalidArgs

HEAVIEST = 1000


def _weight(text: str) -> int:
    if weight := whole(text, HEAVIEST):
        return weight
    raise InvalidArgs(
        f"the weight cannot be {text!r}", f"give a whole number from 1 to {HEAVIEST}"
    )


def _configure(parser: argparse.ArgumentParser) -> None:
    add_client(parser)
    parser.add_argument("weight", metavar="WEIGHT", type=_weight, help="1 to 1000; usual is 100")


def _act(options: Options) -> ExitCode:
    with Daemon(options.bus) as client:
        carry_out([
            Step(
                f"the weight of process {options.pid}", {"gpu": gpu, "weight": options.weight},
                partial(client.set_weight, one, options.weight),
            )
            for one, gpu in client.clients_of(options.pid, options.gpu).items()
        ])
    show(
        options, {"pid": options.pid, "gpu": options.gpu, "weight": options.weight},
        lambda: print(
            f"The weight of process {options.pid}{where(options.gpu)} is {options.weight}."
        ),
    )
    return ExitCode.OK


VERB = Verb(
    name="weight",
    summary="set which share of the time a program gets",
    description=(
        "Programs that take turns share the time in proportion to their weights. Each begins with "
        "100; one with 200 gets twice the time of one with 100. A weight lasts until the program "
        "ends."
    ),
    examples=(("nvsharectl weight 4711 200", "twice the usual share"),),
    configure=_configure,
    act=_act,
)
