# SPDX-License-Identifier: Apache-2.0
"""nvsharectl preempt: let the next program have its turn now."""

import argparse

from nvshared.cli.output import show
from nvshared.cli.verb import Options, Verb
from nvshared.control import Daemon
from nvshared.errors import InvalidArgs


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "gpu", metavar="GPU", nargs="?",
        help="index, UUID or PCI address; not needed where there is one GPU",
    )


def _act(options: Options) -> None:
    with Daemon(options.bus) as daemon:
        gpu = options.gpu or _only(daemon)
        daemon.preempt(gpu)
    show(
        options, {"gpu": gpu},
        lambda: print(f"The turns on GPU {gpu} end now, if somebody waits."),
    )


def _only(daemon: Daemon) -> str:
    """The index of the only GPU. Raises InvalidArgs if there are several."""
    indices = [str(gpu["Index"]) for gpu in daemon.gpus()]
    if len(indices) != 1:
        raise InvalidArgs(
            f"there are {len(indices)} GPUs here", f"name one: {', '.join(indices) or 'none'}")
    return indices[0]


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
