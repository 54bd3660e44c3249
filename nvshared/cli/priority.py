# SPDX-License-Identifier: Apache-2.0
"""nvsharectl priority: who goes first where programs take turns."""

import argparse

from nvshared.cli.tenant import set_terms
from nvshared.cli.verb import Options, Verb, tenant
from nvshared.names import PRIORITIES, TENANT_KINDS


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target", metavar="TENANT", type=tenant,
        help=f"whose programs, as nvsharectl tenants shows it: {TENANT_KINDS}",
    )
    parser.add_argument(
        "priority", choices=[*PRIORITIES, "none"],
        help="none: what was set is taken back",
    )


def _act(options: Options) -> None:
    options.gpu = None
    set_terms(options, options.target, {"priority": PRIORITIES.get(options.priority, 0)})


VERB = Verb(
    name="priority",
    summary="set which tenants go first",
    description=(
        "Where programs take turns, those of high priority go before all others who wait. Those in "
        "the background get the GPU only while nobody else wants it, and are stopped as soon as "
        "somebody does; if others are always busy, they never run. Weights count among those of "
        "one priority. A program is in the background if one of its tenants is. Where programs fit "
        "on the GPU together, no turns are taken, and one in the background submits nothing while "
        "another has work on the GPU; what it submitted before takes about 300 microseconds, or is "
        "one kernel. It holds until it is taken back; then the configuration holds again."
    ),
    examples=(
        ("nvsharectl priority unit:alice/train.service background", "when nobody else needs it"),
        ("nvsharectl priority unit:inference.service high", "before others who wait"),
        ("nvsharectl priority unit:inference.service none", "as the configuration says"),
    ),
    configure=_configure,
    act=_act,
)
