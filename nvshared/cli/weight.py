# SPDX-License-Identifier: Apache-2.0
"""nvsharectl weight: which share of the time a program gets."""

import argparse

from nvshared.cli.output import show
from nvshared.cli.steps import change, where
from nvshared.cli.tenant import set_terms
from nvshared.cli.verb import Options, Verb, add_target, term
from nvshared.names import USUAL_TERMS
from nvshared.quantity import weight


def _configure(parser: argparse.ArgumentParser) -> None:
    add_target(parser)
    parser.add_argument(
        "weight", metavar="WEIGHT|none", type=term("weight", weight),
        help="1 to 1000; usual is 100; none: what was set is taken back",
    )


def _act(options: Options) -> None:
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


VERB = Verb(
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
    configure=_configure,
    act=_act,
)
