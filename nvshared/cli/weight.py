# SPDX-License-Identifier: Apache-2.0
"""nvsharectl weight: which share of the time a program gets."""

import argparse

from nvshared.cli.output import show
from nvshared.cli.steps import change, where
from nvshared.cli.verb import Options, Verb, add_client, whole

HEAVIEST = 1000


def _weight(text: str) -> int:
    right = f"give a whole number from 1 to {HEAVIEST}"
    return whole(text, HEAVIEST, f"the weight cannot be {text!r}", right)


def _configure(parser: argparse.ArgumentParser) -> None:
    add_client(parser)
    parser.add_argument("weight", metavar="WEIGHT", type=_weight, help="1 to 1000; usual is 100")


def _act(options: Options) -> None:
    data = change(
        options, f"the weight of process {options.pid}", {"weight": options.weight},
        lambda daemon, client: daemon.set_weight(client, options.weight),
    )
    place = where(options.gpu)
    show(options, data, lambda: print(
        f"The weight of process {options.pid}{place} is {options.weight}."
    ))


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
