# SPDX-License-Identifier: Apache-2.0
"""nvsharectl drain: wait until nvshared can be stopped without anybody standing still."""

import argparse
import time
from typing import TYPE_CHECKING

from nvshared.cli.output import show
from nvshared.cli.verb import Options, Verb
from nvshared.control import Daemon
from nvshared.errors import NvshareError
from nvshared.quantity import counted
from nvshared.tui.quantities import command, process, size

if TYPE_CHECKING:
    from nvshared.control.snapshot import ClientSnapshot

LOOK = 1.0                              # seconds between two looks


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--check", action="store_true", help="do not wait: end with status 1 if there are any"
    )


def _act(options: Options) -> None:
    told: set[str] = set()
    with Daemon(options.bus) as client:
        while left := [one for one in client.snapshot().clients if one.state != "running"]:
            lines = {_line(one) for one in left}
            if not options.json:
                for line in sorted(lines - told):
                    print(line, flush=True)
            told |= lines
            if options.check:
                raise _error(left)
            time.sleep(LOOK)
    show(options, {"left": []}, lambda: print("nvshared can be stopped: no program needs it now."))


def _line(client: "ClientSnapshot") -> str:
    memory = f", {size(client.swapped)} in host memory" if client.swapped else ""
    return f"{process(client)} on GPU {client.gpu}{memory}: {command(client)}"


def _error(left: "list[ClientSnapshot]") -> NvshareError:
    error = NvshareError(
        f"{counted(len(left), 'program')} would stand still without nvshared",
        "end them, or wait until they have ended: nvsharectl drain",
    )
    error.details = {"left": [{"pid": one.pid, "gpu": one.gpu} for one in left]}
    return error


VERB = Verb(
    name="drain",
    summary="wait until no program needs nvshared, so that it can end",
    description=(
        "Without nvshared, a program that holds a GPU keeps it; any other stands still when it "
        "uses its GPU next, and stays so until nvshared is started again. This lists those "
        "others, one line each, and waits until there are none. It holds up nobody who comes "
        "meanwhile. apt and dnf ask the same before they remove nvshared."
    ),
    examples=(
        ("nvsharectl drain", "before: systemctl stop nvshared"),
        ("nvsharectl drain --check", "whether there are any, and which"),
    ),
    configure=_configure,
    act=_act,
)
