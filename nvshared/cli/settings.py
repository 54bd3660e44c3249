# SPDX-License-Identifier: Apache-2.0
"""What holds for GPUs: set-tq, anti-thrash and reset; and nvshare's own flags, -T and -S."""

import argparse
from functools import partial

from nvshared.cli.output import show
from nvshared.cli.terms import Step, carry_out
from nvshared.cli.verb import AUTO, MODES, Options, Verb, add_gpu
from nvshared.control import Daemon
from nvshared.errors import InvalidArgs, NvshareError
from nvshared.quantity import counted, quantum
from nvshared.units import MILLISECOND, SECOND


def _time(text: str) -> int | None:
    """Microseconds, or None for auto."""
    try:
        return None if text == AUTO else quantum(text)
    except ValueError as error:
        raise InvalidArgs(f"the quantum cannot be {text!r}", f"{error}, or auto") from None


def _configure_quantum(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "quantum", metavar=f"TIME|{AUTO}", type=_time,
        help="seconds, 500ms, 2min, or auto: as short as moving memory allows",
    )
    add_gpu(parser)


def _act_quantum(options: Options) -> None:
    usec, gpu = options.quantum, options.gpu
    with Daemon(options.bus) as daemon:
        if usec is None:
            daemon.set_tq(AUTO, gpu)
        else:
            daemon.set_tq_usec(usec, gpu)
    tq = AUTO if usec is None else -(-usec // SECOND)
    show(
        options, {"tq": tq, "tq_usec": usec, "gpu": gpu},
        lambda: print(quantum_sentence(AUTO if usec is None else in_words(usec), gpu)),
    )


def quantum_sentence(tq: str, gpu: str | None) -> str:
    """What then holds."""
    where = "all GPUs" if gpu is None else f"GPU {gpu}"
    return f"The quantum of {where} is {tq}."


def in_words(microseconds: int) -> str:
    """30 seconds; 1 second; 500 ms."""
    seconds, rest = divmod(microseconds, SECOND)
    return f"{microseconds / MILLISECOND:.10g} ms" if rest else counted(seconds, "second")


SET_TQ = Verb(
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
    configure=_configure_quantum,
    act=_act_quantum,
)


def _configure_anti_thrash(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "mode", metavar="MODE", choices=MODES,
        help="auto: when not all programs fit; on: always; off: never",
    )
    add_gpu(parser)


def _act_anti_thrash(options: Options) -> None:
    mode, gpu = options.mode, options.gpu
    with Daemon(options.bus) as daemon:
        daemon.set_anti_thrash(mode, gpu)
    show(options, {"anti_thrash": mode, "gpu": gpu}, lambda: print(mode_sentence(mode, gpu)))


def mode_sentence(mode: str, gpu: str | None) -> str:
    """What then holds."""
    where = "all GPUs" if gpu is None else f"GPU {gpu}"
    return f"The anti-thrash mode of {where} is {mode}."


ANTI_THRASH = Verb(
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
    configure=_configure_anti_thrash,
    act=_act_anti_thrash,
)


def _act_reset(options: Options) -> None:
    with Daemon(options.bus) as daemon:
        daemon.reset_settings()
        try:
            now = daemon.snapshot()
        except NvshareError as error:
            forgotten = "what was set is forgotten, but what holds now is not known"
            error.message = f"{forgotten}: {error.message}"
            raise
    data = {
        "tq": AUTO if now.tq_auto else now.tq, "tq_usec": None if now.tq_auto else now.tq_usec,
        "anti_thrash": now.anti_thrash,
    }
    tq = AUTO if now.tq_auto else in_words(now.tq_usec)
    show(
        options, data,
        lambda: print(f"The configuration holds again: TQ {tq}, anti-thrash {now.anti_thrash}."),
    )


RESET = Verb(
    name="reset",
    summary="forget what was set with set-tq and anti-thrash",
    description=(
        "Forgets what was set with set-tq and anti-thrash, for all GPUs and for single ones. Then "
        "the settings that nvshared last read hold again: those of /etc/nvshare/nvshared.conf, "
        "and the defaults for the rest: 30 seconds, auto. What is set for single programs with "
        "limit, weight and suspend stays, and so does what is set for tenants."
    ),
    examples=(("nvsharectl reset", "the TQ and the anti-thrash mode of the file"),),
    act=_act_reset,
)


def is_predecessors(options: Options) -> bool:
    """Whether one of them is on the command line."""
    return options.set_tq is not None or options.anti_thrash is not None


def refuse_predecessors(options: Options) -> None:
    """Raises InvalidArgs: they stand before a verb, where one may take them for its options."""
    commands = []
    if options.set_tq is not None:
        commands.append(f"nvsharectl set-tq {options.set_tq}")
    if options.anti_thrash is not None:
        commands.append(f"nvsharectl anti-thrash {options.anti_thrash}")
    raise InvalidArgs(
        f"-T and -S stand alone, and not before {options.verb.name}",
        f"write: {' && '.join(commands)}",
    )


def act_predecessors(options: Options) -> None:
    """Sets what they say on all GPUs, and says so: one document if it is JSON."""
    tq, mode = options.set_tq, options.anti_thrash
    data: dict[str, object] = {"gpu": None}
    sentences, steps = [], []
    with Daemon(options.bus) as daemon:
        if tq is not None:
            put = partial(daemon.set_tq, tq)
            steps.append(Step("the quantum", {"gpu": None, "tq": tq}, put))
            data["tq"] = tq
            sentences.append(quantum_sentence(tq if tq == AUTO else counted(tq, "second"), None))
        if mode is not None:
            put = partial(daemon.set_anti_thrash, mode)
            steps.append(Step("the anti-thrash mode", {"gpu": None, "anti_thrash": mode}, put))
            data["anti_thrash"] = mode
            sentences.append(mode_sentence(mode, None))
        carry_out(steps)
    show(options, data, lambda: print("\n".join(sentences)))
