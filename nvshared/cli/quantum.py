# SPDX-License-Identifier: Apache-2.0
"""nvsharectl set-tq: how long a program may keep a GPU while others wait."""

import argparse

from nvshared.cli.output import show
from nvshared.cli.verb import QUANTUM, Options, Verb, add_gpu, quantum
from nvshared.control import Daemon
from nvshared.quantity import counted
from nvshared.units import MILLISECOND, SECOND


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "quantum", metavar=QUANTUM, type=quantum,
        help="seconds, or auto: as short as moving memory allows",
    )
    add_gpu(parser)


def _act(options: Options) -> None:
    tq, gpu = options.quantum, options.gpu
    with Daemon(options.bus) as daemon:
        daemon.set_tq(tq, gpu)
    show(options, {"tq": tq, "gpu": gpu}, lambda: print(sentence(tq, gpu)))


def sentence(tq: int | str, gpu: str | None) -> str:
    """What then holds."""
    where = "all GPUs" if gpu is None else f"GPU {gpu}"
    return f"The quantum of {where} is {tq if isinstance(tq, str) else in_words(tq * SECOND)}."


def in_words(microseconds: int) -> str:
    """30 seconds; 1 second; 500 ms."""
    seconds, rest = divmod(microseconds, SECOND)
    return f"{microseconds / MILLISECOND:.10g} ms" if rest else counted(seconds, "second")


VERB = Verb(
    name="set-tq",
    summary="set how long a program may keep a GPU while others wait",
    description=(
        "Sets the quantum (TQ) in seconds. With a short one programs answer sooner, with a long "
        "one less time goes into moving memory. With auto it is as short as keeps moving memory "
        "at 5 percent of the time or less. It holds at once. Where the daemon has a state-dir, as "
        "the service has, it outlives a restart, until: nvsharectl reset."
    ),
    examples=(
        ("nvsharectl set-tq 30", "half a minute each, on all GPUs"),
        ("nvsharectl set-tq auto", "what suits the programs that there are"),
        ("nvsharectl set-tq 5 --gpu 1", "five seconds on the second GPU"),
    ),
    configure=_configure,
    act=_act,
)
