# SPDX-License-Identifier: Apache-2.0
"""nvsharectl status: the GPUs, then the programs that use them."""

from typing import TYPE_CHECKING

from nvshared.cli.output import show, show_table
from nvshared.cli.verb import Options, Verb
from nvshared.control import Daemon
from nvshared.tui.tables import client_columns, gpu_columns

if TYPE_CHECKING:
    from nvshared.control.snapshot import Snapshot


def _act(options: Options) -> None:
    with Daemon(options.bus) as daemon:
        now = daemon.snapshot()
    show(options, now.as_dict(), lambda: _print(now))


def _print(now: "Snapshot") -> None:
    show_table(gpu_columns(now), now.gpus)
    print()
    if now.clients:
        show_table(client_columns(now.clients), now.clients)
    else:
        print("No program uses a GPU through nvshare.")


VERB = Verb(
    name="status",
    summary="the GPUs and the programs that use them",
    description=(
        "Shows each GPU: what nvidia-smi shows, the quantum (TQ), the anti-thrash mode, the "
        "program that holds it, and how many wait. Then shows each program: its memory, how much "
        "of that is on the card and in host memory, and how long it has held the GPU and waited "
        "for it, also before nvshared was restarted. A narrow terminal shows fewer columns, a pipe "
        "all of them."
    ),
    examples=(
        ("nvsharectl status", "a table"),
        ("nvsharectl status --json | jq '.gpus[0].holders'", "the same as data"),
        ("watch nvsharectl status", "again and again; nvsharectl top does that better"),
    ),
    act=_act,
)
