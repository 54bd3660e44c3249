# SPDX-License-Identifier: Apache-2.0
"""nvsharectl set-tq: how long a program may keep a GPU while others wait."""

import argparse

from nvshared.cli.output import show
from nvshared.cli.verb import AUTO, Options, Verb, add_gpu
from nvshared.control import Daemon
from nvshared.errors import InvalidArgs
from nvshared.quantity import counted, quantum
from nvshared.units import MILLISECOND, SECOND


def _quantum(text: str) -> int | None:
    """Microseconds, or None for auto."""
    try:
        return None if text == AUTO else quantum(text)
    except ValueError as error:
        raise InvalidArgs(f"the quantum cannot be {text!r}", f"{error}, or auto") from None


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "quantum", metavar=f"TIME|{AUTO}", type=_quantum,
        help="seconds, 500ms, 2min, or auto: as short as moving memory allows",
    )
    add_gpu(parser)


def _act(options: Options) -> None:
    usec, gpu = options.quantum, options.gpu
    with Daemon(options.bus) as daemon:
        if usec is None:
            daemon.set_tq(AUTO, gpu)
        else:
            daemon.set_tq_usec(usec, gpu)
    tq = AUTO if usec is None else -(-usec // SECOND)
    show(
        options, {"tq": tq, "tq_usec": usec, "gpu": gpu},
        lambda: print(sentence(AUTO if usec is None else in_words(usec), gpu)),
    )


def sentence(tq: str, gpu: str | None) -> str:
    """What then holds."""
    where = "all GPUs" if gpu is None else f"GPU {gpu}"
    return f"The quantum of {where} is {tq}."


def in_words(microseconds: int) -> str:
    """30 seconds; 1 second; 500 ms."""
    seconds, rest = divmod(microseconds, SECOND)
    return f"{microseconds / MILLISECOND:.10g} ms" if rest else counted(seconds, "second")


VERB = Verb(
    name="set-tq",
    summary="set how long a program may keep a GPU while others wait",
    description=(
        "Sets the quantum (TQ). With a short one programs answer sooner, with a long "
        "one less time goes into moving memory. With auto it is as short as keeps moving memory "
        "at 5 percent of the time or less. It holds at once. Where the daemon has a state-dir, as "
        "the service has, it outlives a restart, until: nvsharectl reset."
    ),
    examples=(
        ("nvsharectl set-tq 30", "half a minute each, on all GPUs"),
        ("nvsharectl set-tq 500ms", "half a second"),
        ("nvsharectl set-tq auto", "what suits the programs that there are"),
        ("nvsharectl set-tq 5 --gpu 1", "five seconds on the second GPU"),
    ),
    configure=_configure,
    act=_act,
)
