# SPDX-License-Identifier: Apache-2.0
"""nvsharectl set-tq: how long a program may keep a GPU while others wait."""

import argparse

from nvshared.cli.output import counted, show
from nvshared.cli.verb import QUANTUM, Options, Verb, add_gpu, quantum
from nvshared.control import Daemon
from nvshared.errors import ExitCode

SECOND = 1_000_000                      # microseconds


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "quantum", metavar=QUANTUM, type=quantum,
        help="the quantum; auto: as short as moving memory lets it be",
    )
    add_gpu(parser)


def _act(options: Options) -> ExitCode:
    tq, gpu = options.quantum, options.gpu
    with Daemon(options.bus) as client:
        put(client, tq, gpu)
    show(options, {"tq": tq, "gpu": gpu}, lambda: print(sentence(tq, gpu)))
    return ExitCode.OK


def put(client: Daemon, tq: int | str, gpu: str | None) -> None:
    """Sets it, to seconds or "auto"."""
    if isinstance(tq, int):
        client.set_tq(tq, gpu)
    else:
        client.set_tq_auto(gpu)


def sentence(tq: int | str, gpu: str | None) -> str:
    """What then holds."""
    where = "all GPUs" if gpu is None else f"GPU {gpu}"
    return f"The quantum of {where} is {tq if isinstance(tq, str) else in_words(tq * SECOND)}."


def in_words(microseconds: int) -> str:
    """30 seconds; 1 second; 500 ms."""
    seconds, rest = divmod(microseconds, SECOND)
    return f"{microseconds / 1000:.10g} ms" if rest else counted(seconds, "second")


VERB = Verb(
    name="set-tq",
    summary="set how long a program may keep a GPU while others wait",
    description=(
        "Sets the quantum (TQ) in seconds. Shorter ones let programs answer sooner, longer ones "
        "spend less time on moving memory. With auto it is as short as it may be if moving memory "
        "shall take 5 percent of the time at most. It holds at once and, where the daemon has a "
        "state-dir, as the service does, outlives its restart, until: "
        "nvsharectl reset."
    ),
    examples=(
        ("nvsharectl set-tq 30", "half a minute each, on all GPUs"),
        ("nvsharectl set-tq auto", "what suits the programs that there are"),
        ("nvsharectl set-tq 5 --gpu 1", "five seconds on the second GPU"),
    ),
    configure=_configure,
    act=_act,
)
