# SPDX-License-Identifier: Apache-2.0
"""nvsharectl anti-thrash: when programs take turns."""

import argparse

from nvshared.cli.output import show
from nvshared.cli.verb import MODES, Options, Verb, add_gpu
from nvshared.control import Daemon


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "mode", metavar="MODE", choices=MODES,
        help="auto: when not all programs fit; on: always; off: never",
    )
    add_gpu(parser)


def _act(options: Options) -> None:
    mode, gpu = options.mode, options.gpu
    with Daemon(options.bus) as daemon:
        daemon.set_anti_thrash(mode, gpu)
    show(options, {"anti_thrash": mode, "gpu": gpu}, lambda: print(sentence(mode, gpu)))


def sentence(mode: str, gpu: str | None) -> str:
    """What then holds."""
    where = "all GPUs" if gpu is None else f"GPU {gpu}"
    return f"The anti-thrash mode of {where} is {mode}."


VERB = Verb(
    name="anti-thrash",
    summary="set when programs take turns: auto, on or off",
    description=(
        "With auto, programs run at the same time while all of them fit into the GPU's memory, "
        "and take turns when they do not. With on they always take turns, with off never. Use on "
        "for programs that each keep the GPU busy while they work, such as cells of notebooks: "
        "one cell then need not wait for the other. Do not use it beside a program that leaves "
        "the GPU idle for moments: others cannot use those moments."
    ),
    examples=(
        ("nvsharectl anti-thrash auto", "turns only where they are needed"),
        ("nvsharectl anti-thrash on --gpu 0", "one at a time on the first GPU"),
    ),
    configure=_configure,
    act=_act,
)
