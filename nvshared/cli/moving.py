# SPDX-License-Identifier: Apache-2.0
"""nvsharectl park and move: take a program off its GPU until its next use, or to another GPU."""

from collections.abc import Callable
from functools import partial

from nvshared.cli.output import show
from nvshared.cli.terms import Step, carry_out
from nvshared.cli.verb import LONGEST_PID, Options, argument, verb, whole
from nvshared.control import Daemon

PATIENCE = 600.0                        # seconds for a reply: evicting a large program takes long

PID = argument(
    "pid", "PID", "a program that shares a GPU, as nvsharectl clients shows it",
    type=whole(1, LONGEST_PID, "{!r} is no process id"))


def _change(
    options: Options, become: str, data: dict[str, object], put: Callable[[Daemon, int], None],
    result: str,
) -> None:
    """Calls `put` for each client of the process. `become`: the change in words, for errors."""
    with Daemon(options.bus, PATIENCE) as daemon:
        carry_out([
            Step(become, {"gpu": gpu, **data}, partial(put, daemon, client))
            for client, gpu in daemon.clients_of(options.pid, None).items()
        ])
    show(options, {"pid": options.pid, **data}, lambda: print(result))


@verb("park", PID)
def park(options: Options) -> None:
    """Take a program off its GPU until it uses the GPU again.

    Moves the program's memory to the host and has the driver take its context off the GPU, too,
    which is 0.5 to 3 GiB. The program goes on, and wakes by itself when it calls the driver. The
    setting deep-idle does so with programs that are idle for long. Needs driver 570 or later.
    Programs with managed memory, with memory that is shared with others, on several GPUs or in
    gangs are not parked.

        nvsharectl park 4711  # takes process 4711 off its GPU
    """
    _change(options, "parked", {}, Daemon.park,
            f"Process {options.pid} is parked: its memory and context are off the GPU.")


@verb(
    "move",
    PID,
    argument(
        "--to", "GPU", "index, UUID or PCI address of a GPU of the same kind",
        required=True, dest="target"),
)
def move(options: Options) -> None:
    """Move a program to another GPU.

    Ends the program's turn, takes it off its GPU as park does, and puts it on another GPU of the
    same kind, where it goes on. Its own number of the GPU stays the same. If the driver does not
    restore it there, it goes on where it was.

        nvsharectl move 4711 --to 1  # to the second GPU
    """
    _change(options, "moved", {"to": options.target},
            lambda daemon, client: daemon.move(client, options.target),
            f"Process {options.pid} is on GPU {options.target} now.")
