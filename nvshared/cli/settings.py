# SPDX-License-Identifier: Apache-2.0
"""Settings of GPUs: set-tq, anti-thrash and reset; and -T and -S, the predecessor's flags."""

from functools import partial
from typing import Any

from nvshared.cli.output import show
from nvshared.cli.terms import Step, carry_out
from nvshared.cli.verb import AUTO, GPU, MODES, QUANTUM, Options, argument, quantum, verb
from nvshared.control import Daemon
from nvshared.errors import InvalidArgs, NvshareError
from nvshared.quantity import counted
from nvshared.tui import figures
from nvshared.units import MILLISECOND, SECOND


def _change(options: Options, usec: int | None, mode: str | None, gpu: str | None) -> None:
    """Sets the quantum (0: auto) and the mode, unless they are None, and prints the result."""
    where = "all GPUs" if gpu is None else f"GPU {gpu}"
    sentences, steps = [], []
    with Daemon(options.bus) as daemon:
        if usec is not None:
            data = {"gpu": gpu, **_quantum_as_json(usec)}
            steps.append(Step("quantum", data, partial(daemon.set_tq, usec, gpu)))
            sentences.append(f"The quantum of {where} is {_in_words(usec)}.")
        if mode is not None:
            data = {"gpu": gpu, "anti_thrash": mode}
            steps.append(
                Step("anti-thrash mode", data, partial(daemon.set_anti_thrash, mode, gpu)))
            sentences.append(f"The anti-thrash mode of {where} is {mode}.")
        carry_out(steps)
    show(options, {name: value for step in steps for name, value in step.data.items()},
         lambda: print("\n".join(sentences)))


def _quantum_as_json(usec: int) -> dict[str, Any]:
    return {"tq": -(-usec // SECOND) or AUTO, "tq_usec": usec or None}


def _in_words(usec: int) -> str:
    """30 seconds; 1 second; 500 ms; auto for 0."""
    seconds, rest = divmod(usec, SECOND)
    if not usec:
        return AUTO
    return f"{usec / MILLISECOND:.10g} ms" if rest else counted(seconds, "second")


@verb(
    "set-tq",
    argument(
        "quantum", QUANTUM, "seconds, 500ms, 2min, or auto: as short as moving memory allows",
        type=quantum),
    GPU,
)
def set_tq(options: Options) -> None:
    """Set how long a program may keep a GPU while others wait.

    Sets the quantum (TQ). With a short one programs answer sooner, with a long one less time goes
    into moving memory. With auto it is as short as keeps moving memory at 5 percent of the time or
    less. It holds at once. Where the daemon has a state-dir, as the service has, it outlives a
    restart, until: nvsharectl reset.

        nvsharectl set-tq 30         # half a minute each, on all GPUs
        nvsharectl set-tq 500ms      # half a second
        nvsharectl set-tq auto       # as short as moving memory permits
        nvsharectl set-tq 5 --gpu 1  # five seconds on the second GPU
    """
    _change(options, options.quantum, None, options.gpu)


@verb(
    "anti-thrash",
    argument(
        "mode", "MODE", "auto: when not all programs fit; on: always; off: never", choices=MODES),
    GPU,
)
def anti_thrash(options: Options) -> None:
    """Set when programs take turns: auto, on or off.

    With auto, programs run at the same time while all of them fit into the GPU's memory, and take
    turns when they do not. With on they always take turns, with off never. Use on for programs that
    each keep the GPU busy while they work, such as cells of notebooks: one cell then need not wait
    for the other. Do not use it beside a program that leaves the GPU idle for moments: others
    cannot use those moments.

        nvsharectl anti-thrash auto        # turns only where they are needed
        nvsharectl anti-thrash on --gpu 0  # one at a time on the first GPU
    """
    _change(options, None, options.mode, options.gpu)


@verb("reset")
def reset(options: Options) -> None:
    """Drop the settings made with set-tq and anti-thrash.

    Drops the settings made with set-tq and anti-thrash, for all GPUs and for single GPUs. Then
    the settings that nvshared last read hold again: the settings of /etc/nvshare/nvshared.conf, and
    the defaults for the rest: 30 seconds, auto. Each term set for single programs with limit,
    weight and suspend stays, and so does each term of a tenant.

        nvsharectl reset  # the TQ and the anti-thrash mode of the file
    """
    with Daemon(options.bus) as daemon:
        daemon.reset_settings()
        try:
            now = daemon.snapshot()
        except NvshareError as error:
            forgotten = "the settings are reset, but the values in force are not known"
            error.message = f"{forgotten}: {error.message}"
            raise
    usec = 0 if now.tq_auto else now.tq_usec
    show(
        options, {**_quantum_as_json(usec), "anti_thrash": now.anti_thrash},
        lambda: print(f"The configuration holds again: TQ {_in_words(usec)}, "
                      f"anti-thrash {now.anti_thrash}."),
    )


def act_predecessors(options: Options) -> bool:
    """Carries out -T and -S, the predecessor's flags, on all GPUs. False: neither is given.

    Raises InvalidArgs if a verb follows: a user may take -T and -S for options of the verb.
    """
    usec, mode = options.set_tq, options.anti_thrash
    commands = [] if usec is None else [
        f"nvsharectl set-tq {figures.quantum(usec) if usec else AUTO}"]
    commands += [] if mode is None else [f"nvsharectl anti-thrash {mode}"]
    if commands and options.verb is not None:
        raise InvalidArgs(
            f"-T and -S stand alone, and not before {options.verb.name}",
            f"write: {' && '.join(commands)}",
        )
    if commands:
        _change(options, usec, mode, None)
    return bool(commands)
