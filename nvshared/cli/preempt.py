# SPDX-License-Identifier: Apache-2.0
"""nvsharectl preempt: let the next program have its turn now."""

import argparse

from nvshared.cli.output import show
from nvshared.cli.verb import Options, Verb
from nvshared.control import Daemon


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("gpu", metavar="GPU", help="index, UUID or PCI address")


def _act(options: Options) -> None:
    with Daemon(options.bus) as daemon:
        daemon.preempt(options.gpu)
    show(
        options, {"gpu": options.gpu},
        lambda: print(f"The turns on GPU {options.gpu} end now, if somebody waits."),
    )


VERB = Verb(
    name="preempt",
    summary="end the present turns on a GPU at once, if somebody waits",
    description=(
        "The program that has waited longest gets its turn now. The programs that must make room "
        "for it queue again."
    ),
    examples=(("nvsharectl preempt 0", "on the first GPU"),),
    configure=_configure,
    act=_act,
)
