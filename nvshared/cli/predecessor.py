# SPDX-License-Identifier: Apache-2.0
"""The flags of nvshare's own nvsharectl, -T and -S, which stand without a verb."""

from functools import partial

from nvshared.cli import antithrash, quantum
from nvshared.cli.output import show
from nvshared.cli.steps import Step, carry_out
from nvshared.cli.verb import AUTO, Options
from nvshared.control import Daemon
from nvshared.errors import InvalidArgs
from nvshared.quantity import counted


def given(options: Options) -> bool:
    """Whether one of them is on the command line."""
    return options.set_tq is not None or options.anti_thrash is not None


def refuse(options: Options) -> None:
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


def act(options: Options) -> None:
    """Sets what they say on all GPUs, and says so: one document if it is JSON."""
    tq, mode = options.set_tq, options.anti_thrash
    data: dict[str, object] = {"gpu": None}
    sentences, steps = [], []
    with Daemon(options.bus) as daemon:
        if tq is not None:
            put = partial(daemon.set_tq, tq)
            steps.append(Step("the quantum", {"gpu": None, "tq": tq}, put))
            data["tq"] = tq
            sentences.append(quantum.sentence(tq if tq == AUTO else counted(tq, "second"), None))
        if mode is not None:
            put = partial(daemon.set_anti_thrash, mode)
            steps.append(Step("the anti-thrash mode", {"gpu": None, "anti_thrash": mode}, put))
            data["anti_thrash"] = mode
            sentences.append(antithrash.sentence(mode, None))
        carry_out(steps)
    show(options, data, lambda: print("\n".join(sentences)))
