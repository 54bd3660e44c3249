# SPDX-License-Identifier: Apache-2.0
"""Settings of GPUs: set-tq, anti-thrash and reset; and -T and -S, the predecessor's flags."""

from functools import partial
from typing import Any

from nvshared.cli.output import show
from nvshared.cli.terms import Step, carry_out
from nvshared.cli.verb import AUTO, GPU, MODES, QUANTUM, Options, Verb, argument, quantum
from nvshared.control import Daemon
from nvshared.errors import InvalidArgs, NvshareError
from nvshared.quantity import counted
from nvshared.tui import figures
from nvshared.units import MILLISECOND, SECOND


def _change(options: Options, usec: int | None, mode: str | None, gpu: str | None) -> None:
    """Sets the quantum (0: auto) and the mode, unless they are None, and prints the result."""
    where = "all GPUs" if gpu is None else f"GPU {gpu}"
    data: dict[str, Any] = {"gpu": gpu}
    sentences, steps = [], []
    with Daemon(options.bus) as daemon:
        if usec is not None:
            told = _quantum_as_json(usec)
            put = partial(daemon.set_quantum, usec, gpu)
            steps.append(Step("quantum", {"gpu": gpu, **told}, put))
            data |= told
            sentences.append(f"The quantum of {where} is {in_words(usec)}.")
        if mode is not None:
            put = partial(daemon.set_anti_thrash, mode, gpu)
            steps.append(Step("anti-thrash mode", {"gpu": gpu, "anti_thrash": mode}, put))
            data["anti_thrash"] = mode
            sentences.append(f"The anti-thrash mode of {where} is {mode}.")
        carry_out(steps)
    show(options, data, lambda: print("\n".join(sentences)))


def _quantum_as_json(usec: int) -> dict[str, Any]:
    return {"tq": -(-usec // SECOND) or AUTO, "tq_usec": usec or None}


def in_words(usec: int) -> str:
    """30 seconds; 1 second; 500 ms; auto for 0."""
    seconds, rest = divmod(usec, SECOND)
    if not usec:
        return AUTO
    return f"{usec / MILLISECOND:.10g} ms" if rest else counted(seconds, "second")


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
    arguments=(
        argument(
            "quantum", metavar=QUANTUM, type=quantum,
            help="seconds, 500ms, 2min, or auto: as short as moving memory allows",
        ),
        GPU,
    ),
    act=lambda options: _change(options, options.quantum, None, options.gpu),
)


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
    arguments=(
        argument(
            "mode", metavar="MODE", choices=MODES,
            help="auto: when not all programs fit; on: always; off: never",
        ),
        GPU,
    ),
    act=lambda options: _change(options, None, options.mode, options.gpu),
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
    usec = 0 if now.tq_auto else now.tq_usec
    show(
        options, {**_quantum_as_json(usec), "anti_thrash": now.anti_thrash},
        lambda: print(f"The configuration holds again: TQ {in_words(usec)}, "
                      f"anti-thrash {now.anti_thrash}."),
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


def act_predecessors(options: Options) -> bool:
    """Carries out -T and -S, the predecessor's flags, on all GPUs. False: neither is given.

    Raises InvalidArgs if a verb follows: a user may take -T and -S for options of the verb.
    """
    usec, mode = options.set_tq, options.anti_thrash
    if usec is None and mode is None:
        return False
    if options.verb is not None:
        commands = []
        if usec is not None:
            commands.append(f"nvsharectl set-tq {figures.quantum(usec) if usec else AUTO}")
        commands += [] if mode is None else [f"nvsharectl anti-thrash {mode}"]
        raise InvalidArgs(
            f"-T and -S stand alone, and not before {options.verb.name}",
            f"write: {' && '.join(commands)}",
        )
    _change(options, usec, mode, None)
    return True
